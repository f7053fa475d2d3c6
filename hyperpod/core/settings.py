"""The ``Hyperpod:`` block of a specification: policies as typed, frozen values.

Owns every setting's name, meaning, unit, limits and default, and the checks of a single value. What binds the block to
the groups of a cluster is in ``core.spec``. Daemons read these as plain data and never import this module.
"""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from pydantic.alias_generators import to_pascal

from hyperpod.core.policy import Mode

CHECKPOINT_FIELDS: Final = frozenset({"user", "job_id", "job_name"})


OWN_SLURM_PARAMETERS: Final = frozenset(
    {
        "accountingstorageexternalhost", "authtype", "authalttypes", "clustername", "controladdr", "controlmachine",
        "credtype", "downnodes", "include", "jobrequeue", "nodeaddr", "nodename", "nodeset", "partitionname",
        "plugstackconfig", "returntoservice", "slurmctldaddr", "slurmctldhost", "slurmctldparameters",
        "slurmctldport", "slurmdport", "slurmdspooldir", "slurmdtimeout", "slurmduser", "slurmuser",
        "statesavelocation",
    }
)  # fmt: skip
"""Parameters of slurm.conf which repair and resume rely on; a spec may not override them (names in lower case)."""


_DURATION: Final = re.compile(r"\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>ms|s|m|h|d)?\s*")
_YEAR_S: Final = 366 * 86400.0
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


_RESERVED_NETWORKS: Final = (
    ("10.88.0.0/16", "podman's default network"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local addresses"),
    ("0.0.0.0/8", "no addresses of hosts"),
    ("224.0.0.0/3", "multicast and reserved"),
)


def parse_duration(value: object) -> timedelta:
    """Return a duration given as seconds (a number) or as text with a unit: ``90s``, ``5m``, ``1h``, ``300ms``, ``2d``.

    Raises:
        ValueError: with a sentence for people, if it is anything else or negative.
    """
    if isinstance(value, timedelta):
        return value
    match = None if isinstance(value, bool) else _DURATION.fullmatch(str(value))
    if match is None or not isinstance(value, int | float | str):
        raise ValueError(f"must be a duration such as 90, 90s, 5m or 1h, got {value!r}")
    seconds = float(match["number"]) * _UNIT_S[match["unit"]]
    if seconds > _YEAR_S:
        raise ValueError(f"must be a duration of at most a year, got {value!r}")
    return timedelta(seconds=seconds)


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, got {'on' if value else 'off'}")
    return value


def _refuse_number(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"must be on or off, got {value!r}")
    return value


def _within(least_s: float, most_s: float = _YEAR_S) -> AfterValidator:
    """Return a limit of a duration, in seconds; pydantic's own limits word their errors differently by version."""

    def check(value: timedelta) -> timedelta:
        seconds = value.total_seconds()
        if seconds < least_s:
            raise ValueError(f"must be at least {least_s:g} s, got {seconds:g} s")
        if seconds > most_s:
            raise ValueError(f"must be at most {most_s:g} s, got {seconds:g} s")
        return value

    return AfterValidator(check)


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(timedelta.total_seconds, return_type=float, when_used="json"),
]


Whole = Annotated[int, BeforeValidator(_refuse_bool)]


Switch = Annotated[bool, BeforeValidator(_refuse_number)]


class Frozen(BaseModel):
    """A value that cannot be changed and has no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class _Block(Frozen):
    """A part of the ``Hyperpod:`` block: CamelCase in the file, snake_case in Python."""

    model_config = ConfigDict(alias_generator=to_pascal)


class Provider(StrEnum):
    """Who makes the instances."""

    LOCAL = "local"
    EC2 = "ec2"
    SAGEMAKER = "sagemaker"


class RepairAction(StrEnum):
    """What is done to an instance that a finding calls broken; AWS's words."""

    REPLACE = "Replace"
    REBOOT = "Reboot"


class OnTimeLimit(StrEnum):
    """What happens to an armed job that reached its own time limit."""

    STOP = "stop"
    RESUME = "resume"


class LocalImage(StrEnum):
    """Which image local nodes boot."""

    BASE = "base"
    TORCH = "torch"


class SpareState(StrEnum):
    """What spares do while nobody needs them."""

    RUNNING = "running"
    STOPPED = "stopped"


class SlurmPolicy(_Block):
    """How Slurm is set up: ``Hyperpod.Slurm``."""

    default_partition: str | None = Field(
        None,
        description="Partition of jobs that name none. Default: the partition of the first worker group, so that a "
        "cluster with one partition needs no setting.",
    )
    slurmd_timeout: Annotated[Duration, _within(5, 65533)] = Field(
        timedelta(seconds=300),
        description="Seconds until slurmctld by itself calls a silent node down. Default 300, Slurm's own: the agents' "
        "heartbeats find dead nodes much earlier, this is only the net below them.",
    )
    job_default_time: Annotated[Duration, _within(60)] | None = Field(
        None,
        description="Time limit of jobs that give none (the partitions' DefaultTime). Default: none, as stock.",
    )
    parameters: Mapping[str, str] = Field(
        default_factory=dict,
        description="More lines for slurm.conf, parameter to value. Default: none. Parameters that repair and resume "
        "rely on (ClusterName, SlurmctldHost, PlugStackConfig, ...) are refused.",
    )

    @model_validator(mode="before")
    @classmethod
    def _parameters_are_text(cls, data: Any) -> Any:
        for key in ("Parameters", "parameters"):
            if isinstance(data, dict) and isinstance(data.get(key), dict):
                values = data[key].items()
                data = data | {key: {name: _slurm_value(value) for name, value in values}}
        return data

    @model_validator(mode="after")
    def _parameters_are_ours_to_give(self) -> Self:
        seen: dict[str, str] = {}
        for name, value in self.parameters.items():
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", name):
                raise ValueError(f"Parameters: {name!r} is not the name of a slurm.conf parameter")
            if name.lower() in OWN_SLURM_PARAMETERS:
                raise ValueError(f"Parameters: {name} is set by hyperpod and cannot be given here")
            if name.lower() in seen:
                raise ValueError(f"Parameters: {seen[name.lower()]} and {name} are the same parameter for Slurm")
            if not value.isprintable() or "#" in value:
                raise ValueError(f"Parameters: the value of {name} must be one line of text without '#'")
            seen[name.lower()] = name
        return self


def _refuse_switch(value: object) -> object:
    # YAML reads a bare off as false; here it is one of three words.
    return Mode.OFF if value is False else value


def _two_numbers(value: object) -> object:
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(type(n) is int for n in value)
    if not is_pair or not 1 <= value[0] <= value[1] <= 100:  # type: ignore[index]
        shown = f"{list(value)}" if isinstance(value, list | tuple) else repr(value)
        raise ValueError(f"must be [n, m] with 1 <= n <= m <= 100, got {shown[:60]}")
    return value


ModeWord = Annotated[Mode, BeforeValidator(_refuse_switch)]

_OWN_KEYS: Final = {"mode": "Mode", "overrides": "Overrides", "damping": "Damping", "interval_s": "Interval"}
"""What stands beside a check's ``Settings``, not in them: one place for one thing."""


class CheckPolicy(_Block):
    """Policy of one health check: ``Hyperpod.Health.Checks.<name>``."""

    mode: ModeWord | None = Field(
        None,
        description="act: findings drain the node. observe: they are reported with what they would have done. off: the "
        "check does not run. Default: Hyperpod.Health.Default.",
    )
    interval: Annotated[Duration, _within(1)] | None = Field(
        None,
        description="Seconds between two runs. Default: the check's own, shorter for what is cheap and urgent.",
    )
    damping: Annotated[tuple[Whole, Whole], BeforeValidator(_two_numbers)] | None = Field(
        None,
        description="[n, m]: a soft finding counts when seen in n of the last m runs. Default: the check's own, mostly "
        "[2, 3].",
    )
    overrides: Mapping[str, str] = Field(
        default_factory=dict,
        description="Severity by code (ok, warn or fatal), such as {Xid94: fatal}. Default: the check's own judgement.",
    )
    settings: Mapping[str, Any] = Field(
        default_factory=dict,
        description="The check's own limits, such as fatal_percent of disk. Default: those in its description.",
    )

    @model_validator(mode="after")
    def _one_place_for_one_thing(self) -> Self:
        for key, place in _OWN_KEYS.items():
            if key in self.settings:
                raise ValueError(f"Settings: {key} is given as {place} beside Settings")
        return self


class GroupHealthPolicy(_Block):
    """What differs for one instance group: ``Hyperpod.Health.Groups.<group>``."""

    default: ModeWord | None = Field(
        None, description="Mode of checks without one in this group. Default: Hyperpod.Health.Default."
    )
    checks: Mapping[str, CheckPolicy] = Field(
        default_factory=dict,
        description="Policy per check in this group; what is not given is as for the whole cluster. Default: none.",
    )


class DeepPolicy(_Block):
    """How hard deep checks test nodes: ``Hyperpod.Health.Deep``."""

    part: Annotated[Duration, _within(0.1, 3600)] = Field(
        timedelta(seconds=10),
        description="Time for each part of the stress on one node: memory, processors, each GPU. Default 10s: finds "
        "what fails at once under load; a burn-in takes an hour and is asked for by hand.",
    )
    disk_mb: Whole = Field(
        256, ge=4, le=1_000_000, description="Written to a disk and read back (MB). Default 256: more than its cache."
    )
    transfer_mb: Whole = Field(
        256,
        ge=1,
        le=100_000,
        description="Sent over each link (MB). Default 256: two seconds at 1 Gbit/s; more where links are fast.",
    )
    tolerance: float = Field(
        0.3,
        gt=0,
        lt=1,
        description="Share below the median of all links at which one is slow. Default 0.3: neighbours' traffic costs "
        "a tenth or two.",
    )
    dcgm_level: Whole = Field(
        1,
        ge=1,
        le=4,
        description="Level of DCGM's own diagnostic (dcgmi diag -r), where it is installed. Default 1: seconds; level "
        "2 takes about 2 minutes, 3 a quarter of an hour, 4 up to 2 hours.",
    )


class HealthPolicy(_Block):
    """How the agents look at their nodes: ``Hyperpod.Health``."""

    default: ModeWord = Field(
        Mode.ACT,
        description="Mode of every check that names none: act, observe or off. Default act; observe lets new checks of "
        "a later version only report until you name them.",
    )
    checks: Mapping[str, CheckPolicy] = Field(
        default_factory=dict,
        description="Policy per check, by the names in 'hyperpod checks list'. Default: every check runs and counts.",
    )
    groups: Mapping[str, GroupHealthPolicy] = Field(
        default_factory=dict,
        description="What differs per instance group. Default: nothing.",
    )
    deep: DeepPolicy = Field(
        default_factory=DeepPolicy, description="How hard deep checks test nodes. Default: a minute or two a node."
    )


class RepairPolicy(_Block):
    """What may be repaired, how and how much at a time: ``Hyperpod.Repair``."""

    enabled: Switch = Field(
        True,
        description="Whether instances are powered off, rebooted or replaced. Default on; off still drains nodes with "
        "a FATAL finding and brings them back when it is over. Dead ones are left to Slurm and to people.",
    )
    action: RepairAction = Field(
        RepairAction.REPLACE,
        description="What is done to a dead node, and for findings that name no action: Replace or Reboot. "
        "Default Replace, the only cure for hardware.",
    )
    reboot_first: Switch = Field(
        False,
        description="Reboot once before a replacement, unless the finding says hardware. Default off: a replacement "
        "surely ends the fault, and spares carry the jobs meanwhile.",
    )
    max_unhealthy_percentage: Whole = Field(
        50,
        ge=0,
        le=100,
        description="Nothing more is repaired while more than this share of the workers is out of service (percent). "
        "Default 50: more at a time is a fault of the site, not of nodes.",
    )
    max_parallel_repaired: Whole = Field(
        2,
        ge=1,
        description="Machines being rebooted, replaced or checked at a time. Default 2: one bad repair cannot spread, "
        "one slow repair does not stop the next.",
    )
    breaker_nodes: Whole = Field(
        3,
        ge=1,
        description="So many nodes with one cause within BreakerWindow stop repairs until a person closes the breaker. "
        "Default 3: two may be chance.",
    )
    breaker_window: Annotated[Duration, _within(10)] = Field(
        timedelta(hours=1), description="Window of BreakerNodes. Default 1h."
    )
    reboot_window: Annotated[Duration, _within(60)] = Field(
        timedelta(hours=24),
        description="A machine that was rebooted for a cause and shows it again within this time is replaced. "
        "Default 24h: a reboot that held for a day was a cure.",
    )
    replace_offenders: Switch = Field(
        False,
        description="Whether machines that fail significantly more often than the fleet are replaced when their jobs "
        "have left. Default off: 'hyperpod health offenders' names them, a person decides.",
    )
    replace_attempts: Whole = Field(
        3, ge=1, le=100, description="Replacements tried for one node before it is held for a person. Default 3."
    )
    replace_timeout: Annotated[Duration, _within(10)] = Field(
        timedelta(minutes=15),
        description="A new machine that is not ready by then counts as a failed try. Default 15m: three times what a "
        "machine with large scripts needs.",
    )
    first_contact_grace: Annotated[Duration, _within(1)] = Field(
        timedelta(seconds=10),
        description="After its own start the controller waits this long for agents before it calls one silent. "
        "Default 10: agents reconnect within seconds.",
    )


class ResumePolicy(_Block):
    """How jobs are brought back: ``Hyperpod.Resume``."""

    default: Switch = Field(
        False,
        description="Whether jobs are armed that say nothing (on or off). Default off: a job not written for it "
        "must not start twice.",
    )
    max_attempts: Whole = Field(
        10,
        ge=1,
        le=10000,
        description="Attempts of a job armed without a number, the first one counted. Default 10: weeks of training "
        "survive, a broken job does not run for ever.",
    )
    checkpoint_dir: str = Field(
        "/fsx/checkpoints/{user}/{job_name}-{job_id}",
        description="Directory of a job's checkpoints when the job names none; {user}, {job_id} and "
        "{job_name} are filled in. Default below /fsx, which every node sees, and apart for each job.",
    )
    on_time_limit: OnTimeLimit = Field(
        OnTimeLimit.STOP,
        description="stop or resume when its own time limit ended the job. Default stop: the limit is the user's word.",
    )
    step_kill_grace: Annotated[Duration, _within(0, 600)] = Field(
        timedelta(seconds=0.3),
        description="Seconds between SIGTERM and SIGKILL when the step of a lost rank is ended. Default 0.3: its "
        "collective operations cannot finish any more.",
    )
    same_failure_limit: Whole = Field(
        2,
        ge=1,
        le=1000,
        description="Equal failures without a new checkpoint between them until the job is stopped. Default 2: once "
        "may be chance.",
    )
    lease: Annotated[Duration, _within(1)] = Field(
        timedelta(seconds=10),
        description="Seconds an agent waits without its controller before it kills job processes, so that a node cut "
        "off cannot write beside the next attempt. Default 10: a controller's restart takes less.",
    )
    heartbeat_interval: Annotated[Duration, _within(0.1)] = Field(
        timedelta(seconds=1),
        description="Seconds between two heartbeats of an agent. Default 1.",
    )
    heartbeat_misses: Whole = Field(
        3,
        ge=1,
        le=1000,
        description="Heartbeats missing in a row until a node is suspected and a second opinion is taken. Default 3.",
    )
    evidence_before: Duration = Field(
        timedelta(minutes=10),
        description="Findings that began up to this long before a failure count as its cause. Default 10m: memory "
        "errors show some minutes before the crash.",
    )
    first_task_timeout: Annotated[Duration, _within(1)] = Field(
        timedelta(minutes=2),
        description="A job that is running for so long without a started task counts as a failed launch. Default 2m: "
        "prologs and large images need a while.",
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        suspected = self.heartbeat_interval * self.heartbeat_misses
        if self.lease < suspected:
            raise ValueError(
                f"Lease ({self.lease.total_seconds():g} s) must be at least HeartbeatInterval x HeartbeatMisses "
                f"({suspected.total_seconds():g} s)"
            )
        check_checkpoint_template(self.checkpoint_dir)
        return self


class LocalPolicy(_Block):
    """The nodes on this machine: ``Hyperpod.Local`` (provider ``local`` only)."""

    cpus_per_node: Whole | None = Field(
        None, ge=1, le=4096, description="CPUs that Slurm counts on a node. Default: all CPUs of this machine."
    )
    memory_per_node: Whole = Field(
        1024,
        ge=256,
        description="MiB of memory that Slurm counts on a node. Default 1024: a small PyTorch job fits, and 16 nodes "
        "fit on 24 GiB.",
    )
    subnet: str | None = Field(
        None,
        description="IPv4 network of the nodes, such as 10.89.40.0/24. Default: one that is free on this machine.",
    )
    image: LocalImage = Field(
        LocalImage.BASE,
        description="base, or torch for one with CPU PyTorch. Default base: built in a third of the time, a fifth of "
        "the size.",
    )
    internet: Switch = Field(
        False, description="Whether nodes may reach beyond this machine. Default off: nothing in them needs it."
    )
    lifecycle_scripts: str | None = Field(
        None,
        description="Folder that stands in for every group's s3:// SourceS3Uri, so that a file written for AWS runs "
        "here unchanged. Relative to the spec's folder. Default: none.",
    )

    @model_validator(mode="after")
    def _subnet_is_usable(self) -> Self:
        if self.subnet is not None:
            check_local_subnet(self.subnet)
        return self


class Ec2Policy(_Block):
    """Machines that are made by our own calls: ``Hyperpod.Ec2`` (provider ``ec2`` only)."""

    image: str = Field(
        "debian",
        pattern=r"ami-[0-9a-f]{8,17}|/[A-Za-z0-9_./-]{1,200}|debian|ubuntu|dlami|neuron",
        description="AMI of all nodes: its id, an SSM parameter that holds the id, or debian, ubuntu, dlami or neuron "
        "for the newest of those. Default debian, whose Slurm is the one that is tried.",
    )
    bucket: str | None = Field(
        None,
        description="Bucket of the cluster's folder, without s3://. Default: that of the first SourceS3Uri.",
    )
    node_profile: str = Field(
        "hyperpod-main-node", description="Instance profile of nodes. Default: as hyperpod prepare makes it."
    )
    head_profile: str = Field(
        "hyperpod-main-head", description="Instance profile of the head node. Default: as hyperpod prepare makes it."
    )
    spares: SpareState = Field(
        SpareState.RUNNING,
        description="running or stopped while nobody needs them. Default running: a job moves in seconds; EC2 keeps no "
        "capacity for a stopped machine, which costs only its disk but takes minutes to start, or does not start.",
    )
    key_name: str | None = Field(None, description="EC2 key pair for emergencies. Default: none; keys are our own.")
    placement: Switch = Field(
        True,
        description="Whether worker groups with EFA get a cluster placement group. Default on: near nodes are fast.",
    )
    reservations: Mapping[str, str] = Field(
        default_factory=dict,
        description="Capacity reservation or capacity block by group name. Default: none named, open ones are used.",
    )


class HyperpodBlock(_Block):
    """The ``Hyperpod:`` block of a spec file: everything that SageMaker's request has no words for."""

    provider: Provider = Field(
        Provider.SAGEMAKER,
        description="Who makes the instances: local (nodes on this machine), ec2 or sagemaker. Default sagemaker, "
        "since the rest of the file is a request to that service.",
    )
    spares: Mapping[str, Annotated[Whole, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Spare nodes, group name to number, counted inside InstanceCount; a bare number is meant for the "
        "only worker group. Default none: a spare is a machine that waits.",
    )
    slurm: SlurmPolicy = Field(default_factory=lambda: SlurmPolicy(), description="How Slurm is set up.")
    health: HealthPolicy = Field(default_factory=lambda: HealthPolicy(), description="How nodes are checked.")
    repair: RepairPolicy = Field(default_factory=lambda: RepairPolicy(), description="How instances are repaired.")
    resume: ResumePolicy = Field(default_factory=lambda: ResumePolicy(), description="How jobs are resumed.")
    shared_storage: str | None = Field(
        None,
        description="Folder of this machine that local nodes see as /fsx. Default: one in the cluster's own folder.",
    )
    local: LocalPolicy = Field(default_factory=lambda: LocalPolicy(), description="The nodes on this machine.")
    ec2: Ec2Policy = Field(default_factory=lambda: Ec2Policy(), description="Machines made by our own calls to EC2.")


def check_checkpoint_template(template: str) -> None:
    """Check a template of a checkpoint directory.

    Raises:
        ValueError: if it is not absolute, holds unknown fields, or could leave its folder.
    """
    allowed = ", ".join(f"{{{name}}}" for name in sorted(CHECKPOINT_FIELDS))
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"CheckpointDir: {error}; allowed fields are {allowed}") from error
    for _, field, spec, conversion in parts:
        if field is not None and (field not in CHECKPOINT_FIELDS or spec or conversion):
            raise ValueError(f"CheckpointDir: unknown field {{{field}}}; allowed are {allowed}")
    if not template.startswith("/") or ".." in template.split("/") or not template.isprintable():
        raise ValueError(f"CheckpointDir: must be an absolute path without '..', got {template!r}")


def check_local_subnet(text: str) -> ipaddress.IPv4Network:
    """Return the network of local nodes.

    Raises:
        ValueError: if it is no private IPv4 network of a usable size, or podman's own default.
    """
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"Subnet: must be an IPv4 network such as 10.89.40.0/24, got {text!r} ({error})") from error
    if not 16 <= network.prefixlen <= 29:
        raise ValueError(f"Subnet: must have a prefix length from 16 to 29, got {text}")
    for reserved, why in _RESERVED_NETWORKS:
        if network.overlaps(ipaddress.IPv4Network(reserved)):
            raise ValueError(f"Subnet: {text} overlaps {reserved} ({why}); choose another such as 10.89.40.0/24")
    if not network.is_private:
        raise ValueError(f"Subnet: must be a private network (10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16), got {text}")
    return network


def _slurm_value(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, int | float) else value


def plain_settings(block: BaseModel) -> dict[str, Any]:
    """Return one section as JSON-able data: snake_case keys, durations as seconds in keys that end in ``_s``."""
    plain: dict[str, Any] = {}
    for name, field in type(block).model_fields.items():
        value = getattr(block, name)
        if "timedelta" in str(field.annotation):
            plain[f"{name}_s"] = None if value is None else value.total_seconds()
        elif isinstance(value, Mapping):
            plain[name] = dict(value)
        else:
            plain[name] = value.value if isinstance(value, StrEnum) else value
    return plain


def plain_checks(health: HealthPolicy, group: str = "") -> dict[str, dict[str, Any]]:
    """Return the policy of the health checks as the agents' registry reads it, by check.

    Args:
        health: The policy.
        group: Instance group whose own words count before those for the cluster.
    """
    own = health.groups.get(group, GroupHealthPolicy())
    default = own.default or health.default
    plain: dict[str, dict[str, Any]] = {} if default is Mode.ACT else {"default": {"mode": default.value}}
    for name in dict.fromkeys((*health.checks, *own.checks)):
        values: dict[str, Any] = {}
        overrides: dict[str, str] = {}
        for check in (health.checks.get(name), own.checks.get(name)):
            if check is None:
                continue
            values |= check.settings
            overrides |= {code: word.lower() for code, word in check.overrides.items()}
            if check.mode is not None:
                values["mode"] = check.mode.value
            if check.interval is not None:
                values["interval_s"] = check.interval.total_seconds()
            if check.damping is not None:
                values["damping"] = list(check.damping)
        plain[name] = values | ({"overrides": overrides} if overrides else {})
    return plain
