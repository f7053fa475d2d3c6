"""What ``nvidia-smi`` prints, line by line: table, ``-q``, ``-q -x``, CSV of a query, NVLink states, messages. Pure.

Owns the formats. Gives facts (this GPU, this field, this value); what they mean is for others. The exit status of the
tool says little: it is 0 with rows full of ``ERR!``, so rows are read.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping

from hyperpod.health.text_fact import Fact

_BUS_ID = re.compile(r"\b((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\b")


# Canonical names of fields by what -q calls them (path of titles, lower case) …
_Q_FIELDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"gpu recovery action", "recovery_action"),
        (r"remapped rows/pending", "remap_pending"),
        (r"remapped rows/remapping failure occurred", "remap_failed"),
        (r"remapped rows/bank remap availability histogram/none", "banks_none"),
        (r"row remapper/.*", ""),
        (r"ecc errors/volatile/sram uncorrectable(?: parity| sec-ded)?", "sram_volatile"),
        (r"ecc errors/volatile/(?:dram uncorrectable|total|double bit/total)", "ecc_volatile"),
        (r"ecc errors/.*sram threshold exceeded", "sram_threshold"),
        (r"ecc errors/sram threshold exceeded", "sram_threshold"),
        (r"(?:clocks event|clocks throttle|performance state) reasons/hw slowdown", "hw_slowdown"),
        (r"(?:clocks event|clocks throttle) reasons/(?:hw slowdown/)?hw thermal slowdown", "hw_thermal"),
        (r"(?:clocks event|clocks throttle) reasons/(?:hw slowdown/)?hw power brake(?: slowdown)?", "power_brake"),
        (r"(?:clocks event|clocks throttle) reasons/sw power cap", "sw_power_cap"),
        (r"fabric/state", "fabric_state"),
        (r"fabric/status", "fabric_status"),
        (r"fabric/cliqueid", "fabric_clique"),
        (r"fabric/clusteruuid", "fabric_uuid"),
        (r"fabric/health/bandwidth", "fabric_bandwidth"),
        (r"fabric/health/route unhealthy", "fabric_route"),
        (r"fabric/health/route recovery in progress", "fabric_passing"),
        (r"fabric/health/access timeout recovery(?: in progress)?", "fabric_passing"),
        (r"fabric/health/(?:incorrect configuration)", "fabric_configuration"),
        (r"fabric/health/summary", "fabric_summary"),
        (r"gpu reset status/reset required", "reset_required"),
        (r"gpu reset status/drain and reset recommended", "drain_reset"),
        (r"pci/gpu link info/link width/max", "width_max"),
        (r"pci/gpu link info/link width/current", "width"),
        (r"retired pages/pending(?: page blacklist| retirement)?", "retired_pending"),
        (r"product name", "name"),
    )
)
# … by the elements of -x, with the element around them where the name alone is not enough …
_XML_FIELDS: Mapping[str, str] = {
    "gpu_recovery_action": "recovery_action",
    "remapped_row_pending": "remap_pending",
    "remapped_row_failure": "remap_failed",
    "row_remapper_histogram_none": "banks_none",
    "volatile/sram_uncorrectable": "sram_volatile",
    "volatile/sram_uncorrectable_parity": "sram_volatile",
    "volatile/sram_uncorrectable_secded": "sram_volatile",
    "volatile/dram_uncorrectable": "ecc_volatile",
    "sram_threshold_exceeded": "sram_threshold",
    "clocks_event_reason_hw_slowdown": "hw_slowdown",
    "clocks_event_reason_hw_thermal_slowdown": "hw_thermal",
    "clocks_event_reason_hw_power_brake_slowdown": "power_brake",
    "clocks_event_reason_sw_power_cap": "sw_power_cap",
    "clocks_throttle_reason_hw_slowdown": "hw_slowdown",
    "clocks_throttle_reason_hw_thermal_slowdown": "hw_thermal",
    "clocks_throttle_reason_hw_power_brake_slowdown": "power_brake",
    "clocks_throttle_reason_sw_power_cap": "sw_power_cap",
    "fabric/state": "fabric_state",
    "fabric/status": "fabric_status",
    "reset_required": "reset_required",
    "drain_and_reset_recommended": "drain_reset",
    "link_widths/max_link_width": "width_max",
    "link_widths/current_link_width": "width",
    "pending_blacklist": "retired_pending",
    "product_name": "name",
}
# … and by the names of --query-gpu.
_CSV_FIELDS: Mapping[str, str] = {
    "gpu_recovery_action": "recovery_action",
    "remapped_rows.pending": "remap_pending",
    "remapped_rows.failure": "remap_failed",
    "remapped_rows.histogram.none": "banks_none",
    "ecc.errors.uncorrected.volatile.total": "ecc_volatile",
    "ecc.errors.uncorrected.volatile.dram": "ecc_volatile",
    "ecc.errors.uncorrected.volatile.device_memory": "ecc_volatile",
    "ecc.errors.uncorrected.volatile.sram": "sram_volatile",
    "retired_pages.pending": "retired_pending",
    "fabric.state": "fabric_state",
    "fabric.status": "fabric_status",
    "pcie.link.width.current": "width",
    "pcie.link.width.max": "width_max",
    "reset_status.reset_required": "reset_required",
    "reset_status.drain_and_reset_recommended": "drain_reset",
    "name": "name",
    "gpu_name": "name",
}
_CSV_REASONS = {
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "power_brake",
    "sw_power_cap": "sw_power_cap",
}
_ACTIVE_BITS = {0x8: "hw_slowdown", 0x40: "hw_thermal", 0x80: "power_brake", 0x4: "sw_power_cap"}
_CSV_MARK = re.compile(
    r"(?:^|, ?)(?:index|uuid|gpu_uuid|name|gpu_name|serial|gpu_bus_id|pci\.bus_id|gpu_recovery_action|timestamp|"
    r"remapped_rows\.[\w.]+|ecc\.[\w.]+|clocks_(?:event|throttle)_reasons\.\w+|fabric\.\w+|pcie\.link\.[\w.]+|"
    r"retired_pages\.\w+|temperature\.gpu|power\.draw|utilization\.gpu|memory\.(?:used|total|free))"
    r"(?: \[[^\]]*\])?(?=,|$)"
)
_SECTION = re.compile(r"^(?P<indent> *)(?P<title>[A-Za-z][^:]*?) *(?:: (?P<value>.*))?$")
_SNIPPET = re.compile(
    r"^ {4}(?:Remapped Rows|Fabric|ECC Errors|Clocks (?:Event|Throttle) Reasons|GPU Recovery Action +: .*)$"
)
_GPU_HEAD = re.compile(r"^GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])$")
_XML_GPU = re.compile(r"<gpu id=\"(?P<bus>[^\"]+)\"")
_XML_VALUE = re.compile(r"^\s*<(?P<name>\w+)>(?P<value>[^<]*)</(?P=name)>")
_XML_OPEN = re.compile(r"^\s*<(?P<name>\w+)>\s*$")
_XML_CLOSE = re.compile(r"^\s*</(?P<name>\w+)>")
_LINK = re.compile(r"^\s+Link (?P<link>\d+): (?P<value><?inactive>?|[\d.]+ GB/s)\s*$")
_LINK_GPU = re.compile(r"^GPU (?P<index>\d+): .*\(UUID: (?P<uuid>[^)]+)\)")
_TABLE_FIRST = re.compile(
    r"^\| +(?P<index>\d+|ERR!) +(?P<name>\S.*?) +\| *(?P<bus>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)"
)
_TABLE_SECOND = re.compile(r"^\| *(?P<fan>\S+) +(?P<temp>\S+) +(?P<perf>\S+) +(?P<power>\S.*?) +\|")
_RECOVERY_ROW = re.compile(
    r"^(?P<index>\d+), (?P<value>None|Reset|GPU Reset|Reboot|Node Reboot|Drain P2P|Drain and Reset)$"
)

_HANDLE = r"Unable to determine the device handle for gpu ?(?:\d+: ?)?"
_MESSAGES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (_HANDLE + r"(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f.]+): (?P<value>.*)", "handle"),
        (_HANDLE + r"(?P<bus>[0-9a-f:.]*): (?P<value>.*)", "handle"),
        (r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", "no_driver"),
        (r"NVIDIA-SMI couldn't find libnvidia-ml", "no_library"),
        (r"Failed to initialize NVML: (?P<value>.*)", "init"),
        (r"No devices were found", "no_devices"),
        (r"(?:bash: |sh: )?(?:line \d+: )?nvidia-smi: command not found", "no_tool"),
    )
)
_ERROR_VALUE = re.compile(
    r"^\[?(?P<error>GPU is lost|Unknown Error|GPU requires reset|ERR!|Insufficient Permissions)\]?$"
)


def is_start(text: str) -> bool:
    """True for a line that begins, or is, output of the tool."""
    return (
        "NVSMI LOG" in text
        or text.startswith("| NVIDIA-SMI ")
        or "<nvidia_smi_log>" in text
        or _LINK_GPU.match(text) is not None
        or _GPU_HEAD.match(text) is not None
        or is_message(text)
        or is_csv_head(text)
        or _RECOVERY_ROW.match(text) is not None
        or _SNIPPET.match(text) is not None
    )


def is_message(text: str) -> bool:
    """True for a line with which the tool gives up."""
    return any(pattern.match(text) for pattern, _ in _MESSAGES)


def is_csv_head(text: str) -> bool:
    """True for the first line of ``--format=csv``: every column is a field that the tool has."""
    columns = text.split(",")
    return len(columns) >= 2 and len(_CSV_MARK.findall(text)) == len(columns)


class SmiReader:
    """Takes lines, gives facts. Remembers only where in the output it is."""

    def __init__(self) -> None:
        self._gpu = ""
        self._titles: list[tuple[int, str]] = []
        self._columns: list[str] = []
        self._elements: list[str] = []
        self._row: tuple[str, int] = ("", 0)

    def feed(self, number: int, text: str) -> list[Fact]:
        """Take one line."""
        for pattern, name in _MESSAGES:
            found = pattern.match(text)
            if found:
                groups = found.groupdict()
                return [Fact(number, _device(groups.get("bus") or ""), name, (groups.get("value") or "").strip())]
        if "<" in text and (text.lstrip().startswith("<")):
            return self._xml(number, text)
        if text.startswith(("|", "+")):
            return self._table(number, text)
        link = _LINK.match(text)
        if link:
            return [Fact(number, self._gpu, f"link {link['link']}", link["value"].strip("<>"))]
        head = _LINK_GPU.match(text)
        if head:
            self._gpu = f"GPU {head['index']}"
            return []
        if is_csv_head(text):
            self._columns = [column.strip().partition(" [")[0].lower() for column in text.split(",")]
            return []
        if self._columns and "," in text:
            return self._csv(number, text)
        recovery = _RECOVERY_ROW.match(text)
        if recovery:
            return [Fact(number, f"GPU {recovery['index']}", "recovery_action", recovery["value"])]
        return self._query(number, text)

    def _query(self, number: int, text: str) -> list[Fact]:
        head = _GPU_HEAD.match(text.strip())
        if head:
            self._gpu, self._titles = _device(head["bus"]), []
            return []
        section = _SECTION.match(text)
        if not section:
            return []
        indent, title, value = len(section["indent"]), section["title"].strip().lower(), section["value"]
        while self._titles and self._titles[-1][0] >= indent:
            self._titles.pop()
        path = "/".join([t for _, t in self._titles] + [title])
        if value is None:
            self._titles.append((indent, title))
            return []
        if title in ("hw slowdown",):
            self._titles.append((indent, title))
        value = value.strip()
        for pattern, name in _Q_FIELDS:
            if pattern.fullmatch(path):
                return [Fact(number, self._gpu, name, value)] if name else []
        error = _ERROR_VALUE.match(value)
        return [Fact(number, self._gpu, "error", error["error"])] if error else []

    def _xml(self, number: int, text: str) -> list[Fact]:
        gpu = _XML_GPU.search(text)
        if gpu:
            self._gpu, self._elements = _device(gpu["bus"]), []
            return []
        value = _XML_VALUE.match(text)
        if value:
            around = self._elements[-1] if self._elements else ""
            name = _XML_FIELDS.get(f"{around}/{value['name']}") or _XML_FIELDS.get(value["name"])
            content = value["value"].strip()
            if name and self._gpu:
                return [Fact(number, self._gpu, name, content)]
            error = _ERROR_VALUE.match(content)
            return [Fact(number, self._gpu, "error", error["error"])] if error and self._gpu else []
        opened, closed = _XML_OPEN.match(text), _XML_CLOSE.match(text)
        if opened:
            self._elements = [*self._elements[-20:], opened["name"]]
        elif closed and self._elements and self._elements[-1] == closed["name"]:
            self._elements.pop()
        return []

    def _table(self, number: int, text: str) -> list[Fact]:
        first = _TABLE_FIRST.match(text)
        if first:
            self._row = (_device(first["bus"]), number)
            ecc = text.rstrip("| ").rpartition("|")[2].strip()
            out = []
            if "ERR!" in first["index"] or "ERR!" in ecc:
                out.append(Fact(number, self._row[0], "error", "ERR!"))
            elif ecc.isdigit() and int(ecc):
                out.append(Fact(number, self._row[0], "ecc_volatile", ecc))
            return out
        device, at = self._row
        if device and number == at + 1 and "ERR!" in text:
            second = _TABLE_SECOND.match(text)
            is_fan_only = second is not None and second["fan"] == "ERR!" and text.count("ERR!") == 1
            return [Fact(number, device, "fan" if is_fan_only else "error", "ERR!")]
        return []

    def _csv(self, number: int, text: str) -> list[Fact]:
        try:
            cells = [cell.strip() for cell in next(csv.reader([text], skipinitialspace=True))]
        except (csv.Error, StopIteration):
            return []
        if len(cells) != len(self._columns):
            return []
        row = dict(zip(self._columns, cells, strict=True))
        device = _device(row.get("gpu_bus_id") or row.get("pci.bus_id") or "")
        if not device:
            device = f"GPU {row['index']}" if row.get("index") else row.get("uuid", "")
        out = []
        for column, value in row.items():
            name = _CSV_FIELDS.get(column)
            group, _, reason = column.partition(".")
            if group in ("clocks_event_reasons", "clocks_throttle_reasons"):
                if reason == "active":
                    out += self._active(number, device, value)
                    continue
                name = _CSV_REASONS.get(reason)
            error = _ERROR_VALUE.match(value)
            if error:
                out.append(Fact(number, device, "error", error["error"]))
            elif name:
                out.append(Fact(number, device, name, value))
        return out

    def _active(self, number: int, device: str, value: str) -> list[Fact]:
        try:
            bits = int(value, 16)
        except ValueError:
            return []
        return [Fact(number, device, name, "Active") for bit, name in _ACTIVE_BITS.items() if bits & bit]


def _device(bus: str) -> str:
    """Return a PCI address as it is named everywhere: four digits of domain, lower case."""
    bus = bus.strip().lower()
    if not _BUS_ID.fullmatch(bus):
        return f"GPU {bus}" if bus.isdigit() else bus
    domain, _, rest = bus.rpartition(":")[0].partition(":")
    return f"{domain[-4:]}:{rest}:{bus.rpartition(':')[2]}" if rest else f"0000:{bus}"
