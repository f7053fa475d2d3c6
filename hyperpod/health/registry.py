"""The list of checks, and how the configuration's settings reach them. Importing it starts nothing.

A new check is a file in ``health/checks`` and one line in ``CHECKS``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, NamedTuple, cast

from hyperpod.core.finding import Severity
from hyperpod.core.node import Role
from hyperpod.core.policy import Mode
from hyperpod.errors import ConfigError
from hyperpod.health.check import EVERYWHERE, WORKERS, About, Check, Damping, Settings
from hyperpod.health.checks import group, kernel_log, nhc
from hyperpod.health.checks.clock_sync import ClockSyncCheck
from hyperpod.health.checks.container_runtime import ContainerRuntimeCheck
from hyperpod.health.checks.cpu import CpuCheck
from hyperpod.health.checks.cpu_count import CpuCountCheck
from hyperpod.health.checks.dcgm import DcgmCheck
from hyperpod.health.checks.disk import DiskCheck
from hyperpod.health.checks.ec2_notice import Ec2NoticeCheck
from hyperpod.health.checks.edac import EdacCheck
from hyperpod.health.checks.efa import EfaCheck
from hyperpod.health.checks.ethernet import EthernetCheck
from hyperpod.health.checks.fabric_log import FabricLogCheck
from hyperpod.health.checks.fi_info import FiInfoCheck
from hyperpod.health.checks.fstab import FstabCheck
from hyperpod.health.checks.gpu_count import GpuCountCheck
from hyperpod.health.checks.gpu_driver import GpuDriverCheck
from hyperpod.health.checks.gpu_fabric import GpuFabricCheck
from hyperpod.health.checks.gpu_lost import GpuLostCheck
from hyperpod.health.checks.gpu_memory import GpuMemoryCheck
from hyperpod.health.checks.gpu_nvlink import GpuNvlinkCheck
from hyperpod.health.checks.gpu_pcie import GpuPcieCheck
from hyperpod.health.checks.gpu_processes import GpuProcessesCheck
from hyperpod.health.checks.gpu_recovery import GpuRecoveryCheck
from hyperpod.health.checks.gpu_services import GpuServicesCheck
from hyperpod.health.checks.gpu_slowdown import GpuSlowdownCheck
from hyperpod.health.checks.gpu_temperature import GpuTemperatureCheck
from hyperpod.health.checks.hung_tasks import HungTasksCheck
from hyperpod.health.checks.infiniband import InfinibandCheck
from hyperpod.health.checks.leftovers import LeftoversCheck
from hyperpod.health.checks.load import LoadCheck
from hyperpod.health.checks.memory import MemoryCheck
from hyperpod.health.checks.munge import MungeCheck
from hyperpod.health.checks.name import NameCheck
from hyperpod.health.checks.neuron import NeuronCheck
from hyperpod.health.checks.nhc import NhcCheck
from hyperpod.health.checks.nvme import NvmeCheck
from hyperpod.health.checks.plugin import PluginCheck
from hyperpod.health.checks.pressure import PressureCheck
from hyperpod.health.checks.raid import RaidCheck
from hyperpod.health.checks.readonly_fs import ReadonlyFsCheck
from hyperpod.health.checks.service import ServiceCheck
from hyperpod.health.checks.shared_fs import SharedFsCheck
from hyperpod.health.checks.slurm_view import SlurmViewCheck
from hyperpod.health.elsewhere import ELSEWHERE, Place
from hyperpod.health.nhc_tests import wrong_lines
from hyperpod.health.runner import CHECK_FAILED, CHECK_HANGS

CHECKS: Mapping[str, Callable[..., Any]] = {
    "service": ServiceCheck,
    "munge": MungeCheck,
    "name": NameCheck,
    "shared_fs": SharedFsCheck,
    "plugin": PluginCheck,
    "memory": MemoryCheck,
    "cpu_count": CpuCountCheck,
    "disk": DiskCheck,
    "readonly_fs": ReadonlyFsCheck,
    "load": LoadCheck,
    "clock_sync": ClockSyncCheck,
    "container_runtime": ContainerRuntimeCheck,
    "cpu": CpuCheck,
    "edac": EdacCheck,
    "efa": EfaCheck,
    "ethernet": EthernetCheck,
    "hung_tasks": HungTasksCheck,
    "infiniband": InfinibandCheck,
    "leftovers": LeftoversCheck,
    "neuron": NeuronCheck,
    "nvme": NvmeCheck,
    "pressure": PressureCheck,
    "raid": RaidCheck,
    "slurm_view": SlurmViewCheck,
    "nhc": NhcCheck,
    "dcgm": DcgmCheck,
    "gpu_count": GpuCountCheck,
    "gpu_driver": GpuDriverCheck,
    "gpu_fabric": GpuFabricCheck,
    "gpu_lost": GpuLostCheck,
    "gpu_memory": GpuMemoryCheck,
    "gpu_nvlink": GpuNvlinkCheck,
    "gpu_pcie": GpuPcieCheck,
    "gpu_processes": GpuProcessesCheck,
    "gpu_recovery": GpuRecoveryCheck,
    "gpu_services": GpuServicesCheck,
    "gpu_slowdown": GpuSlowdownCheck,
    "gpu_temperature": GpuTemperatureCheck,
    "ec2_notice": Ec2NoticeCheck,
    "fabric_log": FabricLogCheck,
    "fi_info": FiInfoCheck,
    "fstab": FstabCheck,
}
"""Checks that the runner starts, by name. ``kernel_log`` is driven by events and has its place in the agent; ``group``
is judged by the controller, and what is in ``ELSEWHERE`` is found without a run."""

OTHERS = (kernel_log.NAME, group.NAME, *ELSEWHERE)
"""Names that the runner does not start."""

DEFAULT = "default"
"""Stands in the configuration for every check that has no entry, or no mode, of its own."""

_COMMON = {
    "interval_s": "Seconds between two runs.",
    "deadline_s": "Seconds that a run may take; a longer one is a finding of its own (CheckHangs, UNKNOWN).",
    "damping": "[n, m]: a soft finding counts when it was seen in n of the last m runs. Hard facts count at once.",
}
"""Settings that every check has; a check may give a reason of its own."""

_GENERIC_CODES = {
    CHECK_HANGS: "A run did not come back within the check's deadline (UNKNOWN).",
    CHECK_FAILED: "The check itself failed (UNKNOWN).",
}
"""Codes that the runner gives for every check."""

_SEVERITIES = ("ok", "warn", "fatal")
_HIDDEN = frozenset({"name", "is_quick", "is_basic", "is_job_start", "is_job_end", "roles"})
_WITHOUT_MEANING = ("interval_s", "damping", "deadline_s")
"""Accepted for ``kernel_log`` as for every check, although it is driven by events."""


@dataclass(frozen=True)
class SettingRow:
    """One setting of a check, for people."""

    name: str
    default: object
    why: str


def names() -> tuple[str, ...]:
    """Return the names of all checks."""
    return (*CHECKS, *OTHERS)


def about(name: str) -> About:
    """Return what people are told about a check.

    Raises:
        ConfigError: if there is no such check; names the nearest one.
    """
    if name == kernel_log.NAME:
        return kernel_log.KernelLog.about
    if name == group.NAME:
        return group.ABOUT
    if name in ELSEWHERE:
        return ELSEWHERE[name].about
    check_name(name)
    return cast(About, cast(Any, CHECKS[name]).about)


def check_name(name: str) -> str:
    """Return the name of a check as it is.

    Raises:
        ConfigError: if there is no such check; names the nearest one.
    """
    if name not in names():
        raise ConfigError(f"there is no check {name!r}{_nearest(name, names(), 3)}", hint="hyperpod checks list")
    return name


def codes(name: str) -> Mapping[str, str]:
    """Return every code that a check can report, the runner's own included."""
    generic = {} if name in OTHERS else _GENERIC_CODES
    return {**about(name).codes, **generic}


def setting_rows(name: str) -> tuple[SettingRow, ...]:
    """Return the settings of a check, with their defaults and reasons."""
    if name in ELSEWHERE:
        return ()
    others: Mapping[str, Any] = {kernel_log.NAME: kernel_log.Limits, group.NAME: group.Limits}
    make: Any = others.get(name) or CHECKS[name]
    rows = []
    for f in fields(make):
        if f.name in _HIDDEN or f.name.startswith("_"):
            continue
        default = f.default if f.default is not MISSING else cast(Any, f.default_factory)()
        rows.append(SettingRow(f.name, default, str(f.metadata.get("why") or _COMMON.get(f.name, ""))))
    return tuple(rows)


def parse_settings(data: Mapping[str, Any]) -> dict[str, Settings]:
    """Read the ``health`` block of the agent's configuration: the policy by check.

    Each check's object holds its settings, and ``mode`` (act, observe, off) and ``overrides`` (severity by code).
    ``default`` holds the mode of the checks that name none.

    Raises:
        ConfigError: for a check, a setting or a code that does not exist; names the nearest one.
    """
    default = _default_mode(data.get(DEFAULT, {}))
    out = {DEFAULT: Settings(default)}
    for name, values in data.items():
        if name == DEFAULT:
            continue
        if _USERS_NAME.fullmatch(name):
            out[name] = _users(name, values, default)
            continue
        if name not in names():
            raise ConfigError(f"health.{name}: {_no_such_check(name)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"health.{name}: must be an object of settings")
        if name in ELSEWHERE:
            out[name] = _elsewhere(name, values, default)
            continue
        own = dict(values)
        mode = _mode(name, own.pop("mode", default))
        overrides = _overrides(name, own.pop("overrides", None) or {})
        if name == group.NAME and overrides:
            raise ConfigError(f"health.{name}.overrides: its codes keep their severity; set its mode instead")
        allowed = tuple(row.name for row in setting_rows(name))
        if name == kernel_log.NAME:
            own = {key: value for key, value in own.items() if key not in _WITHOUT_MEANING}
        for key in own:
            if key not in allowed:
                raise ConfigError(f"health.{name}.{key}: there is no such setting{_nearest(key, allowed)}")
        out[name] = Settings(mode, overrides, own)
    return out


def _no_such_check(name: str) -> str:
    if name.startswith(_USERS):
        return "a check of the site is named user.NAME, without its file's .sh or .py: letters, digits, '-' and '_'"
    if name.casefold() == DEFAULT:
        return "there is no such check; the mode of checks that name none is Hyperpod.Health.Default"
    return f"there is no such check{_nearest(name, names())}"


def _elsewhere(name: str, values: Mapping[str, Any], default: Mode) -> Settings:
    """Read the policy of findings that no run of a check makes: their mode, where it can be changed."""
    made = ELSEWHERE[name]
    mode = _mode(name, values.get("mode", Mode.ACT if made.why_act else default))
    if made.why_act and mode is not Mode.ACT:
        raise ConfigError(f"health.{name}.mode: {made.why_act}")
    if values.get("overrides"):
        raise ConfigError(f"health.{name}.overrides: its codes keep their severity; set its mode instead")
    for key in values:
        if key not in ("mode", "overrides"):
            where = f"they are in {made.settings}" if made.settings else "it has a Mode only"
            raise ConfigError(f"health.{name}.{key}: there is no such setting; {where}")
    return Settings(mode)


class Complaint(NamedTuple):
    """One mistake in a check's part of a configuration: the keys that lead to it, and a sentence."""

    keys: tuple[str | int, ...]
    text: str


def complaints(name: str, values: Mapping[str, Any]) -> list[Complaint]:
    """Return every mistake in what a specification says of one check.

    The same rules as the agent's: each word is read alone, so that one mistake does not hide another. Beyond that,
    lines of an nhc.conf are understood here already, which the agent only does when it runs the check.
    """
    if name not in names() and not _USERS_NAME.fullmatch(name):
        # Of a check that does not exist nothing else can be said.
        return [Complaint((), _no_such_check(name))]
    found = []
    for keys, piece in _pieces(values):
        try:
            _read_one(name, piece)
        except ConfigError as error:
            text = error.message.partition(": ")[2]
            found.append(Complaint(keys, text.removeprefix(f"{keys[-1]} ") if keys else text))
    if not found:
        found += _turned_limits(name, values)
    return found + _nhc_complaints(values) if name == nhc.NAME and not found else found


def _nhc_complaints(values: Mapping[str, Any]) -> list[Complaint]:
    found = [Complaint(("lines", index), why) for index, why in wrong_lines(values.get("lines") or ())]
    file = values.get("file") or "/"
    if not file.startswith("/"):
        found.append(Complaint(("file",), f"must be the absolute path of a file on the nodes, got {file!r}"))
    return found


def _pieces(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield each word with the keys that lead to it."""
    if not values:
        yield (), {}
    for key, value in values.items():
        if key == "overrides":
            for code, word in value.items():
                yield (key, str(code)), {key: {code: word}}
        else:
            yield (key,), {key: value}


def _read_one(name: str, values: Mapping[str, Any]) -> None:
    own = parse_settings({name: values})[name]
    if name == group.NAME:
        group_limits(own)
    elif name == kernel_log.NAME:
        kernel_limits(own)
    elif name in CHECKS:
        build_check(name, own)


def _turned_limits(name: str, values: Mapping[str, Any]) -> list[Complaint]:
    """Return what says that a warning comes after what it warns of; the defaults say which way a limit goes."""
    defaults: dict[str, Any] = {row.name: row.default for row in setting_rows(name)} if name in CHECKS else {}
    found = []
    for key in values:
        other = key.replace("warn_", "fatal_", 1)
        if not key.startswith("warn_") or other not in values or other not in defaults:
            continue
        falls = defaults[key] > defaults[other]
        if (values[key] < values[other]) if falls else (values[key] > values[other]):
            way = "at least" if falls else "at most"
            text = f"must be {way} {other} ({values[other]:g}), or it is FATAL before it is WARN; got {values[key]:g}"
            found.append(Complaint((key,), text))
    return found


_USERS = "user."
_USERS_NAME = re.compile(r"user\.[\w-]{1,60}")
_USERS_LIMITS = {"interval_s": (1.0, 86_400.0), "deadline_s": (0.1, 600.0)}


def _users(name: str, values: object, default: Mode) -> Settings:
    """Read the policy of a check that users bring; which there are is known on the node only."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"health.{name}: must be an object of settings")
    own = dict(values)
    mode = _mode(name, own.pop("mode", default))
    overrides = {str(code): _severity(name, code, word) for code, word in (own.pop("overrides", None) or {}).items()}
    for key, value in own.items():
        if key == "damping":
            try:
                own[key] = _damping(value)
            except ValueError as error:
                raise ConfigError(f"health.{name}: {error}") from error
        elif key not in _USERS_LIMITS:
            allowed = (*_USERS_LIMITS, "damping")
            raise ConfigError(f"health.{name}.{key}: there is no such setting{_nearest(key, allowed)}")
        else:
            low, high = _USERS_LIMITS[key]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise ConfigError(f"health.{name}.{key}: must be a number from {low:g} to {high:g}, got {value!r}")
    return Settings(mode, overrides, own)


def policy_of(name: str, settings: Mapping[str, Settings]) -> Settings:
    """Return the policy of one check: its own, or the default one."""
    if name in ELSEWHERE and ELSEWHERE[name].why_act:
        return Settings()
    return settings.get(name) or settings.get(DEFAULT) or Settings()


def _default_mode(values: object) -> Mode:
    if not isinstance(values, Mapping) or set(values) - {"mode"}:
        raise ConfigError(f"health.{DEFAULT}: must be an object with a mode only")
    return _mode(DEFAULT, values.get("mode", Mode.ACT))


def _mode(name: str, word: object) -> Mode:
    try:
        return Mode(str(word))
    except ValueError as error:
        allowed = tuple(mode.value for mode in Mode)
        raise ConfigError(f"health.{name}.mode: must be one of {', '.join(allowed)}, got {word!r}") from error


def _overrides(name: str, data: object) -> dict[str, Severity]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"health.{name}.overrides: must be an object of severities by code")
    known = codes(name)
    out = {}
    for code, word in data.items():
        if not is_code(str(code), known):
            near = _nearest_code(str(code), known, name)
            raise ConfigError(f"health.{name}.overrides.{code}: there is no such code{near}")
        out[str(code)] = _severity(name, code, word)
    return out


def _nearest_code(code: str, known: Collection[str], name: str) -> str:
    number = re.fullmatch(r"(s?)(?:xid)?[\s:_-]*(\d+)", code, re.IGNORECASE)
    if number is not None and "Xid<N>" in known:
        return f"; did you mean {'SXid' if number[1] else 'Xid'}{number[2]}?"
    return _nearest(code, known, see=f"hyperpod checks describe {name}")


def _severity(name: str, code: object, word: object) -> Severity:
    if str(word).lower() not in _SEVERITIES:
        allowed = ", ".join(_SEVERITIES)
        raise ConfigError(f"health.{name}.overrides.{code}: must be one of {allowed}, got {word!r}")
    return Severity[str(word).upper()]


def is_code(code: str, known: Collection[str]) -> bool:
    """Say whether a code is among those that a check declares; ``Xid<N>`` stands for every number."""
    return code in known or re.sub(r"\d+$", "<N>", code) in known


def build_checks(role: Role, settings: Mapping[str, Settings]) -> tuple[Check, ...]:
    """Make the checks of a node with this role.

    Raises:
        ConfigError: if a setting's value does not fit.
    """
    # The controller judges by it; here it is only read, so that a limit that cannot be meant is found.
    group_limits(policy_of(group.NAME, settings))
    out = []
    for name in CHECKS:
        own = policy_of(name, settings)
        if own.mode is Mode.OFF:
            continue
        check = build_check(name, own)
        if role in check.roles:
            out.append(check)
    return tuple(out)


def build_check(name: str, own: Settings = Settings()) -> Check:  # noqa: B008 - a frozen value
    """Make one check with its settings.

    Raises:
        ConfigError: if a setting's value does not fit.
    """
    defaults = {row.name: row.default for row in setting_rows(name)}
    try:
        return cast(Check, CHECKS[name](**{k: _value(k, v, defaults.get(k)) for k, v in own.values.items()}))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"health.{name}: {error}") from error


def group_limits(own: Settings) -> group.Limits:
    """Return when a node's difference from its group counts.

    Raises:
        ConfigError: if a limit does not fit.
    """
    try:
        return group.Limits.from_dict(own.values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"health.{group.NAME}: {error}") from error


def kernel_limits(own: Settings) -> dict[str, Any]:
    """Return the settings of the kernel log, by their names.

    Raises:
        ConfigError: if a limit does not fit.
    """
    defaults = {row.name: row.default for row in setting_rows(kernel_log.NAME)}
    try:
        return {key: _value(key, value, defaults[key]) for key, value in own.values.items()}
    except ValueError as error:
        raise ConfigError(f"health.{kernel_log.NAME}: {error}") from error


def roles(name: str) -> frozenset[Role]:
    """Return where a check runs."""
    if name == group.NAME:
        return WORKERS
    if name in ELSEWHERE:
        return ELSEWHERE[name].roles
    return EVERYWHERE if name == kernel_log.NAME else build_check(name).roles


def place(name: str) -> Place:
    """Return where a check runs."""
    if name == group.NAME:
        return Place.CONTROLLER
    return ELSEWHERE[name].place if name in ELSEWHERE else Place.NODE


def rhythm(name: str) -> str:
    """Say how often is looked at what the runner does not start."""
    return ELSEWHERE[name].rhythm if name in ELSEWHERE else "at once"


def not_by_hand(name: str) -> str:
    """Say why a check cannot be run by hand, and what to do instead; empty when it can."""
    if name == group.NAME:
        return "the controller compares the nodes of each group: hyperpod why NODE shows its findings"
    return ELSEWHERE[name].by_hand if name in ELSEWHERE else ""


def settings_elsewhere(name: str) -> str:
    """Say what a specification may set where a check has no settings of its own."""
    made = ELSEWHERE[name]
    if made.why_act:
        return f"It has no settings; {made.why_act}."
    return f"It has a Mode; its settings are in {made.settings}." if made.settings else "It has a Mode, no settings."


def observe_only(settings: Mapping[str, Settings]) -> frozenset[str]:
    """Return the names of checks that may not take the node out of service."""
    return frozenset(name for name in names() if policy_of(name, settings).mode is Mode.OBSERVE)


def overrides(settings: Mapping[str, Settings]) -> Mapping[str, Mapping[str, Severity]]:
    """Return the severities that the configuration gives to codes, by check."""
    return {name: own.overrides for name, own in settings.items() if own.overrides}


def _value(key: str, value: object, default: object) -> object:
    """Return a setting's value in the form that the check wants."""
    if key == "damping":
        return _damping(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false, got {value!r}")
    elif isinstance(default, (int, float)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{key} must be a number{_unit(key)}, got {value!r}")
        if value < 0:
            raise ValueError(f"{key} must not be negative, got {value!r}")
        if key == "deadline_s" and not _LEAST_DEADLINE_S <= value <= _MOST_DEADLINE_S:
            raise ValueError(f"{key} must be from {_LEAST_DEADLINE_S:g} to {_MOST_DEADLINE_S:g} seconds, got {value!r}")
        if key.endswith("_percent") and value > 100:
            # A limit above all there is would drain every node at once.
            raise ValueError(f"{key} must be from 0 to 100, got {value!r}")
    elif isinstance(default, (tuple, list)):
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"{key} must be a list, got {value!r}")
        # A list that is empty by default holds texts: names, folders, lines.
        if all(isinstance(item, str) for item in default) and not all(isinstance(item, str) for item in value):
            raise ValueError(f"{key} must be a list of texts, got {value!r}")
    elif isinstance(default, str) and not isinstance(value, str):
        raise ValueError(f"{key} must be a text, got {value!r}")
    return tuple(value) if isinstance(value, list) else value


_LEAST_DEADLINE_S, _MOST_DEADLINE_S = 0.1, 600.0
_UNITS = {"_s": " of seconds", "_percent": " from 0 to 100, in percent", "_bytes": " of bytes", "_mb": " of MB"}


def _unit(key: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), "")


def _damping(value: object) -> Damping:
    if isinstance(value, Damping):
        return value
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(type(n) is int for n in value):
        raise ValueError(f"damping must be [n, m], got {value!r}")
    needed, of = value
    if not 1 <= needed <= of <= 100:
        raise ValueError("damping must be [n, m] with 1 <= n <= m <= 100")
    return Damping(needed, of)


_MOST_KNOWN = 12
"""So many words are listed in an error; more would hide what it says."""


def _nearest(word: str, known: Collection[str], most: int = 1, *, see: str = "hyperpod checks list") -> str:
    """Return the end of a sentence about a word that is not known: the nearest ones, all, or where they are listed."""
    by_plain: dict[str, str] = {}
    for name in known:
        by_plain.setdefault(_plain(name), name)
    close = difflib.get_close_matches(_plain(word), by_plain, n=most)
    if close:
        return f"; did you mean {' or '.join(by_plain[one] for one in close)}?"
    return f"; known: {', '.join(known)}" if len(known) <= _MOST_KNOWN else f"; '{see}' has all"


def _plain(word: str) -> str:
    return word.casefold().replace("-", "").replace("_", "")
