"""``python3 -m hyperpod.checkpoint``: scan, latest, set-aside, usage, prune.

The controller runs ``scan --set-aside --json`` as the job's user before each new attempt. One process, one
answer on stdout, also when the directory is missing, unreadable, full of strange names or on a slow disk.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from hyperpod.checkpoint.find import Checkpoint, Listing, examine, foreign_folder, list_candidates
from hyperpod.checkpoint.keep import disk_bytes, prune, restore_replaced, set_aside_listing, usage

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_TRY_AGAIN = 75
LISTED_PROBLEMS = 50
LISTED_CHECKPOINTS = 200


class _TimeOut(Exception):
    pass


class _Deadline:
    """Interrupts what is under way after some seconds, once; 0 means never.

    A timer of the process, because a slow disk holds single calls up. A call that cannot be interrupted
    (a dead hard-mounted file system) also holds this up: the caller needs a deadline of its own.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.passed = False

    def __enter__(self) -> None:
        if self._seconds > 0:
            signal.signal(signal.SIGALRM, self._expire)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *error: object) -> bool:
        if self._seconds > 0:
            self._seconds = max(0.05, signal.setitimer(signal.ITIMER_REAL, 0)[0])
        if error[0] is _TimeOut:
            self.passed = True
            return True
        return False

    def _expire(self, signum: int, frame: object) -> None:
        raise _TimeOut


def report(
    directory: str,
    set_aside: bool = False,
    everything: bool = False,
    deadline_s: float = 0,
    min_age_s: float = 0,
    now: float | None = None,
) -> dict[str, Any]:
    """Scan a directory, set half-written checkpoints aside if asked to, and describe the outcome.

    Args:
        directory: Where the training saves.
        set_aside: Rename what is broken and newer than the newest good one.
        everything: Also look into checkpoints older than the newest good one.
        deadline_s: Answer after this time with what is known; 0 waits for ever.
        min_age_s: Set nothing aside that was changed within this time.
        now: Epoch seconds for the names of what is set aside.
    Returns:
        ``latest`` ('' if none) and its ``step``; ``certain`` is False when the answer "none" or "older"
        may be wrong because something could not be read or time ran out.
    """  # fmt: skip
    deadline = _Deadline(deadline_s)
    listing: Listing | None = None
    found: list[Checkpoint] = []
    moved: list[str] = []
    problems: list[str] = []
    certain = True
    done = False
    with deadline:
        try:
            foreign = foreign_folder(directory)
            if foreign:
                raise PermissionError(0, f"{foreign} carries your name and is not yours: nothing in it is trusted")
            if set_aside:
                restore_replaced(directory)
            listing = list_candidates(directory)
            for index in range(len(listing.candidates)):
                checkpoint = examine(listing, index)
                found.append(checkpoint)
                if checkpoint.good and not everything:
                    break
            done = True
        except OSError as error:
            certain = False
            problems.append(f"cannot list {directory}: {error.strerror or error}")
    best = next((checkpoint for checkpoint in found if checkpoint.good), None)
    newer = found if best is None else found[: found.index(best)]
    certain = certain and (done or best is not None) and all(checkpoint.certain for checkpoint in newer)
    if listing is not None:
        problems.extend(listing.problems)
        problems.extend(f"{os.path.basename(c.path)}: {c.problem}" for c in found if c.problem)
        if set_aside and (done or best is not None):
            # Not cut short by the deadline: renames are quick, and their report must be whole.
            moved, refused = set_aside_listing(listing, newer, min_age_s, now)
            problems.extend(refused)
    if deadline.passed:
        problems.append(f"not finished within {deadline_s:g} s")
    total: int | None = None
    if not deadline.passed:
        with deadline:
            total = disk_bytes(directory)
    return {
        "directory": directory,
        "latest": best.path if best else "",
        "step": best.step if best else None,
        "certain": certain,
        "timed_out": deadline.passed,
        "set_aside": moved,
        "problems": problems[:LISTED_PROBLEMS],
        "total_bytes": total,
        "checkpoints": [c._asdict() for c in found[:LISTED_CHECKPOINTS]],
        "unchecked": len(listing.candidates) - len(found) if listing is not None else 0,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; see ``--help``."""
    arguments = _parser().parse_args(argv)
    directory = arguments.directory
    try:
        if arguments.command == "usage":
            answer: dict[str, Any] = {"directory": directory, **usage(directory)._asdict()}
            text = [f"{key}\t{value}" for key, value in answer.items()]
        elif arguments.command == "prune":
            paths = prune(directory, arguments.keep, dry_run=not arguments.yes, with_set_aside=arguments.with_set_aside)
            answer = {"directory": directory, "dry_run": not arguments.yes, "deleted": paths}
            text = [("deleted " if arguments.yes else "would delete ") + path for path in paths]
        else:
            answer = report(
                directory,
                set_aside=arguments.command == "set-aside" or getattr(arguments, "set_aside", False),
                everything=getattr(arguments, "all", False),
                deadline_s=arguments.deadline,
                min_age_s=getattr(arguments, "min_age", 0.0),
            )
            text = _lines(arguments.command, answer)
    except OSError as error:
        sys.stderr.write(f"error: {directory}: {error.strerror or error}\n")
        return EXIT_FAILED
    if arguments.json:
        text = [json.dumps(answer)]
    for line in text:
        sys.stdout.write(line.encode("utf-8", "surrogateescape").decode("utf-8", "replace") + "\n")
    return EXIT_TRY_AGAIN if answer.get("timed_out") or answer.get("certain") is False else EXIT_OK


def _lines(command: str, answer: dict[str, Any]) -> list[str]:
    if command == "latest":
        return [answer["latest"]] if answer["latest"] else []
    if command == "set-aside":
        return list(answer["set_aside"])
    lines = []
    for checkpoint in answer["checkpoints"]:
        good = checkpoint["complete"] and checkpoint["readable"]
        lines.append(f"{'good' if good else 'bad '}\t{checkpoint['path']}\t{checkpoint['problem']}".rstrip())
    return lines + [f"set aside\t{path}" for path in answer["set_aside"]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m hyperpod.checkpoint",
        description="Find, verify and keep the checkpoints of a training. Nothing is ever loaded (unpickled).",
        epilog="Exit status: 0 done, 1 failed, 2 usage, 75 not sure: something was unreadable or too slow.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    described = {
        "scan": "list checkpoints, newest first, down to the first good one",
        "latest": "print the newest complete and readable one",
        "set-aside": "rename half-written ones newer than the newest good one",
        "usage": "disk use",
        "prune": "delete good ones beyond the newest --keep; says what it would do unless --yes",
    }
    for name, text in described.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("directory", metavar="DIR")
        command.add_argument("--json", action="store_true", help="one JSON object on stdout")
        if name in ("scan", "latest", "set-aside"):
            command.add_argument("--deadline", type=float, default=0.0, metavar="S", help="answer within S seconds")
        if name == "scan":
            command.add_argument("--set-aside", action="store_true", help="also rename half-written ones")
            command.add_argument("--all", action="store_true", help="also check those older than the first good one")
        if name in ("scan", "set-aside"):
            command.add_argument("--min-age", type=float, default=0.0, metavar="S",
                                 help="rename nothing changed within S seconds")  # fmt: skip
        if name == "prune":
            command.add_argument("--keep", type=int, required=True, metavar="N", help="good ones to keep, at least 2")
            command.add_argument("--yes", action="store_true", help="really delete")
            command.add_argument("--with-set-aside", action="store_true", help="also delete what was set aside")
    return parser


if __name__ == "__main__":
    sys.exit(main())
