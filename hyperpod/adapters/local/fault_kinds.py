"""The kinds of faults that ``hyperpod inject`` and rehearsals know, and what may be given with each. Pure.

Owns names, defaults and the check of every argument, so that a wrong one is refused before anything is touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hyperpod.adapters.local import gpu_faults, machine_faults, neuron_faults
from hyperpod.errors import InvalidState, UsageError

_MOST_SKEW_S = 10 * 365 * 86400
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:[kmgt]?(?:bit|bps))", re.IGNORECASE)
_NO_FOLDERS = frozenset({"/", "/proc", "/sys", "/dev", "/run", "/etc", "/usr", "/opt"})


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        argument: What may or must be given with it; nothing may when it is empty.
        default: Used when nothing is given; None when something must be.
        check: Raises UsageError when an argument is none.
        is_outside: It is caused and undone from outside, so also while every process of the node stands still.
    """

    name: str
    summary: str
    argument: str = ""
    default: str | None = ""
    can_undo: bool = True
    check: Callable[[str], object] = str
    is_outside: bool = False


def known_fault(name: str) -> Fault:
    """Return the fault of this name.

    Raises:
        UsageError: There is none; the names are listed.
    """
    fault = FAULTS.get(name)
    if fault is None:
        raise UsageError(f"unknown fault {name!r}; known are {', '.join(FAULTS)}")
    return fault


def whole_argument(name: str, argument: str) -> str:
    """Return the argument with which a fault is caused: the given one when it fits, or the default.

    Raises:
        UsageError: Unknown fault, an argument that does not fit, or none where one is needed.
    """
    kind = known_fault(name)
    if not kind.argument and argument:
        raise UsageError(f"{name} takes no argument, got {argument!r}")
    if not argument:
        if kind.default is None:
            raise UsageError(f"{name} needs {kind.argument}", hint=f"hyperpod inject {name} NODE {kind.argument}")
        argument = kind.default
    if argument:
        kind.check(argument)
    return argument


def argument_to_undo(name: str, argument: str) -> str:
    """Return the argument with which a fault is taken back.

    Raises:
        UsageError: Unknown fault, or an argument that does not fit.
        InvalidState: This kind of fault cannot be taken back.
    """
    kind = known_fault(name)
    if not kind.can_undo:
        raise InvalidState(f"undo {name}", "something that has happened")
    # A file of the device tree is taken back by its name alone.
    return argument if name == "sysfs" else whole_argument(name, argument)


def _kernel_line(text: str) -> None:
    if not text.isprintable():
        raise UsageError("a kernel line is one line of printable text")


def _job(text: str) -> None:
    if not machine_faults.is_number(text):
        raise UsageError(f"a job is named by its number, got {text!r}")


def _folder(text: str) -> None:
    if not text.startswith("/") or ".." in text.split("/") or (text.rstrip("/") or "/") in _NO_FOLDERS:
        raise UsageError(f"a folder of the node must be given by its whole path, and not a system's, got {text!r}")


def _rate(text: str) -> None:
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise UsageError(f"a rate is needed, like 256kbit or 10mbit, got {text!r}")


def _skew(text: str) -> None:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text) or abs(int(text)) > _MOST_SKEW_S:
        raise UsageError(f"a clock is wrong by a number of seconds (ten years at most), got {text!r}")


FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("power-off", "the machine loses power: no shutdown, no last packet", is_outside=True),
        Fault("kernel-line", "the kernel logs a line", "TEXT", None, can_undo=False, check=_kernel_line),
        Fault("kill-task", "one task of a job is killed (SIGKILL)", "JOB", "", can_undo=False, check=_job),
        Fault("kill-slurmd", "slurmd dies and stays dead; its jobs live on"),
        Fault("kill-agent", "the hyperpod agent dies and stays dead"),
        Fault("network-cut", "the node's link carries nothing any more; its programs live on", is_outside=True),
        Fault("network-slow", "the node's link is slow", "RATE", "256kbit", check=_rate, is_outside=True),
        Fault("disk-full", "no space is left below a folder", "FOLDER", "/var/spool/slurmd", check=_folder),
        Fault("read-only", "a file system is read-only", "FOLDER", "/var/spool/slurmd", check=_folder),
        Fault("fs-hang", "a shared file system does not answer any more", "FOLDER", "/fsx", check=_folder),
        Fault("clock-skew", "the clock of agent and munge is wrong by so much", "SECONDS", "600", check=_skew),
        Fault("freeze", "every process stands still, the machine looks alive from outside", is_outside=True),
        Fault(
            "freeze-daemon",
            f"one daemon stands still, its unit stays active ({', '.join(machine_faults.DAEMONS)})",
            "DAEMON",
            "slurmd",
            check=machine_faults.unit_of,
        ),
        Fault("link-down", "the node's interface loses its carrier; addresses and routes stay"),
        Fault(
            "link-flap",
            "the node's link goes down and comes up again and again",
            "DOWN_S,UP_S",
            "3,10",
            check=machine_faults.flap_times,
        ),
        Fault(
            "packet-loss",
            "the node's link loses a share of all packets",
            "PERCENT",
            "10",
            check=machine_faults.loss_rules,
            is_outside=True,
        ),
        Fault("memory-pressure", "a process holds much of the memory", "SIZE", "512M", check=machine_faults.size_mib),
        Fault("cpu-hog", "loops take so many processors", "COUNT", "2", check=machine_faults.loop_count),
        Fault(
            "sysfs",
            "a file of the node's device tree (counters, states of links) says something",
            "PATH=VALUE",
            None,
            check=machine_faults.path_and_value,
        ),
        Fault(
            "gpus", "the node gets test GPUs: a library in NVML's place", "COUNT", "8", check=gpu_faults.machine_state
        ),
        Fault(
            "gpu-fault",
            f"something is wrong with a test GPU ({', '.join(gpu_faults.WORDS)})",
            "WHAT[:GPU]",
            "reset:0",
            check=gpu_faults.fault_lines,
        ),
        Fault(
            "neuron",
            "the node gets test Neuron devices: a device tree, and tools in place of Neuron's",
            "COUNT",
            "16",
            check=neuron_faults.machine_state,
        ),
        Fault(
            "neuron-fault",
            f"something is wrong with a test Neuron device ({', '.join(neuron_faults.WORDS)})",
            "WHAT[:DEVICE]",
            "repairable:0",
            check=neuron_faults.fault_of,
        ),
    )
}
