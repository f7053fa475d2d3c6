"""What the output of ``nvidia-smi`` means. Pure: lines in, records out.

One look proves less than the agent's several: the verdict is what the agent would come to if the next looks said the
same, and the reason names how many it waits for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from hyperpod.health.parse_nvidia_smi import SmiReader
from hyperpod.health.record import Record, Word, sentence
from hyperpod.health.text_fact import Fact

_TWO = "counts when two of three looks see it"
_THREE = "counts when three looks in a row see it"
_BUSY = "counts when three looks in a row see it while the GPU works; the node is then drained after its job"
_GRACE = "counts from five minutes after the boot on"
_MOST_GPUS = 512

_RECOVERY: dict[str, tuple[str, Word]] = {
    "reset": ("GpuResetNeeded", Word.REBOOT),
    "gpu reset": ("GpuResetNeeded", Word.REBOOT),
    "reboot": ("NodeRebootNeeded", Word.REBOOT),
    "node reboot": ("NodeRebootNeeded", Word.REBOOT),
    "drain p2p": ("PeerDrainNeeded", Word.WARN),
    "drain and reset": ("DrainAndResetNeeded", Word.REBOOT),
    "recover imex domain": ("ImexRecoveryNeeded", Word.WARN),
    "bus reset": ("BusResetNeeded", Word.REBOOT),
    "system reboot": ("SystemRebootNeeded", Word.REBOOT),
}
_RECOVERY_NUMBERS = ("none", "gpu reset", "node reboot", "drain p2p", "drain and reset", "recover imex domain")
_NOTHING = frozenset({"", "n/a", "[n/a]", "not supported", "[not supported]", "none", "no", "false", "0", "not active"})


class GpuExplainer:
    """Explains lines of ``nvidia-smi``."""

    def __init__(self) -> None:
        self._reader = SmiReader()
        self._names: dict[str, str] = {}
        self._widths: dict[str, dict[str, Fact]] = {}
        self._links: dict[str, dict[str, Fact]] = {}
        self._fabric: dict[str, str] = {}
        self._uuids: dict[str, Fact] = {}
        self._lost: set[str] = set()

    def feed(self, number: int, text: str) -> list[Record]:
        """Take one line."""
        out: list[Record] = []
        for fact in self._reader.feed(number, text):
            record = self._judge(fact)
            if record is not None:
                out.append(record)
        return out

    def end(self) -> list[Record]:
        """Compare what can only be compared when all is read, and forget it."""
        out = [*self._compare_links(), *self._compare_uuids()]
        self._links, self._uuids, self._widths, self._lost = {}, {}, {}, set()
        return out

    def _judge(self, fact: Fact) -> Record | None:
        if fact.field.startswith("link "):
            if len(self._links) < _MOST_GPUS:
                self._links.setdefault(fact.device, {})[fact.field[5:]] = fact
            return None
        if fact.field in ("width", "width_max"):
            return self._width(fact)
        if fact.field == "name":
            if len(self._names) < _MOST_GPUS:
                self._names[fact.device] = fact.value
            return None
        if fact.field == "fabric_uuid":
            if len(self._uuids) < _MOST_GPUS:
                self._uuids[fact.device] = fact
            return None
        judge = _JUDGES.get(fact.field)
        if judge is None:
            return None
        if fact.field == "error":
            key = f"{fact.device} {fact.value}"
            if key in self._lost:
                return None
            if len(self._lost) < _MOST_GPUS:
                self._lost.add(key)
        return judge(fact)

    def _width(self, fact: Fact) -> Record | None:
        if len(self._widths) >= _MOST_GPUS:
            self._widths.clear()
        pair = self._widths.setdefault(fact.device, {})
        pair[fact.field] = fact
        if len(pair) < 2:
            return None
        del self._widths[fact.device]
        now, most = (int(m.group()) if (m := re.match(r"\d+", pair[k].value)) else 0 for k in ("width", "width_max"))
        if not now or now >= most:
            return None
        text = f"its PCIe link has {now} lanes of {most}"
        return Record(pair["width"].line, "gpu_pcie", "PcieWidth", fact.device, Word.REBOOT, sentence(text, _TWO))

    def _compare_links(self) -> list[Record]:
        active = {gpu: sum(f.value != "inactive" for f in links.values()) for gpu, links in self._links.items()}
        if not active:
            return []
        usual, votes = Counter(active.values()).most_common(1)[0]
        out = []
        for gpu, links in self._links.items():
            down = [fact for fact in links.values() if fact.value == "inactive"]
            if not down:
                continue
            names = ", ".join(fact.field[5:] for fact in down)
            if active[gpu] < usual and votes * 2 > len(active) and len(active) > 1:
                text = f"{active[gpu]} NVLinks are up, on the other GPUs {usual} (down: {names})"
                out.append(Record(down[0].line, "gpu_nvlink", "LinkDown", gpu, Word.REBOOT, sentence(text, _TWO)))
            else:
                text = f"NVLinks {names} are not in use, as by design on many cards"
                why = "fewer than the group's other GPUs have is a fault"
                word = Word.OK if votes * 2 > len(active) and len(active) > 1 else Word.WARN
                out.append(Record(down[0].line, "gpu_nvlink", "LinkInactive", gpu, word, sentence(text, why)))
        return out

    def _compare_uuids(self) -> list[Record]:
        def is_zero(fact: Fact) -> bool:
            return not fact.value.strip("0- ") or fact.value.lower() == "n/a"

        facts = self._uuids.values()
        if all(is_zero(f) for f in facts):
            return []
        return [
            Record(
                f.line,
                "gpu_fabric",
                "FabricIdentity",
                f.device,
                Word.REPLACE,
                sentence("the GPU has no cluster UUID, its neighbours have", _GRACE),
            )
            for f in facts
            if is_zero(f) and f.value.lower() != "n/a"
        ]


def _yes(check: str, code: str, word: Word, text: str, note: str = "") -> Callable[[Fact], Record | None]:
    def judge(fact: Fact) -> Record | None:
        if fact.value.lower() not in ("yes", "1", "active", "true"):
            return None
        return Record(fact.line, check, code, fact.device, word, sentence(text, note))

    return judge


def _recovery(fact: Fact) -> Record | None:
    value = fact.value.strip("[]").lower()
    if value.isdigit() and int(value) < len(_RECOVERY_NUMBERS):
        value = _RECOVERY_NUMBERS[int(value)]
    if value in _NOTHING:
        return None
    code, word = _RECOVERY.get(value, ("RecoveryNeeded", Word.WARN))
    note = "the node is drained, the machine stays" if word is Word.WARN else ""
    text = f"the driver asks for a recovery of this GPU: {fact.value}"
    return Record(fact.line, "gpu_recovery", code, fact.device, word, sentence(text, note))


def _ecc(fact: Fact) -> Record | None:
    if not fact.value.isdigit() or not int(fact.value):
        return None
    text = f"{fact.value} uncorrected memory errors since the driver started"
    note = "alone no reason to drain: remapping takes care of them, and says so when it cannot"
    return Record(fact.line, "gpu_memory", "EccUncorrected", fact.device, Word.WARN, sentence(text, note))


def _sram(fact: Fact) -> Record | None:
    if not fact.value.isdigit() or not int(fact.value):
        return None
    text = f"{fact.value} uncorrected errors of the on-chip memory since the driver started"
    if int(fact.value) >= 2:
        return Record(fact.line, "gpu_memory", "SramErrors", fact.device, Word.REPLACE, text)
    note = "a replacement when it comes again within 24 h"
    return Record(fact.line, "gpu_memory", "SramErrors", fact.device, Word.WARN, sentence(text, note))


def _banks(fact: Fact) -> Record | None:
    found = re.match(r"(\d+)\b", fact.value)
    if not found or not int(found[1]):
        return None
    text = f"{found[1]} banks of its memory have no spare row left: the next error there cannot be repaired"
    return Record(fact.line, "gpu_memory", "BanksWithoutSpare", fact.device, Word.WARN, text)


def _fabric_state(fact: Fact) -> Record | None:
    value = fact.value.lower()
    if value in ("completed", "3") or value in _NOTHING:
        return None
    text = f"the GPU has not joined the NVLink fabric: {fact.value}"
    if value in ("in progress", "2", "not started", "1"):
        return Record(fact.line, "gpu_fabric", "FabricNotJoined", fact.device, Word.WARN, sentence(text, _GRACE))
    return Record(fact.line, "gpu_fabric", "FabricNotJoined", fact.device, Word.REPLACE, sentence(text, _GRACE))


def _fabric_status(fact: Fact) -> Record | None:
    value = fact.value.lower()
    if value in ("success", "0") or value in _NOTHING:
        return None
    text = f"the GPU has joined the NVLink fabric with the status {fact.value}, not Success"
    return Record(fact.line, "gpu_fabric", "FabricStatus", fact.device, Word.REPLACE, sentence(text, _GRACE))


def _fabric_bandwidth(fact: Fact) -> Record | None:
    if fact.value.lower() not in ("degraded", "true"):
        return None
    return Record(
        fact.line,
        "gpu_fabric",
        "FabricHealth",
        fact.device,
        Word.WARN,
        "the bandwidth of the NVLink fabric is degraded",
    )


def _fabric_configuration(fact: Fact) -> Record | None:
    value = fact.value.lower()
    if value in _NOTHING or value in ("none", "not supported"):
        return None
    text = f"the NVLink fabric is configured wrongly: {fact.value}"
    return Record(fact.line, "gpu_fabric", "FabricConfiguration", fact.device, Word.REPLACE, sentence(text, _GRACE))


def _fabric_summary(fact: Fact) -> Record | None:
    value = fact.value.lower()
    if value == "unhealthy":
        return Record(
            fact.line,
            "gpu_fabric",
            "FabricRoute",
            fact.device,
            Word.REPLACE,
            "the NVLink fabric calls itself unhealthy",
        )
    if value == "limited capacity":
        return Record(
            fact.line, "gpu_fabric", "FabricHealth", fact.device, Word.WARN, "the NVLink fabric has limited capacity"
        )
    return None


def _error(fact: Fact) -> Record | None:
    value = fact.value.strip(" .").lower()
    if "gpu is lost" in value:
        return Record(
            fact.line, "gpu_lost", "GpuLost", fact.device, Word.REBOOT, "the driver says that the GPU is lost"
        )
    if "requires reset" in value:
        return Record(
            fact.line,
            "gpu_lost",
            "GpuNeedsReset",
            fact.device,
            Word.REBOOT,
            "the driver says that the GPU must be reset",
        )
    if "permission" in value:
        return Record(fact.line, "gpu_lost", "GpuDenied", fact.device, Word.UNKNOWN, "we may not look at this GPU")
    if "version mismatch" in value:
        return _mismatch(fact)
    text = f"the driver fails to answer about this GPU: {fact.value}"
    return Record(fact.line, "gpu_lost", "GpuFails", fact.device, Word.REBOOT, sentence(text, _THREE))


def _mismatch(fact: Fact) -> Record:
    text = "the node's own library and its driver are of different versions: a reboot loads the new driver"
    return Record(fact.line, "gpu_driver", "DriverMismatch", "", Word.REBOOT, text)


def _init(fact: Fact) -> Record | None:
    if "version mismatch" in fact.value.lower():
        return _mismatch(fact)
    text = f"nvidia-smi could not start: {fact.value}"
    return Record(
        fact.line, "gpu_driver", "ToolFailed", "", Word.UNKNOWN, sentence(text, "says nothing of the hardware")
    )


def _tool(text: str) -> Callable[[Fact], Record | None]:
    def judge(fact: Fact) -> Record | None:
        return Record(
            fact.line, "gpu_driver", "ToolFailed", "", Word.UNKNOWN, sentence(text, "says nothing of the hardware")
        )

    return judge


def _power_cap(fact: Fact) -> Record | None:
    if fact.value.lower() != "active":
        return None
    return Record(
        fact.line, "gpu_slowdown", "PowerCap", fact.device, Word.OK, "the software's power cap is at work: normal"
    )


def _fan(fact: Fact) -> Record | None:
    return Record(fact.line, "gpu_lost", "FanUnread", fact.device, Word.WARN, "only the fan cannot be read")


_JUDGES: dict[str, Callable[[Fact], Record | None]] = {
    "recovery_action": _recovery,
    "remap_failed": _yes("gpu_memory", "RemapFailed", Word.REPLACE, "a row of its memory could not be remapped"),
    "remap_pending": _yes(
        "gpu_memory", "RemapPending", Word.WARN, "a repair of its memory waits for a reset when idle; jobs may go on"
    ),
    "retired_pending": _yes(
        "gpu_memory", "RemapPending", Word.WARN, "a retired page waits for a reset when idle; jobs may go on"
    ),
    "sram_threshold": _yes(
        "gpu_memory", "SramThreshold", Word.REPLACE, "its on-chip memory has had too many uncorrected errors"
    ),
    "banks_none": _banks,
    "ecc_volatile": _ecc,
    "sram_volatile": _sram,
    "hw_slowdown": _yes("gpu_slowdown", "HardwareSlowdown", Word.WARN, "the hardware holds the clocks down", _BUSY),
    "hw_thermal": _yes("gpu_slowdown", "HardwareThermal", Word.WARN, "the hardware holds the clocks down: heat", _BUSY),
    "power_brake": _yes("gpu_slowdown", "PowerBrake", Word.WARN, "the power supply's brake is on", _BUSY),
    "sw_power_cap": _power_cap,
    "fabric_state": _fabric_state,
    "fabric_status": _fabric_status,
    "fabric_bandwidth": _fabric_bandwidth,
    "fabric_configuration": _fabric_configuration,
    "fabric_summary": _fabric_summary,
    "fabric_route": _yes(
        "gpu_fabric", "FabricRoute", Word.REPLACE, "a route of the NVLink fabric is unhealthy", _GRACE
    ),
    "fabric_passing": _yes("gpu_fabric", "FabricHealth", Word.WARN, "the NVLink fabric is recovering"),
    "reset_required": _yes("gpu_recovery", "GpuResetNeeded", Word.REBOOT, "the driver asks for a reset of this GPU"),
    "drain_reset": _yes("gpu_recovery", "DrainAndResetNeeded", Word.REBOOT, "the driver asks for drain and reset"),
    "error": _error,
    "fan": _fan,
    "handle": _error,
    "init": _init,
    "no_driver": _tool("nvidia-smi cannot talk to the driver"),
    "no_library": _tool("nvidia-smi finds no driver library"),
    "no_devices": _tool("nvidia-smi shows no device, which containers without one do too"),
    "no_tool": _tool("there is no nvidia-smi here"),
}
