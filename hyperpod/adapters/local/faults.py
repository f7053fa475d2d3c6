"""Faults on purpose: breaks a local node the way machines break, and mends it again.

Owns the mechanics of ``hyperpod inject``. Only nodes of the local provider: they are ours to break. What can be is
done from outside (link, power, freezer), so that the node's own programs notice nothing before the fault does.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hyperpod.adapters.local import gpu_faults, machine_faults, neuron_faults
from hyperpod.adapters.local.fault_kinds import argument_to_undo, known_fault, whole_argument
from hyperpod.adapters.local.podman import Container, Podman
from hyperpod.adapters.local.provider import LocalProvider
from hyperpod.errors import CommandError, InvalidState, NotFound, ProviderError, UsageError
from hyperpod.ports.process import ProcessRunner

_KMSG = "/var/log/hyperpod/kmsg"
_COMMENT = "hyperpod-fault"
_TIMEOUT_S = 20.0


class LocalFaults:
    """Injects and undoes faults on nodes of local clusters. Injecting twice is the same as once."""

    def __init__(
        self,
        provider: LocalProvider,
        processes: ProcessRunner,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._processes = processes
        self._podman = Podman(processes)
        self._monotonic = monotonic

    def inject(self, cluster: str, node: str, fault: str, argument: str = "") -> str:
        """Cause a fault and return what was done, in a sentence.

        Raises:
            UsageError: Unknown fault, or a wrong argument. NotFound: No such node. InvalidState: It is not running.
        """
        argument = whole_argument(fault, argument)
        container = self._running(cluster, node)
        _refuse_if_frozen(container, fault, f"break {node}")
        actions: Mapping[str, Callable[[Container, str], str]] = {
            "power-off": self._power_off,
            "kernel-line": self._kernel_line,
            "kill-task": self._kill_task,
            "kill-slurmd": lambda box, _: self._kill_unit(box, "slurmd.service"),
            "kill-agent": lambda box, _: self._kill_unit(box, "hyperpod-agent.service"),
            "network-cut": self._network_cut,
            "network-slow": self._network_slow,
            "disk-full": self._disk_full,
            "read-only": self._read_only,
            "fs-hang": self._fs_hang,
            "clock-skew": self._clock_skew,
            "freeze": self._freeze,
            "freeze-daemon": lambda box, name: machine_faults.freeze_daemon(self._in(box), name),
            "link-down": self._link_down,
            "link-flap": lambda box, times: machine_faults.flap_link(self._in(box), times),
            "packet-loss": self._packet_loss,
            "memory-pressure": lambda box, size: machine_faults.eat_memory(self._in(box), size),
            "cpu-hog": lambda box, count: machine_faults.hog_processors(self._in(box), count),
            "sysfs": lambda box, value: machine_faults.put_value(self._in(box), value),
            "gpus": self._gpus,
            "gpu-fault": self._gpu_fault,
            "neuron": self._neuron,
            "neuron-fault": self._neuron_fault,
        }
        return f"{node}: {actions[fault](container, argument)}"

    def undo(self, cluster: str, node: str, fault: str, argument: str = "") -> None:
        """Take a fault back; one that is not there (any more), or a node that was replaced, is done.

        Raises:
            UsageError: Unknown fault, or a wrong argument. InvalidState: It cannot be taken back (now).
        """
        argument = argument_to_undo(fault, argument)
        container = self._container(cluster, node)
        if container is None:
            return
        if fault == "power-off":
            self._provider.power_on(container.labels["hyperpod.instance-id"])
        elif fault == "freeze":
            if container.state == "paused":
                self._podman.run("unpause", container.id)
        elif container.state in ("running", "paused"):
            _refuse_if_frozen(container, fault, f"undo {fault} on {node}")
            self._undo_inside(container, fault, argument)

    def _undo_inside(self, container: Container, fault: str, argument: str) -> None:
        if fault in ("kill-slurmd", "kill-agent"):
            unit = "slurmd.service" if fault == "kill-slurmd" else "hyperpod-agent.service"
            self._exec(container, "rm", "-f", f"{_drop_ins(unit)}/zz-dead.conf")
            self._exec(container, "systemctl", "daemon-reload")
            self._exec(container, "systemctl", "start", "--no-block", unit)
        elif fault == "network-cut":
            self._mend_link(container)
        elif fault == "network-slow":
            self._in_network(container, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        elif fault in ("disk-full", "read-only", "fs-hang"):
            if fault == "fs-hang":
                self._exec(container, "pkill", "-CONT", "-x", "bindfs", check=False)
            # Never the file system below: the fault may be gone already.
            if self._is_on_top(container, fault, argument):
                self._exec(container, "umount", "--lazy", argument, check=False)
        elif fault == "clock-skew":
            for unit in _CLOCK_UNITS:
                self._exec(container, "rm", "-rf", _drop_ins(unit))
            self._reload_clock_units(container)
        elif fault == "gpu-fault":
            self._exec(container, "rm", "-f", gpu_faults.FAULT_STATE)
        elif fault == "neuron-fault":
            self._mend_neuron(container, argument)
        elif fault == "neuron":
            self._remove_neuron_tree(container)
            programs = (f"{neuron_faults.PROGRAMS}/{tool}" for tool in neuron_faults.TOOLS)
            self._exec(container, "rm", "-f", neuron_faults.MACHINE_STATE, neuron_faults.TREE, *programs)
            self._exec(container, "systemctl", "restart", "--no-block", _AGENT)
        elif fault == "gpus":
            files = (gpu_faults.LIBRARY, gpu_faults.MACHINE_STATE, gpu_faults.FAULT_STATE)
            self._exec(container, "rm", "-f", *files)
            self._exec(container, "ldconfig")
            self._exec(container, "systemctl", "restart", "--no-block", _AGENT)
        else:
            self._undo_machine_fault(container, fault, argument)

    def _undo_machine_fault(self, container: Container, fault: str, argument: str) -> None:
        run = self._in(container)
        if fault == "freeze-daemon":
            machine_faults.thaw_daemon(run, argument)
        elif fault == "link-down":
            self._set_link(container, "up")
        elif fault == "packet-loss":
            for rule in machine_faults.lost_rules(self._filter_rules(container)):
                self._in_network(container, "iptables", "-w", "-D", *rule, check=False)
        elif fault == "sysfs":
            machine_faults.take_values_back(run, argument)
        elif fault in _FAULT_UNITS:
            machine_faults.stop_unit(run, _FAULT_UNITS[fault])

    # --- from outside

    def _power_off(self, container: Container, _argument: str) -> str:
        # A real machine sends nothing when its power fails; without this its peers would get a FIN from the kernel.
        self._cut_link(container)
        self._provider.power_off(container.labels["hyperpod.instance-id"])
        return "power is off"

    def _network_cut(self, container: Container, _argument: str) -> str:
        self._cut_link(container)
        return "its link is cut"

    def _network_slow(self, container: Container, rate: str) -> str:
        self._in_network(
            container, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf",
            "rate", rate, "burst", "16kbit", "latency", "800ms",
        )  # fmt: skip
        return f"its link carries {rate} only"

    def _link_down(self, container: Container, _argument: str) -> str:
        self._set_link(container, "down")
        return "its interface has no carrier"

    def _set_link(self, container: Container, state: str) -> None:
        """Switch the other end of the node's cable: the node keeps its addresses and routes."""
        index = self._exec(container, "cat", "/sys/class/net/eth0/iflink").strip()
        listed = self._processes.run(["ip", "-o", "link", "show"], timeout_s=_TIMEOUT_S).stdout
        name = peer_name(listed, index)
        if name is None:
            raise ProviderError(f"the other end of the node's cable (interface {index}) is not on this machine")
        self._processes.run(["ip", "link", "set", "dev", name, state], timeout_s=_TIMEOUT_S)

    def _packet_loss(self, container: Container, percent: str) -> str:
        rules = machine_faults.loss_rules(percent)
        for rule in machine_faults.lost_rules(self._filter_rules(container)):
            self._in_network(container, "iptables", "-w", "-D", *rule, check=False)
        for rule in rules:
            self._in_network(container, "iptables", "-w", "-I", *rule)
        return f"its link loses {percent.removesuffix('%')} % of the packets"

    def _filter_rules(self, container: Container) -> str:
        command = ["nsenter", "--target", str(container.pid), "--net", "iptables", "-w", "-S"]
        return self._processes.run(command, timeout_s=_TIMEOUT_S, check=False).stdout

    def _in(self, container: Container) -> machine_faults.Exec:
        def run(*argv: str, check: bool = True) -> str:
            return self._exec(container, *argv, check=check)

        return run

    def _freeze(self, container: Container, _argument: str) -> str:
        if container.state != "paused":
            self._podman.run("pause", container.id)
        return "every process stands still"

    def _cut_link(self, container: Container) -> None:
        for chain, direction in (("INPUT", "-i"), ("OUTPUT", "-o")):
            rule = [chain, "!", direction, "lo", "-m", "comment", "--comment", _COMMENT, "-j", "DROP"]
            if self._in_network(container, "iptables", "-w", "-C", *rule, check=False) != 0:
                self._in_network(container, "iptables", "-w", "-I", *rule)

    def _mend_link(self, container: Container) -> None:
        for chain, direction in (("INPUT", "-i"), ("OUTPUT", "-o")):
            rule = [chain, "!", direction, "lo", "-m", "comment", "--comment", _COMMENT, "-j", "DROP"]
            self._in_network(container, "iptables", "-w", "-D", *rule, check=False)

    def _in_network(self, container: Container, *argv: str, check: bool = True) -> int:
        command = ["nsenter", "--target", str(container.pid), "--net", *argv]
        try:
            return self._processes.run(command, timeout_s=_TIMEOUT_S, check=check).code
        except CommandError as error:
            last = (error.stderr_tail.strip().splitlines() or [error.message])[-1]
            raise ProviderError(f"{argv[0]} in the node's network: {last}", hint="hyperpod doctor") from error

    # --- inside

    def _kernel_line(self, container: Container, text: str) -> str:
        last = self._exec(container, "tail", "-n", "1", _KMSG)
        self._podman.exec(
            container.id,
            ["tee", "-a", _KMSG],
            timeout_s=_TIMEOUT_S,
            input=kernel_record(text, sequence=next_sequence(last), monotonic_us=int(self._monotonic() * 1e6)),
        )
        return f"its kernel said: {text}"

    def _kill_task(self, container: Container, job: str) -> str:
        listed = self._podman.exec(
            container.id, ["scontrol", "listpids", *([job] if job else [])], timeout_s=_TIMEOUT_S, check=False
        )
        task = choose_task(listed.stdout)
        if task is None:
            which = f"job {job}" if job else "any job"
            raise InvalidState("kill a task", f"without a task of {which}", hint="squeue shows where jobs run")
        self._exec(container, "kill", "-KILL", str(task.pid))
        return f"killed process {task.pid} of job {task.job_id} step {task.step_id} task {task.rank}"

    def _kill_unit(self, container: Container, unit: str) -> str:
        if not self._is_active(container, unit) and not self._has_file(container, f"{_drop_ins(unit)}/zz-dead.conf"):
            raise InvalidState(f"kill {unit}", f"not running on {container.labels.get('hyperpod.node', 'the node')}")
        # systemd must not start it again, and a mask below /run does not cover a unit below /etc. Only the main
        # process is killed: the jobs are not the fault.
        # Named to be read last: units have drop-ins of their own that say Restart=always.
        file, text = f"{_drop_ins(unit)}/zz-dead.conf", r"[Unit]\nRefuseManualStart=yes\n[Service]\nRestart=no\n"
        never = f"mkdir -p {_drop_ins(unit)} && printf '{text}' >{file}"
        self._exec(container, "sh", "-c", never)
        self._exec(container, "systemctl", "daemon-reload")
        self._exec(container, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit, check=False)
        return f"{unit} is dead"

    def _disk_full(self, container: Container, folder: str) -> str:
        self._check_is_folder(container, folder)
        # Always one of our own: what is mounted there already may be as large as this machine's memory or disk.
        if not self._is_on_top(container, "disk-full", folder):
            self._exec(container, "mount", "-t", "tmpfs", "-o", "size=64k,mode=0755", _COMMENT, folder)
        self._exec(container, "dd", "if=/dev/zero", f"of={folder}/.{_COMMENT}", "bs=4k", check=False)
        return f"no space is left in {folder}"

    def _read_only(self, container: Container, folder: str) -> str:
        self._check_is_folder(container, folder)
        if not self._is_on_top(container, "read-only", folder):
            self._exec(container, "mount", "--bind", folder, folder)
        self._exec(container, "mount", "-o", "remount,bind,ro", folder)
        return f"{folder} is read-only"

    def _fs_hang(self, container: Container, folder: str) -> str:
        self._check_is_folder(container, folder)
        # A pass-through file system on top, whose server then stands still: what asks it now, waits.
        if not self._is_on_top(container, "fs-hang", folder):
            self._exec(container, "bindfs", "-o", "nonempty", folder, folder)
        self._exec(container, "pkill", "-STOP", "-x", "bindfs")
        return f"{folder} does not answer any more"

    def _clock_skew(self, container: Container, seconds: str) -> str:
        offset = int(seconds)
        # All nodes share this machine's clock, so the programs that compare clocks are shown another one.
        drop_in = (
            "[Service]\nEnvironment=LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 "
            f"FAKETIME={offset:+d}s FAKETIME_DONT_FAKE_MONOTONIC=1\n"
        )
        for unit in _CLOCK_UNITS:
            folder = f"/run/systemd/system/{unit}.d"
            self._exec(container, "mkdir", "-p", folder)
            self._podman.exec(container.id, ["tee", f"{folder}/fault.conf"], timeout_s=_TIMEOUT_S, input=drop_in)
        self._reload_clock_units(container)
        return f"its clock is wrong by {offset:+d} s"

    def _gpus(self, container: Container, count: str) -> str:
        state = gpu_faults.machine_state(count)
        flags = ["-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"]
        self._exec(container, "gcc", *flags, gpu_faults.SOURCE, "-o", gpu_faults.LIBRARY)
        self._exec(container, "ldconfig")
        self._write(container, gpu_faults.MACHINE_STATE, state)
        # The agent has looked for a library and found none; it looks again only after minutes.
        self._exec(container, "systemctl", "restart", "--no-block", _AGENT)
        return f"it has {count} test GPUs"

    def _gpu_fault(self, container: Container, text: str) -> str:
        lines = gpu_faults.fault_lines(text)
        now = self._exec(container, "cat", gpu_faults.FAULT_STATE, check=False)
        now = now or self._exec(container, "cat", gpu_faults.MACHINE_STATE, check=False)
        if not now:
            node = container.labels.get("hyperpod.node", "NODE")
            raise InvalidState("break a GPU", "without test GPUs", hint=f"hyperpod inject gpus {node}")
        self._write(container, gpu_faults.FAULT_STATE, lines + now)
        return f"its GPUs have the fault {text}"

    def _neuron(self, container: Container, count: str) -> str:
        for tool in neuron_faults.TOOLS:
            source, program = f"{neuron_faults.SOURCES}/{tool}", f"{neuron_faults.PROGRAMS}/{tool}"
            self._exec(container, "install", "-m", "755", source, program)
        self._remove_neuron_tree(container)
        self._write(container, neuron_faults.MACHINE_STATE, neuron_faults.machine_state(count))
        self._write(container, neuron_faults.TREE, neuron_faults.tree(count))
        self._exec(container, "systemd-tmpfiles", "--create", neuron_faults.TREE)
        # As with GPUs: the agent has found no device, and looks again only after minutes.
        self._exec(container, "systemctl", "restart", "--no-block", _AGENT)
        return f"it has {count} test Neuron devices; the agent counts what is wrong after its first look, within 30 s"

    def _remove_neuron_tree(self, container: Container) -> None:
        roots = (f"{folder}/{neuron_faults.ROOT}" for folder in (machine_faults.SYSFS, machine_faults.BEFORE))
        self._exec(container, "rm", "-rf", *roots, neuron_faults.FAULT_STATE)

    def _neuron_fault(self, container: Container, text: str) -> str:
        device, fault = neuron_faults.fault_of(text)
        base = f"{neuron_faults.ROOT}/neuron{device}"
        if self._exec_code(container, "test", "-d", f"{machine_faults.SYSFS}/{base}") != 0:
            node = container.labels.get("hyperpod.node", "NODE")
            hint = f"hyperpod inject neuron {node}"
            raise InvalidState("break a Neuron device", f"without a test device {device}", hint=hint)
        run = self._in(container)
        for path, value in fault.values.items():
            machine_faults.put_value(run, f"{base}/{path}={value}")
        if fault.state:
            now = json.loads(self._exec(container, "cat", neuron_faults.MACHINE_STATE))
            self._write(container, neuron_faults.FAULT_STATE, json.dumps({**now, **fault.state}))
        if fault.is_gone:
            self._exec(container, "rm", "-rf", f"{machine_faults.SYSFS}/{base}")
        return f"its Neuron devices have the fault {text}"

    def _mend_neuron(self, container: Container, text: str) -> None:
        device, fault = neuron_faults.fault_of(text)
        for path in fault.values:
            machine_faults.take_values_back(self._in(container), f"{neuron_faults.ROOT}/neuron{device}/{path}")
        self._exec(container, "rm", "-f", neuron_faults.FAULT_STATE)
        # Makes what is missing, and changes nothing that is there.
        self._exec(container, "systemd-tmpfiles", "--create", neuron_faults.TREE, check=False)

    def _write(self, container: Container, path: str, text: str) -> None:
        self._exec(container, "mkdir", "-p", path.rpartition("/")[0])
        self._podman.exec(container.id, ["tee", f"{path}.new"], timeout_s=_TIMEOUT_S, input=text)
        self._exec(container, "mv", f"{path}.new", path)

    def _reload_clock_units(self, container: Container) -> None:
        self._exec(container, "systemctl", "daemon-reload")
        self._exec(container, "systemctl", "restart", "--no-block", *_CLOCK_UNITS)

    def _check_is_folder(self, container: Container, folder: str) -> None:
        if self._exec_code(container, "test", "-d", folder) != 0:
            raise UsageError(f"{container.labels.get('hyperpod.node', 'the node')} has no folder {folder}")

    def _is_active(self, container: Container, unit: str) -> bool:
        return self._exec_code(container, "systemctl", "is-active", "--quiet", unit) == 0

    def _has_file(self, container: Container, path: str) -> bool:
        return self._exec_code(container, "test", "-e", path) == 0

    def _is_on_top(self, container: Container, fault: str, folder: str) -> bool:
        """Say whether the file system that is seen at a folder is the one that this fault has put there."""
        listed = self._exec(container, "cat", "/proc/self/mounts")
        return is_fault_on_top(listed, fault, folder)

    def _exec(self, container: Container, *argv: str, check: bool = True) -> str:
        try:
            return self._podman.exec(container.id, argv, timeout_s=_TIMEOUT_S, check=check).stdout
        except CommandError as error:
            raise ProviderError(f"the fault could not be made: {error.message}") from error

    def _exec_code(self, container: Container, *argv: str) -> int:
        return self._podman.exec(container.id, argv, timeout_s=_TIMEOUT_S, check=False).code

    def _container(self, cluster: str, node: str) -> Container | None:
        found = self._podman.containers(f"hyperpod.cluster={cluster}", f"hyperpod.node={node}")
        return found[0] if found else None

    def _running(self, cluster: str, node: str) -> Container:
        container = self._container(cluster, node)
        if container is None:
            raise NotFound(f"cluster {cluster} has no node {node}", hint="hyperpod list-nodes shows them")
        if container.state not in ("running", "paused"):
            raise InvalidState(f"break {node}", f"{container.state} already")
        return container


def _refuse_if_frozen(container: Container, fault: str, what: str) -> None:
    if container.state == "paused" and not known_fault(fault).is_outside:
        node = container.labels.get("hyperpod.node", "NODE")
        raise InvalidState(what, "frozen", hint=f"hyperpod inject freeze {node} --undo")


def _drop_ins(unit: str) -> str:
    return f"/run/systemd/system/{unit}.d"


_FAULT_UNITS = {
    "link-flap": "hyperpod-fault-flap",
    "memory-pressure": "hyperpod-fault-memory",
    "cpu-hog": "hyperpod-fault-hog",
}

_AGENT = "hyperpod-agent.service"
_CLOCK_UNITS = ("munge.service", _AGENT)


def is_fault_on_top(mounts: str, fault: str, folder: str) -> bool:
    """Say whether the last file system mounted at a folder is a fault's, by the text of ``/proc/self/mounts``."""
    lines = [line.split() for line in mounts.splitlines()]
    seen = [words for words in lines if len(words) >= 4 and words[1] == (folder.rstrip("/") or "/")]
    if not seen:
        return False
    source, _, kind, options = seen[-1][:4]
    if fault == "disk-full":
        return source == _COMMENT
    return "ro" in options.split(",") if fault == "read-only" else kind.startswith("fuse")


@dataclass(frozen=True)
class Task:
    """A process of a job's step, as ``scontrol listpids`` names it."""

    pid: int
    job_id: int
    step_id: str
    rank: int


def kernel_record(text: str, *, sequence: int, monotonic_us: int) -> str:
    """Return a line as /dev/kmsg gives it: ``prefix,seq,usec,flags;text``, from the kernel, level error."""
    return f"3,{sequence},{monotonic_us},-;{text}\n"


def next_sequence(last_record: str) -> int:
    """Return the number after that of the last record; 1 for an empty log."""
    fields = last_record.partition(";")[0].split(",")
    return int(fields[1]) + 1 if len(fields) >= 3 and fields[1].isdigit() else 1


def peer_name(listing: str, index: str) -> str | None:
    """Return the name of the interface with this number in ``ip -o link show``; None when it is not there."""
    for line in listing.splitlines():
        number, _, rest = line.partition(": ")
        if number.strip() == index and rest:
            return rest.partition(":")[0].partition("@")[0]
    return None


def choose_task(listing: str) -> Task | None:
    """Return the task to kill from ``scontrol listpids``: the first rank of a real step, else of a batch script."""
    tasks = []
    for line in listing.splitlines():
        words = line.split()
        if len(words) < 5 or not (words[0].isdigit() and words[1].isdigit()):
            continue
        with contextlib.suppress(ValueError):
            tasks.append(Task(int(words[0]), int(words[1]), words[2], int(words[4])))
    tasks.sort(key=lambda task: (not task.step_id.isdigit(), task.job_id, task.step_id, task.rank, task.pid))
    return tasks[0] if tasks else None
