"""Judges requests and answers by botocore's own model of a service: types, required keys, limits, patterns, enums.

Written apart from the product's checks, so that a mistake in one of them does not hide in the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator


@cache
def service(name: str) -> ServiceModel:
    """Return the newest model of a service."""
    return ServiceModel(Loader().load_service_model(name, "service-2"))


def operation(name: str) -> OperationModel | None:
    """Return an operation of SageMaker; None for one that it does not have."""
    model = service("sagemaker")
    return model.operation_model(name) if name in model.operation_names else None


def complaints(value: Mapping[str, Any], shape: Shape) -> list[str]:
    """Return everything that is wrong with a request or an answer."""
    report = ParamValidator().validate(value, shape)
    found = [report.generate_report()] if report.has_errors() else []
    return found + list(_walk(value, shape, ""))


def _walk(value: Any, shape: Any, path: str) -> Iterator[str]:
    kind = shape.type_name
    if kind == "structure" and isinstance(value, Mapping):
        for key, item in value.items():
            if key not in shape.members:
                yield f"{path}.{key} is unknown"
            else:
                yield from _walk(item, shape.members[key], f"{path}.{key}")
    elif kind == "list" and isinstance(value, list | tuple):
        most = shape.metadata.get("max")
        if most is not None and len(value) > most:
            yield f"{path} has {len(value)} entries, at most {most} are allowed"
        for index, item in enumerate(value):
            yield from _walk(item, shape.member, f"{path}.{index}")
    elif kind == "string" and isinstance(value, str):
        if shape.enum and value not in shape.enum:
            yield f"{path}: {value} is not one of {', '.join(shape.enum[:9])}"
        pattern, most = shape.metadata.get("pattern"), shape.metadata.get("max")
        if most is not None and len(value) > most:
            yield f"{path} is longer than {most}"
        elif pattern and "\\p{" not in pattern and not re.fullmatch(pattern, value):
            yield f"{path}: {value} does not match {pattern}"
    elif kind in ("integer", "long") and isinstance(value, int) and value > shape.metadata.get("max", value):
        yield f"{path}: {value} is above {shape.metadata['max']}"
