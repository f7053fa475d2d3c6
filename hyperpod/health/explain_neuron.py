"""What the Neuron tools and runtime say. Pure: lines in, records out. Only increases count, totals never."""

from __future__ import annotations

from hyperpod.health.parse_neuron import (
    ECC_REPAIRABLE,
    ECC_UNCORRECTED,
    HARDWARE_ERRORS,
    RUNTIME_STATUSES,
    NeuronReport,
    increases,
    parse_neuron_ls,
    parse_neuron_monitor,
    runtime_status,
)
from hyperpod.health.record import Record, Word, sentence, word_of

_JOBS_LOG = (
    "from a job's log, where users write: the agent takes it as a hint who ended the job, and goes by the device's own "
    "counters"
)
_PROGRAMS = {1002: "bad input", 1003: "numerical error", 1004: "execution error", 1006: "access out of bounds"}


class NeuronExplainer:
    """Explains ``neuron-monitor``, ``neuron-ls`` and statuses of the runtime.

    ``risen`` are the devices (``nd3``) whose hardware counters rose in this text.
    """

    def __init__(self) -> None:
        self.risen: set[str] = set()
        self._before: NeuronReport | None = None
        self._hardware: set[int] = set()

    def monitor(self, number: int, text: str) -> list[Record] | None:
        """Take one report of ``neuron-monitor``; None when it is not one."""
        report = parse_neuron_monitor(text)
        if report is None:
            return None
        out = []
        if report.problem:
            why = f"neuron-monitor could not tell: {report.problem}"
            out.append(
                Record(number, "neuron", "NeuronToolFailed", "", Word.UNKNOWN, sentence(why, "nothing of the hardware"))
            )
        before = self._before
        if before is None:
            out += self._totals(number, report)
        else:
            out += self._counters(number, before, report)
            out += self._executions(number, before, report)
        self._before = NeuronReport(
            report.devices,
            report.cores_per_device,
            report.counters or (before.counters if before else {}),
            report.errors or (before.errors if before else {}),
        )
        return out

    def _totals(self, number: int, report: NeuronReport) -> list[Record]:
        """A total alone says nothing of now; people want to know why it does not count."""
        out = []
        for device, counters in sorted(report.counters.items()):
            found = [f"{n} {v}" for n, v in counters.items() if v and n in ECC_UNCORRECTED | ECC_REPAIRABLE]
            if found:
                why = f"{', '.join(found)} since the driver's start"
                note = "a total; only an increase between two reports counts"
                out.append(Record(number, "neuron", "NeuronTotals", f"nd{device}", Word.OK, sentence(why, note)))
        return out

    def _counters(self, number: int, before: NeuronReport, report: NeuronReport) -> list[Record]:
        out = []
        for device, counters in sorted(report.counters.items()):
            rose = increases(before.counters.get(device, {}), counters)
            name = f"nd{device}"
            for kinds, code, word, what in (
                (ECC_UNCORRECTED, "NeuronMemoryUncorrected", Word.REPLACE, "uncorrectable memory errors"),
                (ECC_REPAIRABLE, "NeuronMemoryRepairable", Word.REBOOT, "memory errors that a reset repairs"),
            ):
                found = {n: v for n, v in rose.items() if n in kinds}
                if found:
                    if len(self.risen) < 1024:
                        self.risen.add(name)
                    text = f"new {what}: {', '.join(f'{n} +{v}' for n, v in found.items())}"
                    out.append(Record(number, "neuron", code, name, word, text))
        return out

    def _executions(self, number: int, before: NeuronReport, report: NeuronReport) -> list[Record]:
        out = []
        for pid, errors in sorted(report.errors.items()):
            rose = increases(before.errors.get(pid, dict.fromkeys(errors, 0)), errors)
            hardware = {n: v for n, v in rose.items() if n in HARDWARE_ERRORS}
            others = {n: v for n, v in rose.items() if n not in HARDWARE_ERRORS}
            if hardware:
                is_again = bool(self._hardware)
                if len(self._hardware) < 1024:
                    self._hardware.add(number)
                text = "executions ended with a hardware error"
                note = "" if is_again else "a reboot when it comes again within an hour"
                word = Word.REBOOT if is_again else Word.WARN
                out.append(Record(number, "neuron", "NeuronHardwareErrors", "", word, sentence(text, note)))
            if others:
                what = ", ".join(f"{n} +{v}" for n, v in others.items())
                text = f"execution errors of the program with pid {pid}: {what}"
                out.append(Record(number, "neuron", "NeuronProgramErrors", "", Word.APP, text))
        return out

    def ls(self, number: int, text: str) -> list[Record] | None:
        """Take a whole ``neuron-ls -j``; None when it is not one."""
        devices = parse_neuron_ls(text)
        if devices is None:
            return None
        if devices:
            return []
        why = "neuron-ls lists no device; how many there should be is not in the text"
        return [Record(number, "neuron", "NeuronToolFailed", "", Word.UNKNOWN, why)]

    def runtime(self, number: int, text: str) -> list[Record]:
        """Look for a status of the runtime in a line of a job's log."""
        told = runtime_status(text)
        if told is None:
            return []
        status, name = told
        if status in _PROGRAMS:
            why = f"the runtime's status {status}: {_PROGRAMS[status]}, the program's"
            return [Record(number, "neuron_runtime", f"Nrt{status}", name, Word.APP, why)]
        known = RUNTIME_STATUSES.get(status)
        if known is None:
            return []
        word = word_of(known.severity, known.action, known.whose)
        why = sentence(f"the runtime's status {status} ({known.name}): {known.accuses}", known.needs, _JOBS_LOG)
        return [Record(number, "neuron_runtime", f"Nrt{status}", name, word, why)]

    def end(self) -> list[Record]:
        """Nothing is left."""
        return []
