"""What ``ibstat`` and its like, ``ethtool`` and lines of the device tree mean. Pure: lines in, records out."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict

from hyperpod.health.parse_links import LinkReader
from hyperpod.health.record import Record, Word, sentence
from hyperpod.health.text_fact import Fact

_MOST = 1024
_WANTED = "counts when the port was up in this boot or the group has it, for 30 s; spare ports and empty cages are none"

_SYSFS = re.compile(
    r"^(?P<path>/(?:sys|proc)/[^\s:=]*[^\s:=/](?::[0-9a-f]{2}(?::[0-9a-f]{2}\.[0-9a-f])?[^\s:=]*)*)\s*[:=]\s*(?P<value>.*)$"
)
_FAILED = re.compile(
    r"^(?:ibpanic: |ibwarn: |perfquery: iberror: |(?:ibstat|ibv_devinfo|ethtool|ibstatus|perfquery): command not found|"
    r"(?:bash|sh): (?:line \d+: )?(?:ibstat|ibv_devinfo|ethtool|ibstatus|perfquery): command not found|"
    r"(?:No IB devices found|Failed to get IB devices list)|Cannot get device settings: |"
    r"netlink error: No such device|No data available$)"
)
_EFA = re.compile(r"(?:^|/)(?:efa_\d+|rdmap\d+s\d+\w*)(?:/|$)")
_PEER = frozenset(
    {"rdma_read_wr_err", "rdma_write_wr_err", "unresponsive_remote_events", "impaired_remote_conn_events",
     "retrans_timeout_events", "retrans_pkts", "retrans_bytes"}
)  # fmt: skip


_PORT_COUNTERS = {
    "SymbolErrorCounter": 0xFFFF,
    "LinkErrorRecoveryCounter": 0xFF,
    "LinkDownedCounter": 0xFF,
    "PortRcvErrors": 0xFFFF,
    "LocalLinkIntegrityErrors": 0xF,
    "ExcessiveBufferOverrunErrors": 0xF,
}
"""Counters of perfquery that the agent judges too, with the value at which each stands still."""


class LinkExplainer:
    """Explains the tools that show ports and links."""

    def __init__(self) -> None:
        self._reader = LinkReader()
        self._ports: OrderedDict[str, dict[str, Fact]] = OrderedDict()
        self._counted: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._failed_at = -10

    def feed(self, number: int, text: str) -> list[Record]:
        """Take one line."""
        if is_failure(text):
            before, self._failed_at = self._failed_at, number
            if number - before <= 2 and not text.startswith(("bash", "sh")):
                # The libraries say it once more, each in its own words.
                return []
            why = "the tool could not look at the devices; says nothing of the hardware"
            return [Record(number, "infiniband", "ToolFailed", "", Word.UNKNOWN, why)]
        out: list[Record] = []
        for fact in self._reader.feed(number, text):
            if fact.field == "link":
                if fact.value.lower() == "no":
                    why = "the interface has no link"
                    out.append(_record(fact, "ethernet", "EthernetDown", Word.WARN, sentence(why, _WANTED)))
            elif fact.field == "duplex":
                if fact.value.lower() == "half":
                    out.append(_record(fact, "ethernet", "EthernetHalfDuplex", Word.WARN, "the link runs half duplex"))
            elif fact.field.startswith("counter "):
                out += _allowance(fact)
            elif fact.field.startswith("port "):
                out += self._port_counter(fact)
            elif fact.field in ("state", "physical", "rate", "layer"):
                self._ports.setdefault(fact.device, {})[fact.field] = fact
                if len(self._ports) > _MOST:
                    self._ports.popitem(last=False)
        return out

    def _port_counter(self, fact: Fact) -> list[Record]:
        """Judge a counter of perfquery: a total is no event, an increase between two looks is."""
        name = fact.field[5:]
        most, value = _PORT_COUNTERS.get(name), int(fact.value)
        if most is None:
            return []
        key = (fact.device, name)
        before = self._counted.get(key)
        self._counted[key] = value
        if len(self._counted) > _MOST:
            self._counted.popitem(last=False)
        if before is not None and value > before:
            text = f"{name} rose by {value - before} between two looks"
            note = "whether that is much depends on the time between them"
            return [_record(fact, "infiniband", "LinkErrors", Word.WARN, sentence(text, note))]
        if not value or before is not None:
            return []
        text = f"{name} {value}: a total; only an increase counts"
        note = "it has reached its end and counts no further: perfquery -R sets it back" if value == most else ""
        return [_record(fact, "infiniband", "LinkTotals", Word.OK, sentence(text, note))]

    def end(self) -> list[Record]:
        """Judge the ports: a port's lines belong together, and rates are compared with each other."""
        out: list[Record] = []
        for device, facts in self._ports.items():
            if _EFA.search(device):
                continue
            state, physical = facts.get("state"), facts.get("physical")
            words = [re.sub(r"^(?:PORT_|\d+: )", "", f.value).strip().lower() for f in (state, physical) if f]
            if not state or (words[0].startswith("active") and (len(words) < 2 or words[1].startswith("linkup"))):
                continue
            how = " / ".join(f.value for f in (state, physical) if f)
            out.append(
                Record(state.line, "infiniband", "LinkDown", device, Word.WARN, sentence(f"the port is {how}", _WANTED))
            )
        rates = {d: f["rate"] for d, f in self._ports.items() if "rate" in f and _is_active(f)}
        speeds = {d: float(m.group()) for d, f in rates.items() if (m := re.match(r"[\d.]+", f.value))}
        if len(speeds) > 2:
            usual, votes = Counter(speeds.values()).most_common(1)[0]
            for device, speed in speeds.items():
                if speed < usual and votes * 2 > len(speeds):
                    text = f"the port runs at {rates[device].value}, most others at {usual:g}"
                    out.append(_record(rates[device], "infiniband", "LinkSlow", Word.WARN, text))
        self._ports.clear()
        return sorted(out, key=lambda record: record.line)


def _is_active(facts: dict[str, Fact]) -> bool:
    return "state" in facts and "active" in facts["state"].value.lower()


def _record(fact: Fact, check: str, code: str, word: Word, reason: str) -> Record:
    return Record(fact.line, check, code, fact.device, word, reason)


def _allowance(fact: Fact) -> list[Record]:
    name = fact.field.partition(" ")[2]
    if not name.endswith("_allowance_exceeded") or not int(fact.value[:18]):
        return []
    why = f"EC2 has held packets back ({name} {fact.value}): the instance's allowance was exceeded"
    return [_record(fact, "ethernet", "AllowanceExceeded", Word.WARN, why)]


def is_failure(text: str) -> bool:
    """True for a line with which one of the tools gives up."""
    return _FAILED.match(text) is not None


def is_sysfs(text: str) -> bool:
    """True for a line ``/sys/path:value`` or ``/sys/path=value``."""
    return _SYSFS.match(text) is not None


class SysfsExplainer:
    """Explains lines of ``grep -r . /sys/...``. A path that comes twice is two looks, so that increases show."""

    def __init__(self) -> None:
        self._before: OrderedDict[str, int] = OrderedDict()

    def feed(self, number: int, text: str) -> list[Record]:
        """Take one line."""
        found = _SYSFS.match(text)
        if not found:
            return []
        path, value = found["path"], found["value"].strip()
        if re.search(r"(?:Input/output error|Invalid argument|Permission denied|No such file)", value):
            why = f"{path} cannot be read: {value[:80]}"
            return [Record(number, "sysfs", "Unreadable", "", Word.UNKNOWN, why)]
        rise = self._rise(path, value)
        fact = Fact(number, path, "", value)
        for judge in (_infiniband, _net, _edac, _pci, _block):
            out = judge(fact, rise)
            if out is not None:
                return out
        return _neuron(fact, rise)

    def end(self) -> list[Record]:
        """Nothing is left."""
        return []

    def _rise(self, path: str, value: str) -> int | None:
        """Return by how much a counter rose since it was seen before; None at the first look."""
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            return None
        now, before = int(value), self._before.get(path)
        self._before[path] = now
        self._before.move_to_end(path)
        if len(self._before) > 65536:
            self._before.popitem(last=False)
        return None if before is None else max(0, now - before)


def _infiniband(fact: Fact, rise: int | None) -> list[Record] | None:
    found = re.search(r"/infiniband/(?P<dev>[^/]+)/(?P<rest>.*)$", fact.device)
    if not found:
        return None
    device, rest = found["dev"], found["rest"]
    name = rest.rpartition("/")[2]
    if name == "no_completion_cmds":
        if fact.value.isdigit() and int(fact.value) and rise != 0:
            why = "the device did not answer a command of its driver"
            return [Record(fact.line, "efa", "EfaNoCompletion", device, Word.REBOOT, why)]
        return []
    if name in _PEER:
        if rise:
            why = f"{name} rose by {rise}: a peer does not answer as it should, this node only says so"
            return [Record(fact.line, "efa", "EfaPeerErrors", f"{device} peer", Word.WARN, why)]
        return []
    if _EFA.search(device):
        if name in ("state", "phys_state") and not re.match(r"(?:4: ACTIVE|5: LinkUp)", fact.value):
            return [Record(fact.line, "efa", "EfaLinkDown", device, Word.WARN, f"{name} is {fact.value}")]
        if name in ("carrier", "operstate"):
            return _net(fact, rise)
        return []
    port = re.match(r"ports/(\d+)/(state|phys_state)$", rest)
    if port and not re.match(r"(?:4: ACTIVE|5: LinkUp)$", fact.value):
        why = f"{port[2]} is {fact.value}"
        return [Record(fact.line, "infiniband", "LinkDown", f"{device}/{port[1]}", Word.WARN, sentence(why, _WANTED))]
    if name in ("carrier", "operstate"):
        return _net(fact, rise)
    if rise and name in ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors"):
        why = f"{name} rose by {rise} between two looks; whether that is much depends on the time between them"
        return [Record(fact.line, "infiniband", "LinkErrors", device, Word.WARN, why)]
    return []


def _net(fact: Fact, rise: int | None) -> list[Record] | None:
    found = re.search(r"/net/(?P<dev>[^/]+)/(?P<name>carrier|operstate|duplex)$", fact.device)
    if not found:
        return [] if "/class/net/" in fact.device else None
    device, name, value = found["dev"], found["name"], fact.value
    is_down = (name == "carrier" and value == "0") or (name == "operstate" and value in ("down", "lowerlayerdown"))
    if is_down and device != "lo":
        check = "efa" if "/infiniband/" in fact.device else "ethernet"
        code = "EfaLinkDown" if check == "efa" else "EthernetDown"
        return [Record(fact.line, check, code, device, Word.WARN, sentence(f"{name} is {value}", _WANTED))]
    if name == "duplex" and value == "half":
        return [Record(fact.line, "ethernet", "EthernetHalfDuplex", device, Word.WARN, "the link runs half duplex")]
    return []


def _edac(fact: Fact, rise: int | None) -> list[Record] | None:
    found = re.search(
        r"/edac/mc/(?P<mc>mc\d+)/(?:.*/)?(?P<name>ue_count|ce_count|dimm_ue_count|dimm_ce_count)$", fact.device
    )
    if not found:
        return None
    if "ue_count" in found["name"] and fact.value.isdigit() and int(fact.value) and rise != 0:
        why = f"{fact.value} uncorrected memory errors in this boot"
        return [Record(fact.line, "edac", "MemoryUncorrected", found["mc"], Word.REPLACE, why)]
    return []


def _pci(fact: Fact, rise: int | None) -> list[Record] | None:
    found = re.search(r"/(?P<bdf>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])/(?P<name>aer_dev_\w+)$", fact.device)
    if not found:
        return None
    total = re.match(r"TOTAL_ERR_FATAL (\d+)", fact.value)
    if found["name"] == "aer_dev_fatal" and total and int(total[1]):
        why = f"{total[1]} fatal PCIe errors in this boot; which part it is, is not in the text"
        return [Record(fact.line, "pcie", "PcieFatal", found["bdf"], Word.REBOOT, why)]
    return []


def _block(fact: Fact, rise: int | None) -> list[Record] | None:
    degraded = re.search(r"/block/(?P<dev>md\d+)/md/(?P<name>degraded|array_state)$", fact.device)
    if degraded:
        device = degraded["dev"]
        if degraded["name"] == "degraded" and fact.value.isdigit() and int(fact.value):
            why = f"the array works without {fact.value} of its disks"
            return [Record(fact.line, "raid", "RaidDegraded", device, Word.WARN, why)]
        if degraded["name"] == "array_state" and fact.value == "broken":
            return [Record(fact.line, "raid", "RaidLost", device, Word.REPLACE, "the kernel calls the array broken")]
        return []
    drive = re.search(r"/(?P<dev>nvme\d+)/state$", fact.device)
    if drive and fact.value == "dead":
        why = "the driver has given the drive up"
        return [Record(fact.line, "nvme", "NvmeDead", drive["dev"], Word.REPLACE, why)]
    return [] if drive else None


def _neuron(fact: Fact, rise: int | None) -> list[Record]:
    found = re.search(r"/neuron(?P<nd>\d+)/(?P<rest>.*)$", fact.device)
    if not found:
        return []
    name = re.search(r"\b(mem_ecc_repairable_uncorrected|mem_ecc_uncorrected|sram_ecc_uncorrected)\b", found["rest"])
    if not name or not fact.value.isdigit() or not int(fact.value):
        return []
    device = f"nd{found['nd']}"
    if rise is None:
        why = f"{name[1]} {fact.value}: a total; only an increase counts"
        return [Record(fact.line, "neuron", "NeuronTotals", device, Word.OK, why)]
    if not rise:
        return []
    is_repairable = name[1] == "mem_ecc_repairable_uncorrected"
    code, word = ("NeuronMemoryRepairable", Word.REBOOT) if is_repairable else ("NeuronMemoryUncorrected", Word.REPLACE)
    return [Record(fact.line, "neuron", code, device, word, f"{name[1]} rose by {rise}")]
