"""Load a cluster specification: flag over environment over file over default, with the origin of every value.

Owns the order of the steps and the text of the errors: all mistakes at once, one line each, with file, line and path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from hyperpod.config.block import JudgeCheck, check_health, parse_block
from hyperpod.config.checks import check_block, check_groups, check_local, check_request, draft_groups, notes_about
from hyperpod.config.document import Document, read_document
from hyperpod.config.ec2 import check_ec2, check_reservations_elsewhere
from hyperpod.config.lifecycle import local_source
from hyperpod.config.overrides import (
    BLOCK,
    Override,
    apply_overrides,
    block_fields,
    overrides_from_env,
    overrides_from_flags,
)
from hyperpod.config.problem import Kind, Problem, RequestValidator, closest, format_path
from hyperpod.config.problem import Path as DataPath
from hyperpod.config.roles import PARAMETERS_FILE, RoleOf, Roles, find_roles
from hyperpod.core.names import is_name
from hyperpod.core.node import Role
from hyperpod.core.spec import (
    DEFAULT_LOCAL_TYPE,
    ClusterSpec,
    HyperpodBlock,
    InstanceGroup,
    Lifecycle,
    Provider,
    Vpc,
)
from hyperpod.errors import ConfigError

_MAX_SHOWN: Final = 50


class OriginKind(StrEnum):
    """Where a value was given, strongest first."""

    FLAG = "flag"
    ENV = "env"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True)
class Origin:
    """Where a value was given: the sort of place, and the flag, variable or ``FILE:LINE``."""

    kind: OriginKind
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".rstrip()


@dataclass(frozen=True)
class Setting:
    """One value of a spec with its origin."""

    path: str
    value: Any
    origin: Origin


@dataclass(frozen=True)
class Loaded:
    """A valid spec; ``settings`` are all its values in the order of the file, ``notes`` are lines worth a look."""

    spec: ClusterSpec
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)


def load_spec(
    path: Path | str,
    *,
    validate: RequestValidator,
    provisioning_parameters: Path | str | None = None,
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    health: JudgeCheck | None = None,
) -> Loaded:
    """Load and check a specification, completely and before anything is made.

    Args:
        path: the YAML or JSON file.
        validate: the service's model, ``hyperpod.adapters.aws.model.validate_create_cluster``.
        provisioning_parameters: that file; by default the one beside the spec, if there is one.
        flags: settings given by flags, by path (``Hyperpod.Provider``, ``InstanceGroups[1].InstanceCount``).
        env: the environment; ``HYPERPOD_RESUME_MAX_ATTEMPTS`` sets ``Hyperpod.Resume.MaxAttempts``.
        health: returns the mistakes in what is said of one health check, by its name and settings.
    Returns:
        The spec with the origin of every value.
    Raises:
        ConfigError: with one line for each mistake.
    """
    path = Path(path)
    document = read_document(path)
    if "ClusterName" not in document.data and "workload_manager" in document.data:
        raise ConfigError(
            f"{path}: holds provisioning parameters, not a cluster",
            hint=f"give the CreateCluster file; {PARAMETERS_FILE} beside it is read with it",
        )
    parameters = _read_parameters(path, provisioning_parameters)
    loading = _Loading(document, parameters, path.resolve().parent)
    return loading.run(validate, flags or {}, env or {}, health)


def _read_parameters(spec: Path, given: Path | str | None) -> Document | None:
    if given is not None:
        return read_document(Path(given))
    beside = spec.parent / PARAMETERS_FILE
    return read_document(beside) if beside.is_file() and beside.name != spec.name else None


@dataclass
class _Loading:
    document: Document
    parameters: Document | None
    base: Path
    overrides: dict[DataPath, Override] = field(default_factory=dict)
    lines: list[tuple[tuple[int, int], str]] = field(default_factory=list)

    def run(
        self,
        validate: RequestValidator,
        flags: Mapping[str, Any],
        env: Mapping[str, str],
        health: JudgeCheck | None,
    ) -> Loaded:
        self._report(self.document.problems)
        if self.parameters is not None:
            self._report(self.parameters.problems, self.parameters)
        data = self._overlay(flags, env)
        raw_block = data.pop(BLOCK, None)
        request = data
        groups = request["InstanceGroups"] if isinstance(request.get("InstanceGroups"), list) else []
        roles = find_roles(groups, self.parameters)
        raw_block, spares_problems = _name_spares(raw_block, roles, groups)
        block, problems = parse_block(raw_block)
        hidden = any(problem.path == (BLOCK, "Provider") for problem in problems) or _misspells_block(request)
        provider = None if hidden else block.provider
        self._report([*problems, *spares_problems, *check_health(block, health)])
        self._report(_relaxed(validate(request), request, provider))
        self._report(roles.problems)
        if self.parameters is not None:
            self._report(roles.parameter_problems, self.parameters)
        drafts = draft_groups(groups, roles, block.spares)
        self._report(check_request(request, provider, self.parameters is not None))
        self._report(check_groups(groups, drafts, roles))
        self._report(check_block(block, drafts, groups))
        if provider is Provider.LOCAL:
            self._report(check_local(request, block, drafts, self.base))
        if provider is Provider.SAGEMAKER:
            self._report(check_reservations_elsewhere(block))
        if provider is Provider.EC2:
            self._report(check_ec2(request, block, self.parameters.data if self.parameters else None))
        self._raise_if_bad()
        spec = _build(request, block, roles, self.parameters, self.base)
        notes = notes_about(request, spec.provider, block.repair.enabled)
        settings = tuple(self._settings(request, spec))
        return Loaded(
            spec,
            settings,
            tuple(self._line(note, self.document)[1] for note in notes),
            {setting.path: setting.origin for setting in settings},
        )

    def _overlay(self, flags: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
        from_env, doubtful = overrides_from_env(env)
        from_flags, bad = overrides_from_flags(flags)
        for where, message in (*doubtful, *bad):
            self.lines.append(((0, 0), f"{where}: {message}"))
        self.overrides = {override.path: override for override in (*from_env, *from_flags)}
        data, problems = apply_overrides(self.document.data, [*from_env, *from_flags])
        self._report(problems)
        return data

    def _report(self, problems: Sequence[Problem] | Iterator[Problem], document: Document | None = None) -> None:
        self.lines += [self._line(problem, document or self.document) for problem in problems]

    def _line(self, problem: Problem, document: Document) -> tuple[tuple[int, int], str]:
        override = self._blamed(problem.path) if document is self.document else None
        place = f" at {format_path(problem.path)}:" if problem.path else ""
        if override is not None:
            return (0, 0), f"{override.origin}:{place} {problem.message}"
        line = document.line(problem.path)
        return (1 + (document is not self.document), line), f"{document.source}:{line}:{place} {problem.message}"

    def _blamed(self, path: DataPath) -> Override | None:
        """Return the override that gave the value at ``path``, or made the place for it."""
        for prefix in _prefixes(path):
            if prefix in self.overrides:
                return self.overrides[prefix]
        if not path or path in self.document.lines:
            return None
        return next((override for place, override in self.overrides.items() if place[: len(path)] == path), None)

    def _raise_if_bad(self) -> None:
        if not self.lines:
            return
        lines = list(dict.fromkeys(text for _, text in sorted(self.lines, key=lambda item: item[0])))
        if len(lines) > _MAX_SHOWN:
            lines = [*lines[:_MAX_SHOWN], f"{self.document.source}: and {len(lines) - _MAX_SHOWN} more mistakes"]
        raise ConfigError("\n".join(lines))

    def _settings(self, request: Mapping[str, Any], spec: ClusterSpec) -> Iterator[Setting]:
        for path, value in _leaves(request, ()):
            yield Setting(format_path(path), value, self._origin(path))
        block = spec.hyperpod.model_dump(by_alias=True)
        for path, _, _ in block_fields():
            for leaf, value in _leaves(_value_at(block, path[1:]), path):
                yield Setting(format_path(leaf), value, self._origin(leaf))

    def _origin(self, path: DataPath) -> Origin:
        for prefix in _prefixes(path):
            override = self.overrides.get(prefix)
            if override is not None:
                return Origin(OriginKind.FLAG if override.origin.startswith("--") else OriginKind.ENV, override.origin)
        spares = (BLOCK, "Spares")
        known = path in self.document.lines or (path[:2] == spares and spares in self.document.lines)
        if not known:
            return Origin(OriginKind.DEFAULT)
        return Origin(OriginKind.FILE, f"{self.document.source}:{self.document.line(path)}")


def _prefixes(path: DataPath) -> Iterator[DataPath]:
    for length in range(len(path), 0, -1):
        yield path[:length]


def _leaves(value: Any, path: DataPath) -> Iterator[tuple[DataPath, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def _misspells_block(request: Mapping[str, Any]) -> bool:
    return any(_meant_block_key(str(key)) == BLOCK for key in request)


def _name_spares(raw_block: Any, roles: Roles, groups: Sequence[Any]) -> tuple[Any, list[Problem]]:
    """Turn a bare number of spares into a mapping for the only worker group."""
    if not isinstance(raw_block, dict):
        return raw_block, []
    spares = raw_block.get("Spares")
    number = int(spares) if isinstance(spares, str) and spares.isdigit() else spares
    if not isinstance(number, int) or isinstance(number, bool):
        return raw_block, []
    workers = [
        groups[index].get("InstanceGroupName") for index, found in roles.by_index.items() if found.role is Role.WORKER
    ]
    if len(workers) == 1:
        return raw_block | {"Spares": {workers[0]: number}}, []
    rest = {key: value for key, value in raw_block.items() if key != "Spares"}
    if not roles.is_complete or not workers:
        return rest, []  # those mistakes are reported for themselves
    names = ", ".join(map(str, workers))
    text = f"a bare number needs exactly one worker group, there are {len(workers)} ({names}); write 'GROUP: {number}'"
    return rest, [Problem((BLOCK, "Spares"), text)]


_LOCAL_DROPS: Final[Mapping[str, Callable[[Problem, object], bool]]] = {
    "ExecutionRole": lambda problem, value: problem.kind is Kind.MISSING,
    "InstanceType": lambda problem, value: problem.kind is Kind.ENUM and str(value).startswith("local."),
    "SourceS3Uri": lambda problem, value: problem.kind is Kind.PATTERN,
}


def _relaxed(problems: Sequence[Problem], request: Mapping[str, Any], provider: Provider | None) -> Iterator[Problem]:
    """Yield the service's problems without those that do not matter to local clusters, and in plainer words."""
    for problem in problems:
        key = problem.path[-1] if problem.path else ""
        value = _value_at(request, problem.path)
        drop = _LOCAL_DROPS.get(str(key))
        if provider in (None, Provider.LOCAL) and drop is not None and drop(problem, value):
            continue
        if problem.kind is Kind.PATTERN and key in ("ClusterName", "InstanceGroupName") and not is_name(str(value)):
            yield Problem(problem.path, f"{value!r}: allowed are letters, digits and '-' between them", problem.kind)
        elif problem.kind is Kind.MISSING and key == "ExecutionRole":
            hint = f"is required but missing (provider {provider}; for this machine set Hyperpod.Provider: local)"
            yield Problem(problem.path, hint, problem.kind)
        elif problem.kind is Kind.UNKNOWN_KEY and len(problem.path) == 1:
            meant = _meant_block_key(str(key))
            text = problem.message.replace("valid keys: ", f"valid keys: {BLOCK}, ")
            yield Problem(problem.path, f"unknown key; did you mean {meant}?" if meant else text, problem.kind)
        else:
            yield problem


def _meant_block_key(key: str) -> str | None:
    """Return the place of a key that stands at the top level but belongs to our block, or the block's own name."""
    sections = [field.alias or "" for field in HyperpodBlock.model_fields.values()]
    below = next((f"{BLOCK}.{name}" for name in sections if name.lower() == key.lower()), None)
    return below or closest(key, [BLOCK])


def _value_at(data: Any, path: DataPath) -> object:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _build(
    request: dict[str, Any], block: HyperpodBlock, roles: Roles, parameters: Document | None, base: Path
) -> ClusterSpec:
    vpc = request.get("VpcConfig")
    if block.shared_storage is not None:
        block = block.model_copy(
            update={"shared_storage": str((base / Path(block.shared_storage).expanduser()).resolve())}
        )
    return ClusterSpec(
        cluster_name=request["ClusterName"],
        instance_groups=tuple(
            _build_group(group, block, roles.by_index[index], base)
            for index, group in enumerate(request["InstanceGroups"])
        ),
        vpc=Vpc(security_group_ids=tuple(vpc["SecurityGroupIds"]), subnets=tuple(vpc["Subnets"])) if vpc else None,
        node_recovery=request.get("NodeRecovery", "Automatic"),
        tags={tag["Key"]: tag["Value"] for tag in request.get("Tags", ())},
        hyperpod=block,
        provisioning_parameters=parameters.data if parameters is not None else None,
        aws_request=request,
    )


def _build_group(group: Mapping[str, Any], block: HyperpodBlock, role_of: RoleOf, base: Path) -> InstanceGroup:
    types = group.get("InstanceRequirements", {}).get("InstanceTypes", [DEFAULT_LOCAL_TYPE])
    raw = group.get("LifeCycleConfig", {})
    source = raw.get("SourceS3Uri")
    if source and block.provider is Provider.LOCAL:
        if source.startswith(("s3://", "https://")):
            source = block.local.lifecycle_scripts or source
        source = str(local_source(source, base))
    return InstanceGroup(
        name=group["InstanceGroupName"],
        instance_type=group.get("InstanceType") or types[0],
        count=group["InstanceCount"],
        min_count=group.get("MinInstanceCount"),
        role=role_of.role,
        partition=role_of.partition,
        spares=block.spares.get(group["InstanceGroupName"], 0),
        execution_role=group.get("ExecutionRole"),
        lifecycle=Lifecycle(source=source, on_create=raw.get("OnCreate"), on_init_complete=raw.get("OnInitComplete")),
        threads_per_core=group.get("ThreadsPerCore"),
        deep_checks=tuple(group.get("OnStartDeepHealthChecks") or ()),
    )
