"""Ways to load a spec from a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from spec_texts import LoadText, Mistakes

from hyperpod.adapters.aws.model import validate_create_cluster
from hyperpod.config.load import Loaded, load_spec
from hyperpod.errors import ConfigError


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadText:
    """Load a text, or data as JSON, from ``cluster.yaml`` (or another name) in the current folder."""
    monkeypatch.chdir(tmp_path)

    def load(
        content: str | bytes | Mapping[str, Any],
        name: str = "",
        parameters: Mapping[str, Any] | str | None = None,
        **options: Any,
    ) -> Loaded:
        if isinstance(content, Mapping):
            content, name = json.dumps(content, indent=1), name or "cluster.json"
        file = Path(name or "cluster.yaml")
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        if parameters is not None:
            text = parameters if isinstance(parameters, str) else json.dumps(parameters, indent=1)
            Path("provisioning_parameters.json").write_text(text)
        return load_spec(file, validate=validate_create_cluster, **options)

    return load


@pytest.fixture
def mistakes(load_text: LoadText) -> Mistakes:
    """Load what is wrong, and return the lines of the error."""

    def lines(*args: Any, **options: Any) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load_text(*args, **options)
        return caught.value.message.splitlines()

    return lines
