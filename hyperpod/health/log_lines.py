"""Prefixes of log lines: who wrote a line, when, in which boot, and its text. Pure.

Owns the styles in which people paste logs: raw ``/dev/kmsg`` records, ``dmesg`` (plain, ``-T``, ``-x``, ``-r``, ISO),
journald (short forms and JSON), syslog with and without priority, and what log shippers put before any of them. It
knows nothing of what a text means. The question that matters is whether the line proves that the kernel wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from hyperpod.health.kmsg import parse_record

_MAX_LINE = 65536
"""Longer lines are cut: no line of a log says anything new this far behind its beginning."""


class Writer(StrEnum):
    """Who wrote a line, as far as the line proves it."""

    KERNEL = "kernel"
    PROGRAM = "program"
    NOBODY = "unproven"


@dataclass(frozen=True)
class LogLine:
    """One line without its prefixes.

    Attributes:
        text: What was said; several lines where the writer escaped line breaks.
        writer: Who said it.
        program: Name of the program, where the line gives one.
        at_s: Seconds since an epoch of the line's own style; None without a time.
        clock: Which epoch: ``wall``, ``year`` (no year given) or ``boot``. Only equal clocks can be compared.
        boot: Boot id, where the line gives one.
        host: Host name, where the line gives one.
        style: Name of the prefix's style; empty for a bare line.
    """

    text: str
    writer: Writer = Writer.NOBODY
    program: str = ""
    at_s: float | None = None
    clock: str = ""
    boot: str = ""
    host: str = ""
    style: str = ""


_ANSI = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|#033\[[0-9;]*m|\^\[\[[0-9;]*m"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SYSLOG_ESCAPE = re.compile(r"#(0[0-3][0-7])")
_MONTHS = {
    m: n for n, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)
}

# --- wrappers: what people and shippers put before a line ---------------------------------------------------------
_QUOTE = re.compile(r"^(?:>\s?)+(?=\S)")
_GREP = re.compile(
    r"^(?:[\w./~-]*(?:messages|syslog|dmesg|kern|journal|\.log|\.txt|\.out)[\w.-]*[:-])?(?:\d{1,8}[:-])?"
    r"(?=<\d|\d+,\d+,\d+,|\[ *[\d+.]|\[[A-Z][a-z]{2} |(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:|"
    r"\d{4}-\d\d-\d\d[T ]|kern|user|daemon|NVRM|kernel:)"
)
_SHELL = re.compile(
    r"^(?!kernel:)(?P<host>[A-Za-z][\w.-]{0,80}): ?"
    r"(?=<\d|\[ *\d+\.\d|\[[A-Z][a-z]{2} |[A-Z][a-z]{2} [ \d]\d \d\d:)"
)
_POD = re.compile(r"^\[pod/[^\]]+\] ")
_CRI = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP](?: |$)")
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_SHIPPED = re.compile(
    rf"^(?P<time>{_ISO})\s+(?:(?:(?P<stream>\S+/\S+|i-[0-9a-f]{{8,17}}\S*) )?"
    r"(?=<\d|\[ *\d+\.\d|[A-Z][a-z]{2} [ \d]\d \d\d:|\d+,\d+,\d+,)|[\w.@-]+ (?=[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:))"
)

# --- styles -------------------------------------------------------------------------------------------------------
_KMSG = re.compile(r"^\d{1,4},\d+,\d+,[^;]{0,80};")
_PRI = re.compile(r"^<(?P<pri>\d{1,3})>(?:1 (?=\d{4}-|-))?")
_TAG = r"(?P<tag>[^\s:\[]{1,64}|[^\s:]{1,64}?)(?:\[(?P<pid>[^\]]{0,40})\])?:(?: (?P<text>.*)|$)"
_DATE = r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?:(?P<year>\d{4}) )?(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)"
_SYSLOG = re.compile(
    rf"^{_DATE}(?: (?P<host>[\w.:@-]+))?(?: (?P<facility>[a-z]+\d?)\."
    rf"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug))? {_TAG}",
    re.DOTALL,
)
_ISO_LOG = re.compile(rf"^(?:[A-Z][a-z]{{2}} )?(?P<iso>{_ISO}) (?P<host>[\w.:@-]+) {_TAG}", re.DOTALL)
_RFC5424 = re.compile(
    rf"^(?P<iso>{_ISO}|-) (?P<host>\S+) (?P<tag>\S+) (?P<pid>\S+) \S+ (?:-|\[.*?\])(?: \ufeff?(?P<text>.*)|$)",
    re.DOTALL,
)
_DELTA = r"(?: *< *\d*\.?\d* *>)?"
_UNIX = re.compile(rf"^(?P<unix>1\d{{9}}\.\d{{1,6}}) (?P<host>[\w.:@-]+) {_TAG}", re.DOTALL)
_MONOTONIC = re.compile(rf"^\[ *(?P<boot_s>\d+\.\d{{6}}){_DELTA}\] (?P<host>[\w.-]+) {_TAG}", re.DOTALL)
_DMESG = re.compile(rf"^\[ *(?P<s>\d+\.\d{{1,9}}){_DELTA}\](?:\[ *[TC]\d+\])? ?")
_DMESG_T = re.compile(
    r"^\[(?:[A-Z][a-z]{2} )?(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)"
    r"(?: [A-Z]{3,5})?(?: (?P<year>\d{4}))?\](?:\[ *[TC]\d+\])? ?"
)
_DMESG_ISO = re.compile(r"^(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}(?:[+-]\d\d:\d\d|Z)) ")
_DMESG_ISO_BOX = re.compile(rf"^\[(?P<iso>{_ISO})\] ?")
_TIMED = re.compile(rf"^(?P<iso>{_ISO}) (?=\S)")
_DMESG_H = re.compile(r"^\[(?:[A-Z][a-z]{2}\d?\d? ?\d{1,2} \d\d:\d\d| *[+<] *\d+\.\d+>?)\] +")
_DECODED = re.compile(
    r"^(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d) *:"
    r"(?:emerg|alert|crit|err|warn|notice|info|debug) *: "
)
_KERNEL_TAG = re.compile(r"^(?:(?P<host>[A-Za-z][\w.-]{0,80}) )?kernel: ")
_PROGRAM = re.compile(r"^(?P<tag>[A-Za-z_][\w.@/-]{0,60})\[(?P<pid>\d{1,10})\]: ")


def cleaned_line(raw: bytes | str) -> str:
    """Decode one line as well as possible, without colours, control characters and line ends."""
    text = raw[: _MAX_LINE * 2] if isinstance(raw, str) else raw[: _MAX_LINE * 2].decode("utf-8", errors="replace")
    text = text[:_MAX_LINE].lstrip("\ufeff").rstrip("\r\n")
    if not text.isprintable():
        text = _CONTROL.sub("", _ANSI.sub("", text).replace("\r", ""))
    elif "#033[" in text or "^[[" in text:
        text = _ANSI.sub("", text)
    return text


def parse_log_line(text: str) -> LogLine:
    """Read the prefixes of one line.

    Args:
        text: A cleaned line.
    """
    if text[:1] == ">":
        text = _QUOTE.sub("", text, count=1)
    shipped = ""
    pod = _POD.match(text) if text.startswith("[pod/") else None
    if pod:
        text, shipped = text[pod.end() :], "container"
    cri = _CRI.match(text)
    if cri:
        # Output of a container: what it holds must prove itself.
        text, shipped = text[cri.end() :], "container"
    if text.startswith("{") and text.endswith("}"):
        found = _json(text)
        if found is not None:
            return found
    if text.startswith("data: {"):
        return parse_log_line(text[6:])
    text = _GREP.sub("", text, count=1)
    shell = _SHELL.match(text)
    host = ""
    if shell:
        host, text = shell["host"], text[shell.end() :]
    wrapped = _SHIPPED.match(text)
    outer: tuple[float, str] | None = None
    if wrapped and not _DMESG_ISO.match(text):
        outer = _iso(wrapped["time"])
        text, shipped = text[wrapped.end() :], shipped or "shipped"
    line = _styled(text)
    if text[:1].isspace() and not line.style:
        # Copied with an indent; a continuation line has no prefix of its own and keeps its blanks.
        inner = _styled(text.lstrip())
        line = inner if inner.style else line
    if line.at_s is None and outer is not None:
        line = replace(line, at_s=outer[0], clock=outer[1])
    if shipped == "container" and not line.style:
        line = replace(line, writer=Writer.PROGRAM, program=line.program or "a container", style="container")
    return replace(line, host=host) if host and not line.host else line


def _styled(text: str) -> LogLine:
    if _KMSG.match(text):
        record = parse_record(text)
        if record is not None:
            writer = Writer.KERNEL if record.is_kernels else Writer.PROGRAM
            at = record.at_s or None
            return LogLine(record.text, writer, at_s=at, clock="boot" if at else "", style="kmsg")
    facility: int | None = None
    pri = _PRI.match(text)
    if pri:
        facility, text = int(pri["pri"]) >> 3, text[pri.end() :]
    decoded = _DECODED.match(text)
    if decoded:
        facility, text = 0 if decoded["facility"] == "kern" else 1, text[decoded.end() :]
    if pri and pri.group().endswith("1 "):
        found = _RFC5424.match(text)
        if found:
            return _tagged(found, facility, "syslog")
    for pattern, style in ((_SYSLOG, "syslog"), (_ISO_LOG, "syslog"), (_UNIX, "syslog"), (_MONOTONIC, "journal")):
        found = pattern.match(text)
        if found and not (style == "journal" and found["tag"] != "kernel" and not found["pid"]):
            return _tagged(found, facility, style)
    line = _dmesg(text)
    if line is None:
        found = _KERNEL_TAG.match(text)
        if found:
            inner = _dmesg(text[found.end() :])
            line = replace(inner, style="tag") if inner else LogLine(text[found.end() :], style="tag")
            line = replace(line, writer=Writer.KERNEL, host=found["host"] or "")
        elif found := _PROGRAM.match(text):
            line = LogLine(text[found.end() :], Writer.PROGRAM, found["tag"], style="program")
        elif found := _TIMED.match(text):
            parsed = _iso(found["iso"])
            line = LogLine(text[found.end() :], at_s=parsed[0] if parsed else None, clock=parsed[1] if parsed else "")
        else:
            line = LogLine(
                text, Writer.KERNEL if pri and facility == 0 else Writer.NOBODY, style="priority" if pri else ""
            )
    if facility:
        return replace(line, writer=Writer.PROGRAM)
    return replace(line, text=_unescaped(line.text)) if "#0" in line.text else line


def _dmesg(text: str) -> LogLine | None:
    found = _DMESG.match(text)
    if found:
        return LogLine(text[found.end() :], Writer.KERNEL, at_s=float(found["s"]), clock="boot", style="dmesg")
    found = _DMESG_T.match(text)
    if found:
        at, clock = _date(found)
        return LogLine(text[found.end() :], Writer.KERNEL, at_s=at, clock=clock, style="dmesg")
    found = _DMESG_ISO.match(text) or _DMESG_ISO_BOX.match(text)
    if found:
        is_box = found.re is _DMESG_ISO_BOX
        parsed = _iso(found["iso"])
        at, clock = parsed if parsed else (None, "")
        # Many programs begin their lines with a date in brackets; only dmesg's own form has a comma.
        writer = Writer.NOBODY if is_box else Writer.KERNEL
        return LogLine(text[found.end() :], writer, at_s=at, clock=clock, style="" if is_box else "dmesg")
    found = _DMESG_H.match(text)
    if found:
        return LogLine(text[found.end() :], Writer.KERNEL, style="dmesg")
    return None


def _tagged(found: re.Match[str], facility: int | None, style: str) -> LogLine:
    groups = found.groupdict()
    tag, pid = groups["tag"], groups.get("pid")
    is_kernel = tag == "kernel" and pid in (None, "-") and not facility and groups.get("facility") in (None, "kern")
    at: float | None = None
    clock = ""
    if groups.get("month"):
        at, clock = _date(found)
    elif groups.get("unix"):
        at, clock = float(groups["unix"]), "wall"
    elif groups.get("boot_s"):
        at, clock = float(groups["boot_s"]), "boot"
    elif groups.get("iso"):
        parsed = _iso(groups["iso"])
        at, clock = parsed if parsed else (None, "")
    text = groups["text"] or ""
    if is_kernel:
        inner = _DMESG.match(text)
        if inner:
            text = text[inner.end() :]
    writer = Writer.KERNEL if is_kernel else Writer.PROGRAM
    return LogLine(
        _unescaped(text), writer, "" if is_kernel else tag, at, clock, host=groups.get("host") or "", style=style
    )


def _unescaped(text: str) -> str:
    """Undo rsyslog's octal escapes of line breaks and tabs."""
    if "#0" not in text:
        return text
    return _SYSLOG_ESCAPE.sub(lambda m: {"012": "\n", "011": "\t", "015": ""}.get(m.group(1), m.group()), text)


def _date(found: re.Match[str]) -> tuple[float | None, str]:
    month = _MONTHS.get(found["month"])
    year = int(found["year"]) if found["year"] else None
    if month is None:
        return None, ""
    try:
        # Without a year a leap year: 29 February must not be lost.
        day = datetime(year or 2000, month, int(found["day"]), int(found["h"]), int(found["m"]), tzinfo=UTC)
    except ValueError:
        return None, ""
    return day.timestamp() + float(found["s"]), "wall" if year else "year"


def _iso(text: str) -> tuple[float, str] | None:
    text = text.strip().replace(",", ".").replace(" UTC", "Z").replace("Z", "+00:00")
    text = re.sub(r" (?=[+-]\d\d)", "", text)
    text = re.sub(r"(\.\d{6})\d+", r"\1", text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp(), "wall"


# --- JSON ---------------------------------------------------------------------------------------------------------


def _json(text: str) -> LogLine | None:
    """Read a line of ``journalctl -o json`` or of a log shipper; None when it is some other JSON."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parse_journal_entry(data) if isinstance(data, dict) else None


def parse_journal_entry(data: Mapping[str, Any]) -> LogLine | None:
    """Read one entry of the journal, or one message of a shipper around it; None when it is neither."""
    if "MESSAGE" in data:
        transport, identifier = _text(data.get("_TRANSPORT")), _text(data.get("SYSLOG_IDENTIFIER"))
        facility = _text(data.get("SYSLOG_FACILITY"))
        is_kernel = transport == "kernel" if transport else identifier == "kernel" and facility in ("", "0")
        at, clock = _microseconds(data)
        body = _text(data["MESSAGE"])
        if is_kernel:
            inner = _DMESG.match(body)
            body = body[inner.end() :] if inner else body
        return LogLine(
            _unescaped(body),
            Writer.KERNEL if is_kernel else Writer.PROGRAM,
            "" if is_kernel else identifier or _text(data.get("_COMM")) or transport or "a program",
            at,
            clock,
            _text(data.get("_BOOT_ID")),
            _text(data.get("_HOSTNAME")),
            "journal",
        )
    if {"priority", "sequence", "msg"} <= data.keys():
        # Fluent Bit's reader of /dev/kmsg, which keeps only the kernel's level.
        seconds = data.get("sec")
        at = float(seconds) if isinstance(seconds, (int, float)) else None
        return LogLine(_text(data["msg"]), Writer.KERNEL, at_s=at, clock="boot" if at is not None else "", style="kmsg")
    for key in ("message", "log", "msg", "@message"):
        if isinstance(data.get(key), str):
            inner_text = data[key].rstrip("\n")
            if inner_text.startswith("{"):
                return None
            ident = _text(data.get("ident") or data.get("syslog_identifier") or data.get("program"))
            inner_line = parse_log_line(cleaned_line(inner_text))
            if ident:
                is_kernel = ident == "kernel" and inner_line.writer is not Writer.PROGRAM
                inner_line = replace(
                    inner_line,
                    writer=Writer.KERNEL if is_kernel else Writer.PROGRAM,
                    program="" if is_kernel else ident,
                )
            elif not inner_line.style and "stream" in data:
                inner_line = replace(inner_line, writer=Writer.PROGRAM, program="a container")
            return replace(inner_line, style=inner_line.style or "json")
    return None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(n, int) and 0 <= n < 256 for n in value[:_MAX_LINE]):
        # Messages that are not UTF-8 come as a list of bytes.
        return bytes(value[:_MAX_LINE]).decode("utf-8", errors="replace")
    if isinstance(value, list):
        return _text(value[0]) if value else ""
    return str(value) if isinstance(value, int) else ""


def _microseconds(data: Mapping[str, Any]) -> tuple[float | None, str]:
    for key, clock in (
        ("_SOURCE_REALTIME_TIMESTAMP", "wall"),
        ("__REALTIME_TIMESTAMP", "wall"),
        ("_SOURCE_MONOTONIC_TIMESTAMP", "boot"),
        ("__MONOTONIC_TIMESTAMP", "boot"),
    ):
        value = _text(data.get(key))
        if value.isascii() and value.isdigit() and len(value) < 20:
            return int(value) / 1e6, clock
    return None, ""
