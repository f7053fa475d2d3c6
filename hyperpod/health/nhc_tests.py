"""The tests that lines of an nhc.conf ask for, made with our own ports. One function each.

``prepare`` reads a line's arguments once, so that a mistake in it is told when the file is read; what it returns looks
at the machine each time. A test answers with a sentence about what is wrong, or nothing. Not being able to look raises
``CannotTell``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.health.check import Ports
from hyperpod.health.nhc import (
    COVERED,
    NOT_NEEDED,
    Amount,
    Line,
    matches,
    options,
    parse_amount,
    parse_conf,
    parse_count,
    parse_number,
    parse_size,
)
from hyperpod.health.why_not_run import plain_error
from hyperpod.ports.host import DiskUsage, FileKind, FileStat

Test = Callable[[Ports], str]
"""Returns what is wrong, or an empty text."""

COMMAND_S = 5.0
_MOST_COMMAND_S = 20.0
_MOST_TEXT = 4 * 1024 * 1024


class CannotTell(Exception):
    """The test could not look."""


def prepare(line: Line) -> Test:
    """Return the test of a line.

    Raises:
        ValueError: if there is no such check, with the nearest or what to do instead; if its arguments are not
            understood, with what it takes.
    """
    maker = MAKERS.get(line.check)
    if maker is None:
        why = NOT_NEEDED.get(line.check)
        raise ValueError(f"{line.check} is not made here: {why}" if why else _no_such_check(line.check))
    try:
        return maker(line.arguments)
    except ValueError as error:
        raise ValueError(f"{error}; {line.check} takes {TAKES[line.check]}") from error


def _no_such_check(name: str) -> str:
    # The first word is the same in all names, and would make them look alike.
    known = {one.removeprefix("check_"): one for one in (*MAKERS, *COVERED, *NOT_NEEDED)}
    near = difflib.get_close_matches(name.lower().removeprefix("check_"), known, n=1, cutoff=0.7)
    if near:
        return f"there is no check {name}; did you mean {known[near[0]]}?"
    return f"there is no check {name}; an executable in /etc/hyperpod/checks.d can do it"


def wrong_lines(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Return the mistakes in lines of a specification, as a node would meet them: the index of each, and why.

    What our own checks cover is no mistake; a setting of NHC's own does nothing here, so it is one.
    """
    # A line break in a text makes two lines of it, as on the node.
    index_of = [index for index, text in enumerate(lines) for _ in (text + "\n").splitlines()]
    conf = parse_conf("\n".join(lines))
    found = [(index_of[trouble.number - 1], trouble.why) for trouble in conf.troubles]
    for line in conf.lines:
        if line.check in COVERED:
            continue
        try:
            prepare(line)
        except ValueError as error:
            found.append((index_of[line.number - 1], str(error)))
    for index, text in enumerate(lines):
        for name in parse_conf(text).variables:
            does = "write Mode: observe beside Settings" if name == "MARK_OFFLINE" else "leave it out"
            found.append((index, f"{name} is a setting of NHC and does nothing here; {does}"))
    return sorted(found)


def is_warning(line: Line) -> bool:
    """Say whether the line itself says that it must not take the node out of service (``-0``)."""
    return "-0" in line.arguments and line.check.startswith(("check_fs_mount", "check_ps_", "check_net_socket"))


def _read(ports: Ports, path: str) -> str:
    try:
        return ports.host.read_text(path, _MOST_TEXT)
    except OSError as error:
        raise CannotTell(f"{path}: {error.strerror or error}") from error


# --- file systems -------------------------------------------------------------------------------------------------


def _fs_mount(arguments: Sequence[str], needed: str = "") -> Test:
    found, words = options(arguments, "0r", "tsoOeEfF")
    places = [*found.get("f", ()), *found.get("F", ())]
    wanted = {
        name: found[letter][-1]
        for name, letter in (("type", "t"), ("source", "s"), ("options", "o"))
        if letter in found
    }
    if not places:
        places, rest = words[:1], words[1:]
        wanted |= dict(zip(("source", "type", "options"), rest, strict=False))
    else:
        places += words
    if not places:
        raise ValueError("it names no mount point")
    for pattern in wanted.values():
        matches(pattern, "")
    return partial(_test_mount, tuple(places), wanted, needed)


def _test_mount(places: tuple[str, ...], wanted: Mapping[str, str], needed: str, ports: Ports) -> str:
    mounts = {mount.path: mount for mount in ports.host.mounts()}
    for place in places:
        mount = mounts.get(place.rstrip("/") or "/")
        if mount is None:
            return f"{place} is not mounted"
        if needed and needed not in mount.options:
            return f"{place} is not mounted {'read-write' if needed == 'rw' else 'read-only'}"
        found = {"type": mount.type, "source": mount.source, "options": ",".join(sorted(mount.options))}
        for name, pattern in wanted.items():
            if not matches(pattern, found[name]):
                return f"the {name} of {place} is {found[name][:80]}, not {pattern}"
    return ""


def _usage(ports: Ports, place: str) -> DiskUsage:
    path = place
    if place.startswith("/dev/") and place != "/dev/shm":
        path = next((m.path for m in ports.host.mounts() if m.source == place), place)
    try:
        return ports.host.disk(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CannotTell(f"{place}: {error.strerror or error}") from error


def _of_type(ports: Ports, pattern: str) -> list[str]:
    return [mount.path for mount in ports.host.mounts() if matches(pattern, mount.type)]


Judge = Callable[[str, DiskUsage], str]


def _is_short(have: int, total: int, least: Amount) -> bool:
    if least.percent is not None:
        return total > 0 and 100 * have < least.percent * total
    return have < least.size_bytes


def _is_above(have: int, total: int, most: Amount) -> bool:
    if most.percent is not None:
        return total > 0 and 100 * have > most.percent * total
    return have > most.size_bytes


def _share(part: int, total: int) -> str:
    return f"{part // 1_000_000} MB ({100 * part / total:.1f} %)" if total else "0 MB"


def _judge_free(least: Amount, place: str, usage: DiskUsage) -> str:
    if not _is_short(usage.free_bytes, usage.total_bytes, least):
        return ""
    return f"{place} has {_share(usage.free_bytes, usage.total_bytes)} free"


def _judge_used(most: Amount, place: str, usage: DiskUsage) -> str:
    used = usage.total_bytes - usage.free_bytes
    return f"{place} has {_share(used, usage.total_bytes)} used" if _is_above(used, usage.total_bytes, most) else ""


def _judge_size(least: int, most: int | None, place: str, usage: DiskUsage) -> str:
    is_wrong = usage.total_bytes < least or (most is not None and usage.total_bytes > most)
    return f"{place} has a size of {usage.total_bytes // 1_000_000} MB" if is_wrong else ""


def _judge_inodes_free(least: Amount, place: str, usage: DiskUsage) -> str:
    # A file system without a limit says 0 of 0.
    is_limited = usage.total_inodes > 0
    if not is_limited or not _is_short(usage.free_inodes, usage.total_inodes, least):
        return ""
    return f"{place} has {usage.free_inodes} inodes free"


def _judge_inodes_used(most: Amount, place: str, usage: DiskUsage) -> str:
    used = usage.total_inodes - usage.free_inodes
    return f"{place} has {used} inodes used" if _is_above(used, usage.total_inodes, most) else ""


def _judge_inodes(least: int, most: int | None, place: str, usage: DiskUsage) -> str:
    is_wrong = usage.total_inodes < least or (most is not None and usage.total_inodes > most)
    return f"{place} has {usage.total_inodes} inodes" if is_wrong else ""


def _inodes(text: str) -> Amount:
    return parse_amount(text) if text.endswith("%") else Amount(parse_count(text))


def _fs(kind: str, arguments: Sequence[str], is_all: bool = False) -> Test:
    if not arguments or len(arguments) > 3:
        raise ValueError("it needs a mount point and a limit")
    place, *limits = arguments
    judge: Judge
    if kind in ("size", "inodes"):
        parse = parse_size if kind == "size" else parse_count
        low = parse(limits[0]) if limits and limits[0] else 0
        high = parse(limits[1]) if len(limits) > 1 and limits[1] else None
        judge = partial(_judge_size if kind == "size" else _judge_inodes, low, high)
    else:
        if len(limits) != 1:
            raise ValueError("it needs a mount point and a limit")
        amount = _inodes(limits[0]) if kind.startswith("i") else parse_amount(limits[0])
        judges = {"free": _judge_free, "used": _judge_used, "ifree": _judge_inodes_free, "iused": _judge_inodes_used}
        judge = partial(judges[kind], amount)
    return partial(_test_fs, place, is_all, judge)


def _test_fs(place: str, is_all: bool, judge: Judge, ports: Ports) -> str:
    for path in _of_type(ports, place) if is_all else [place]:
        try:
            usage = _usage(ports, path)
        except FileNotFoundError:
            return f"{path} does not exist"
        wrong = judge(path, usage)
        if wrong:
            return wrong
    return ""


# --- the machine --------------------------------------------------------------------------------------------------


def _numbers(arguments: Sequence[str], least: int, most: int) -> list[int]:
    if not least <= len(arguments) <= most:
        raise ValueError(f"it needs {least} to {most} numbers, not {len(arguments)}")
    return [int(parse_number(text, "whole number", is_whole=True)) if text else 0 for text in arguments]


def _cpuinfo(arguments: Sequence[str]) -> Test:
    return partial(_test_cpuinfo, _numbers(arguments, 0, 3))


def _test_cpuinfo(wanted: list[int], ports: Ports) -> str:
    sockets, cores, threads = set(), set(), 0
    for block in _read(ports, "/proc/cpuinfo").split("\n\n"):
        values = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in block.splitlines())}
        if "processor" not in values:
            continue
        threads += 1
        package = values.get("physical id", "0")
        sockets.add(package)
        cores.add((package, values.get("core id", values["processor"])))
    if not threads:
        raise CannotTell("/proc/cpuinfo names no processor")
    names = ("sockets", "cores", "threads")
    for name, want, have in zip(names, wanted, (len(sockets), len(cores), threads), strict=False):
        if want and have != want:
            return f"the machine has {have} {name} of processors, not {want}"
    return ""


def _meminfo(ports: Ports) -> dict[str, int]:
    text = _read(ports, "/proc/meminfo")
    return {name: int(value) * 1024 for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _total_memory(values: Mapping[str, int], kind: str) -> int:
    parts = {"physmem": ("MemTotal",), "swap": ("SwapTotal",), "mem": ("MemTotal", "SwapTotal")}[kind]
    return sum(_value(values, name) for name in parts)


def _free_memory(values: Mapping[str, int], kind: str) -> int:
    physical = values.get("MemFree", 0) + values.get("Buffers", 0) + values.get("Cached", 0)
    swap = values.get("SwapFree", 0)
    return {"physmem": physical, "swap": swap, "mem": physical + swap}[kind]


def _value(values: Mapping[str, int], name: str) -> int:
    if name not in values:
        raise CannotTell(f"/proc/meminfo has no {name}")
    return values[name]


def _memory(kind: str, arguments: Sequence[str]) -> Test:
    if not 1 <= len(arguments) <= 3:
        raise ValueError("it needs a least and a most size")
    low = parse_size(arguments[0]) if arguments[0] else 0
    high = parse_size(arguments[1]) if len(arguments) > 1 and arguments[1] else None
    fudge = parse_amount(arguments[2]) if len(arguments) > 2 else Amount()
    return partial(_test_memory, kind, low, high, fudge)


_MEMORY = {"physmem": "memory", "swap": "swap", "mem": "memory and swap"}


def _test_memory(kind: str, low: int, high: int | None, fudge: Amount, ports: Ports) -> str:
    total = _total_memory(_meminfo(ports), kind)
    margin = fudge.size_bytes if fudge.percent is None else int(total * fudge.percent / 100)
    if total + margin < low or (high is not None and total - margin > high):
        return f"the machine has {total >> 20} MiB of {_MEMORY[kind]}"
    return ""


def _memory_free(kind: str, arguments: Sequence[str]) -> Test:
    if len(arguments) != 1:
        raise ValueError("it needs a least size")
    return partial(_test_memory_free, kind, parse_size(arguments[0]))


def _test_memory_free(kind: str, low: int, ports: Ports) -> str:
    free = _free_memory(_meminfo(ports), kind)
    return f"only {free >> 20} MiB of {_MEMORY[kind]} are free" if free < low else ""


def _eth(arguments: Sequence[str]) -> Test:
    if len(arguments) != 1:
        raise ValueError("it needs the name of an interface")
    return partial(_test_eth, arguments[0])


def _test_eth(name: str, ports: Ports) -> str:
    try:
        return "" if name in ports.host.list_dir(f"{ports.facts.sysfs}/class/net") else f"there is no interface {name}"
    except OSError as error:
        raise CannotTell(f"the interfaces cannot be listed: {error.strerror or error}") from error


def _ib(arguments: Sequence[str]) -> Test:
    if not 1 <= len(arguments) <= 2:
        raise ValueError("it needs a rate in Gb/s")
    device, _, port = arguments[1].partition(":") if len(arguments) > 1 else ("", "", "")
    return partial(_test_ib, parse_number(arguments[0], "rate in Gb/s"), device, port)


def _test_ib(rate: float, device: str, port: str, ports: Ports) -> str:
    base = f"{ports.facts.sysfs}/class/infiniband"
    try:
        devices = [device] if device else list(ports.host.list_dir(base))
        found = []
        for name in devices:
            for number in ports.host.list_dir(f"{base}/{name}/ports"):
                if port in ("", number):
                    folder = f"{base}/{name}/ports/{number}"
                    state = ports.host.read_text(f"{folder}/state").strip()
                    speed = ports.host.read_text(f"{folder}/rate").split()
                    found.append((name, state, float(speed[0]) if speed else 0.0))
    except OSError:
        return f"there is no InfiniBand device{' ' + device if device else ''}"
    except ValueError as error:
        raise CannotTell(f"the InfiniBand rate is not understood: {error}") from error
    if any("ACTIVE" in state and speed == rate for _, state, speed in found):
        return ""
    shown = ", ".join(f"{name} {state} at {speed:g}" for name, state, speed in found) or "none"
    return f"no active InfiniBand link of {rate:g} Gb/s (found: {shown})"


def _loadavg(arguments: Sequence[str]) -> Test:
    if not 1 <= len(arguments) <= 3:
        raise ValueError("it needs one to three limits")
    return partial(_test_loadavg, [parse_number(text, "load") if text else 0.0 for text in arguments])


def _test_loadavg(limits: list[float], ports: Ports) -> str:
    try:
        loads = [float(word) for word in _read(ports, "/proc/loadavg").split()[:3]]
    except ValueError as error:
        raise CannotTell(f"/proc/loadavg: {error}") from error
    for minutes, limit, load in zip((1, 5, 15), limits, loads, strict=False):
        if limit and load > limit:
            return f"the load of {minutes} minutes is {load:g}, above {limit:g}"
    return ""


# --- processes and commands ---------------------------------------------------------------------------------------


def _service(arguments: Sequence[str]) -> Test:
    found, words = options(arguments, "0Srcsk", "udme")
    if len(words) != 1:
        raise ValueError("it needs one service")
    pattern = found["m"][-1] if "m" in found else ""
    if pattern:
        matches(pattern, "")
    daemon = found["d"][-1] if "d" in found else words[0].removesuffix(".service")
    return partial(_test_service, daemon, pattern, found["u"][-1] if "u" in found else "")


def _daemon(arguments: Sequence[str]) -> Test:
    if not 1 <= len(arguments) <= 2:
        raise ValueError("it needs a program and perhaps its owner; arguments are not compared")
    return partial(_test_service, arguments[0], "", arguments[1] if len(arguments) > 1 else "")


def _test_service(daemon: str, pattern: str, owner: str, ports: Ports) -> str:
    wanted = None if not owner else _uid(ports, owner)
    for process in ports.host.processes():
        # The kernel cuts names at 15 characters.
        is_it = matches(pattern, process.name) if pattern else process.name == daemon.rpartition("/")[2][:15]
        if is_it and wanted in (None, process.uid):
            return ""
    return f"{daemon} does not run" + (f" as {owner}" if owner else "")


def _uid(ports: Ports, owner: str) -> int:
    if owner == "root":
        return 0
    if owner.isdigit():
        return int(owner)
    for line in _read(ports, "/etc/passwd").splitlines():
        fields = line.split(":")
        if fields[0] == owner and len(fields) > 2 and fields[2].isdigit():
            return int(fields[2])
    raise CannotTell(f"there is no user {owner} in /etc/passwd")


def _command(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str], float]:
    found, words = options(arguments, "", "trme")
    if "e" in found:
        words = found["e"][-1].split()
    if not words:
        raise ValueError("it names no command")
    seconds = parse_number(found["t"][-1], "number of seconds") if "t" in found else COMMAND_S
    if not 0 < seconds <= _MOST_COMMAND_S:
        raise ValueError(f"-t must be more than 0 and at most {_MOST_COMMAND_S:g} s")
    for pattern in found.get("m", ()):
        matches(pattern, "")
    if "r" in found:
        _status(found)
    return found, words, seconds


def _status(found: Mapping[str, list[str]]) -> int:
    return int(parse_number(found["r"][-1], "exit status", is_whole=True))


def _cmd_status(arguments: Sequence[str]) -> Test:
    found, words, seconds = _command(arguments)
    if "r" not in found:
        raise ValueError("-r with the exit status is missing")
    return partial(_test_command, words, seconds, _status(found), ())


def _cmd_output(arguments: Sequence[str]) -> Test:
    found, words, seconds = _command(arguments)
    status = _status(found) if "r" in found else None
    return partial(_test_command, words, seconds, status, tuple(found.get("m", ())))


def _test_command(words: list[str], seconds: float, status: int | None, patterns: tuple[str, ...], ports: Ports) -> str:
    code, output = _run(ports, words, seconds)
    name = " ".join(words)[:60]
    if status is not None and code != status:
        return f"{name} ended with {code}, not {status}"
    lines = output.splitlines()
    for pattern in patterns:
        if pattern.startswith("!"):
            bad = next((line for line in lines if matches(pattern[1:], line)), None)
            if bad is not None:
                return f"{name} printed a line that matches {pattern[1:]}: {bad[:80]}"
        elif not any(matches(pattern, line) for line in lines):
            return f"{name} printed no line that matches {pattern}"
    return ""


def _run(ports: Ports, words: Sequence[str], seconds: float) -> tuple[int, str]:
    try:
        done = ports.host.run_apart(list(words), seconds)
    except CommandTimeout as error:
        raise CannotTell(f"{words[0]} did not end within {seconds:g} s") from error
    except CommandError as error:
        why = plain_error(error.stderr_tail)[:100] or str(error)
        raise CannotTell(f"{words[0]} cannot be run: {why}") from error
    return done.code, done.stdout


def _ping(arguments: Sequence[str]) -> Test:
    found, targets = options(arguments, "", "IWcistw")
    if not targets or any(target.startswith("-") for target in targets):
        raise ValueError("it names no target")
    words = [word for letter, values in found.items() for word in (f"-{letter}", values[-1])]
    if "c" not in found:
        words += ["-c", "1"]
    return partial(_test_ping, words, tuple(targets))


def _test_ping(words: list[str], targets: tuple[str, ...], ports: Ports) -> str:
    for target in targets:
        code, _ = _run(ports, ["ping", "-q", "-n", *words, target], _MOST_COMMAND_S)
        if code == 1:
            return f"{target} does not answer"
        if code:
            raise CannotTell(f"ping {target} ended with {code}")
    return ""


def _socket(arguments: Sequence[str]) -> Test:
    found, words = options([a for a in arguments if a != "-!"], "0a", "npslrtudeE")
    if "-!" in arguments or words or "r" in found or "t" in found or "u" in found:
        raise ValueError("only a listening TCP port (-p tcp -s LISTEN -l address:port) is looked for")
    if found.get("p", ["tcp"])[-1] not in ("tcp", "tcp6") or found.get("s", ["LISTEN"])[-1].upper() != "LISTEN":
        raise ValueError("only a listening TCP port (-p tcp -s LISTEN -l address:port) is looked for")
    port = found.get("l", [""])[-1].rpartition(":")[2]
    if not port:
        raise ValueError("-l with a port is missing")
    if not 1 <= parse_number(port, "port", is_whole=True) <= 65_535:
        raise ValueError(f"{port} is no port from 1 to 65535")
    return partial(_test_socket, int(port))


def _test_socket(port: int, ports: Ports) -> str:
    # A listening socket has state 0A; the port is the local address's last four hex digits.
    pattern = re.compile(rf"^\s*\d+: [0-9A-F]+:{port:04X} [0-9A-F]+:[0-9A-F]{{4}} 0A ", re.MULTILINE)
    texts = [_read(ports, "/proc/net/tcp")]
    try:
        texts.append(ports.host.read_text("/proc/net/tcp6", _MOST_TEXT))
    except OSError:
        # A machine without IPv6.
        texts.append("")
    return "" if any(pattern.search(text) for text in texts) else f"nothing listens on TCP port {port}"


# --- files and firmware -------------------------------------------------------------------------------------------

_KINDS = {"f": FileKind.FILE, "d": FileKind.FOLDER, "b": FileKind.BLOCK, "c": FileKind.CHARACTER, "p": FileKind.PIPE,
          "S": FileKind.SOCKET}  # fmt: skip
_BITS = {"g": 0o2000, "k": 0o1000, "u": 0o4000, "x": 0o111}


def _file_test(arguments: Sequence[str]) -> Test:
    found, paths = options(arguments, "abcdefghkprsuwxOLS", "")
    if not found or not paths:
        raise ValueError("it needs a test and a file")
    return partial(_test_file, tuple(found), tuple(paths))


def _test_file(tests: tuple[str, ...], paths: tuple[str, ...], ports: Ports) -> str:
    for path in paths:
        for test in tests:
            wrong = _one_file(test, path, ports)
            if wrong:
                return wrong
    return ""


def _one_file(test: str, path: str, ports: Ports) -> str:
    try:
        facts = ports.host.stat(path, follow=test not in "hL")
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as error:
        raise CannotTell(f"{path}: {error.strerror or error}") from error
    return "" if _is_so(test, facts) else f"{path} fails the test -{test}"


def _is_so(test: str, facts: FileStat) -> bool:
    if test in _KINDS:
        return facts.kind is _KINDS[test]
    if test in "hL":
        return facts.kind is FileKind.LINK
    if test in _BITS:
        return bool(facts.mode & _BITS[test])
    if test == "s":
        return facts.size_bytes > 0
    if test == "O":
        return facts.uid == 0
    # -a, -e, and -r and -w for root, who may.
    return True


def _dmi(arguments: Sequence[str]) -> Test:
    words = ["-!" if word in ("!", "-n") else word for word in arguments]
    is_negative = "-!" in words
    found, rest = options([word for word in words if word != "-!"], "", "ht")
    if len(rest) != 1 or "h" in found:
        raise ValueError("it needs one match string; handles are not understood")
    matches(rest[0], "")
    return partial(_test_dmi, rest[0], found["t"][-1] if "t" in found else "", is_negative)


def _test_dmi(pattern: str, section: str, is_negative: bool, ports: Ports) -> str:
    lines = dmi_lines(_dmidecode(ports))
    if section:
        lines = [line for line in lines if line.startswith(f"{section}: ")]
    if any(matches(pattern, line) for line in lines) != is_negative:
        return ""
    return f"the firmware's tables have {'a' if is_negative else 'no'} line {pattern}"


def _dmi_raw(arguments: Sequence[str]) -> Test:
    if not arguments:
        raise ValueError("it needs a match string")
    for pattern in arguments:
        matches(pattern, "")
    return partial(_test_dmi_raw, tuple(arguments))


def _test_dmi_raw(patterns: tuple[str, ...], ports: Ports) -> str:
    lines = [line.strip() for line in _dmidecode(ports).splitlines()]
    for pattern in patterns:
        if not any(matches(pattern, line) for line in lines):
            return f"the firmware's tables have no line {pattern}"
    return ""


def _dmidecode(ports: Ports) -> str:
    code, output = _run(ports, ["dmidecode"], COMMAND_S)
    if code:
        raise CannotTell(f"dmidecode ended with {code}")
    return output


def dmi_lines(text: str) -> list[str]:
    """Return dmidecode's output with each line's headings before it: ``BIOS Information: Version: 1.0``."""
    lines, title, heading = [], "", ""
    for raw in text.splitlines():
        if not raw.strip() or raw.startswith(("Handle ", "#")):
            continue
        if not raw.startswith("\t"):
            title, heading = raw.strip(), ""
        elif raw.startswith("\t\t"):
            lines.append(f"{title}: {heading}: {raw.strip()}")
        else:
            heading = raw.strip().removesuffix(":")
            lines.append(f"{title}: {raw.strip()}")
    return lines


MAKERS: Mapping[str, Callable[[Sequence[str]], Test]] = {
    "check_fs_mount": _fs_mount,
    "check_fs_mount_rw": partial(_fs_mount, needed="rw"),
    "check_fs_mount_ro": partial(_fs_mount, needed="ro"),
    **{f"check_fs_{kind}": partial(_fs, kind) for kind in ("free", "used", "size", "ifree", "iused", "inodes")},
    **{
        f"check_all_fs_{kind}": partial(_fs, kind, is_all=True)
        for kind in ("free", "used", "size", "ifree", "iused", "inodes")
    },
    "check_hw_cpuinfo": _cpuinfo,
    "check_hw_physmem": partial(_memory, "physmem"),
    "check_hw_swap": partial(_memory, "swap"),
    "check_hw_mem": partial(_memory, "mem"),
    "check_hw_physmem_free": partial(_memory_free, "physmem"),
    "check_hw_swap_free": partial(_memory_free, "swap"),
    "check_hw_mem_free": partial(_memory_free, "mem"),
    "check_hw_eth": _eth,
    "check_hw_gm": _eth,
    "check_hw_ib": _ib,
    "check_ps_service": _service,
    "check_ps_daemon": _daemon,
    "check_ps_loadavg": _loadavg,
    "check_file_test": _file_test,
    "check_cmd_status": _cmd_status,
    "check_cmd_output": _cmd_output,
    "check_net_ping": _ping,
    "check_net_socket": _socket,
    "check_dmi_data_match": _dmi,
    "check_dmi_raw_data_match": _dmi_raw,
}
"""The checks of NHC that we can make ourselves."""

_MOUNT = "[-0] [-t TYPE] [-s SOURCE] [-o OPTIONS] -f MOUNT_POINT"
_LIMIT = "MOUNT_POINT and 5% or 128MB"
_INODES = "MOUNT_POINT and 5% or 1k"
_RANGE = "MOUNT_POINT LEAST [MOST]"
_SIZES = "LEAST [MOST] [FUDGE], as 256GB 256GB 3%"

TAKES: Mapping[str, str] = {
    "check_fs_mount": _MOUNT,
    "check_fs_mount_rw": _MOUNT,
    "check_fs_mount_ro": _MOUNT,
    **{f"check_fs_{kind}": _LIMIT for kind in ("free", "used")},
    **{f"check_fs_{kind}": _INODES for kind in ("ifree", "iused")},
    **{f"check_fs_{kind}": _RANGE for kind in ("size", "inodes")},
    **{f"check_all_fs_{kind}": _LIMIT.replace("MOUNT_POINT", "FS_TYPE") for kind in ("free", "used")},
    **{f"check_all_fs_{kind}": _INODES.replace("MOUNT_POINT", "FS_TYPE") for kind in ("ifree", "iused")},
    **{f"check_all_fs_{kind}": _RANGE.replace("MOUNT_POINT", "FS_TYPE") for kind in ("size", "inodes")},
    "check_hw_cpuinfo": "[SOCKETS] [CORES] [THREADS]",
    **{f"check_hw_{kind}": _SIZES for kind in ("physmem", "swap", "mem")},
    **{f"check_hw_{kind}_free": "a least size, as 1GB" for kind in ("physmem", "swap", "mem")},
    "check_hw_eth": "the name of an interface",
    "check_hw_gm": "the name of an interface",
    "check_hw_ib": "RATE_IN_GBIT_S [DEVICE[:PORT]]",
    "check_ps_service": "[-0] [-u OWNER] [-d PROGRAM] [-m MATCH] SERVICE",
    "check_ps_daemon": "PROGRAM [OWNER]",
    "check_ps_loadavg": "LIMIT [LIMIT] [LIMIT], for 1, 5 and 15 minutes",
    "check_file_test": "tests as in bash (-f -d -s -r -x ...) and files",
    "check_cmd_status": "[-t SECONDS] -r STATUS COMMAND",
    "check_cmd_output": "[-t SECONDS] [-r STATUS] -m MATCH COMMAND",
    "check_net_ping": "[-c COUNT] [-w SECONDS] TARGET",
    "check_net_socket": "-p tcp -s LISTEN -l ADDRESS:PORT",
    "check_dmi_data_match": "[-t SECTION] [!] MATCH",
    "check_dmi_raw_data_match": "MATCH",
}
"""What each of them takes, for people who have written something else."""
