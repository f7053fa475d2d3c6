"""``hyperpod submit``: copy a script to the cluster, hand it to Slurm, and follow the job.

Owns the command and what it shows. The job belongs to Slurm from the moment it has a number: whatever happens here,
it goes on.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hyperpod.cli.node import cloud_of
from hyperpod.cli.options import (
    ClusterOption,
    OutputOption,
    ProfileOption,
    ProviderOption,
    RegionOption,
    examples,
    one_name,
    place_of,
)
from hyperpod.cli.place import Place
from hyperpod.cli.reach import (
    DashedCommand,
    DirectOption,
    KeyOption,
    NodeSession,
    UserOption,
    after_dashes,
    ec2_spot,
    local_spot,
    login_name,
    open_spot,
    own_name,
)
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.core.follow import JobLook, Reader, is_settled, parse_job
from hyperpod.errors import CommandError, ConnectionLost, SlurmError, SlurmUnavailable, UsageError
from hyperpod.ports.login import Answer, Session

_FOLDER = "hyperpod-jobs"
_MOST_BYTES = 4 * 1024 * 1024
"""Slurm's own limit of a script (``max_script_size``)."""
_ASK_S = 60.0
_POLL_S = 1.0
_SLOW_POLL_S = 5.0
"""A look through Session Manager takes a session, and an account gets three a second."""
_VERDICT_LOOKS = 60
_LOST_LOOKS = 30
_AT_ONCE = 4 * 1024 * 1024
_BEFORE_OUTPUT = "--hyperpod-output--"
_LOOK = f"""scontrol --oneliner show job "$1" 2>&1
echo {_BEFORE_OUTPUT}
if [ -n "$2" ] && [ -f "$2" ]; then tail -c "+$(($3 + 1))" -- "$2" | head -c {_AT_ONCE} | base64; else echo -; fi
"""


def register(app: typer.Typer) -> None:
    """Add ``submit`` to the program."""
    app.command(
        "submit",
        cls=DashedCommand,
        epilog=examples(
            "hyperpod submit demo train.sbatch -- --auto-resume --nodes=2",
            "hyperpod submit train.sbatch --follow",
        ),
    )(submit)


def submit(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[CLUSTER] SCRIPT [-- SBATCH-OPTIONS... [-- ARGUMENTS...]]", help="The script, and where to."
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show its output until it ends; end with its exit status.")
    ] = False,
    user: UserOption = None,
    key: KeyOption = None,
    direct: DirectOption = False,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy a batch script to the head node and submit it.

    It goes into a new folder below ~/hyperpod-jobs of the user (default: ubuntu), where the job runs. --follow stays
    through all attempts of the job; Ctrl-C leaves the job running."""
    place = place_of(ctx)
    if len(words) > 2:
        raise UsageError(f"one word too many: {words[2]}", hint="options of sbatch stand behind --")
    script = Path(words[-1])
    asked = one_name(words[0] if len(words) == 2 else None, cluster)
    data = read_script(script)
    options = after_dashes(ctx) or []
    arguments = options[options.index("--") + 1 :] if "--" in options else []
    options = options[: options.index("--")] if "--" in options else options
    with ExitStack() as stack:
        session, name, poll_s = _session(place, stack, asked, user, key, direct, provider, region, profile)
        path = session.put(_FOLDER, script.name, data)
        job = _sbatch(session, path, options, arguments)
        if not follow:
            _tell({"cluster": name, "job_id": job, "script": path}, f"job {job}", output)
            return
        say(f"job {job} of {path}; Ctrl-C leaves it running")
        to = sys.stderr if output is Output.JSON else sys.stdout
        try:
            look = Follower(place, session, job, poll_s, to.buffer.write, to.flush).run()
        except KeyboardInterrupt:
            say(f"job {job} goes on; hyperpod run{_named(name)} -- scancel {job} ends it")
            raise typer.Exit(130) from None
        facts = {"cluster": name, "job_id": job, "script": path, "state": look.state, "exit_code": look.status}
        if output is Output.JSON:
            print_json(facts | {"attempts": look.restarts + 1})
        say(f"job {job}: {look.state.lower()}, exit status {look.status}{_attempt(look)}")
        raise typer.Exit(look.status)


def read_script(path: Path) -> bytes:
    """Return a batch script that Slurm will take.

    Raises:
        UsageError: It is none, and why.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint="hyperpod submit CLUSTER SCRIPT") from error
    if not data.startswith(b"#!"):
        raise UsageError(f"{path}: is not a script: its first line must name a shell", hint="#!/bin/bash")
    if b"\r\n" in data:
        raise UsageError(f"{path}: has Windows line ends, which no shell takes", hint=f"sed -i 's/\\r$//' {path}")
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path}: has {len(data)} bytes; Slurm takes {_MOST_BYTES}", hint="keep data in files of /fsx")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", path.name):
        raise UsageError(f"{path.name!r} cannot be the name of a script there", hint="letters, digits and . _ - +")
    return data


def _tell(facts: dict[str, Any], sentence: str, output: Output) -> None:
    if output is Output.JSON:
        print_json(facts)
    else:
        print_result(sentence)


def _named(cluster: str) -> str:
    return f" {cluster}" if cluster else ""


def _session(
    place: Place,
    stack: ExitStack,
    asked: str | None,
    user: str | None,
    key: Path | None,
    direct: bool,
    provider: str | None,
    region: str | None,
    profile: str | None,
) -> tuple[Session, str, float]:
    """Return a login on the head node, the cluster's name and how often to look."""
    cloud: Any = cloud_of(place, provider, region, profile)
    name = login_name(place, user, key, "ubuntu")
    if cloud is not None and cloud.kind == "sagemaker":
        chosen, session = cloud.commands.session(cloud, asked, name)
        return session, chosen, _SLOW_POLL_S
    if cloud is not None:
        spot = ec2_spot(cloud, cloud.provider(asked), None, name, key, direct=direct)
    elif place.is_node:
        place.controller(asked)
        name = login_name(place, user, None, own_name(place))
        return NodeSession(place.processes(), name if name != own_name(place) else ""), "", _POLL_S
    else:
        spot = local_spot(place, place.choose(asked), None, name, key)
    return open_spot(place, spot, stack), spot.cluster, _POLL_S


def _sbatch(session: Session, path: str, options: Sequence[str], arguments: Sequence[str]) -> int:
    """Submit the script and return the job's number.

    Raises:
        SlurmError: Slurm refuses it; SlurmUnavailable: it does not answer.
    """
    folder = path.rpartition("/")[0]
    argv = ["sbatch", "--parsable", *options, path, *arguments]
    answer = session.ask(["/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", folder, *argv], timeout_s=_ASK_S)
    lines = answer.text.split()
    number = lines[-1].partition(";")[0] if lines else ""
    if answer.code == 0 and number.isdigit():
        return int(number)
    session.ask(["/bin/sh", "-c", 'rm -f -- "$1" && rmdir -- "$2"', "sh", path, folder], timeout_s=_ASK_S)
    said = (answer.stderr + answer.stdout).decode(errors="replace")
    if "contact slurm controller" in said or "Socket timed out" in said:
        raise SlurmUnavailable(f"Slurm does not answer: {answer.trouble}", hint="hyperpod status shows what is wrong")
    complaints = [line for line in said.splitlines() if line.startswith("sbatch: ")] or [answer.trouble]
    first = complaints[0].removeprefix("sbatch: ").removeprefix("error: ").strip()
    raise SlurmError(f"not submitted: {first}")


@dataclass
class Follower:
    """Shows a job's output as it grows, from attempt to attempt."""

    place: Place
    session: Session
    job: int
    poll_s: float
    write: Callable[[bytes], Any]
    flush: Callable[[], Any]

    def run(self) -> JobLook:
        """Stay until the job is over and return how it ended.

        Raises:
            SlurmError: Slurm no longer knows it. ConnectionLost: the head node went away.
        """
        reader = Reader()
        last: JobLook | None = None
        path, said, quiet, misses, waits = "", "", 0, 0, 0
        while True:
            look, data = self._look(path, reader)
            if look is None:
                misses += 1
                if misses > _LOST_LOOKS or (last is not None and last.is_final):
                    if last is not None and last.is_final:
                        return last
                    raise SlurmUnavailable(f"Slurm tells nothing of job {self.job}", hint="the job itself goes on")
                self.place.sleep(self.poll_s)
                continue
            misses = 0
            path = look.output if look.output.startswith("/") and not look.is_array else ""
            if not said and look.is_array:
                say("it is an array: the output of its tasks is not followed")
            fresh = reader.take(data) if data is not None else b""
            if fresh:
                self.write(fresh)
                self.flush()
            sentence = _sentence(self.job, look, last)
            if sentence and sentence != said:
                say(sentence)
                said = sentence
            last = look
            if not look.is_final:
                quiet = waits = 0
            elif not fresh and (data is None or len(data) < _AT_ONCE):
                quiet += 1
                # The file may be seen here a moment after the job has ended on its node.
                if quiet > 1:
                    if is_settled(self._shown()) or waits > _VERDICT_LOOKS:
                        if path and reader.offset == 0 and data is None:
                            say(f"note: its output {path} is not to be seen on the head node")
                        return look
                    waits += 1
            if not fresh:
                self.place.sleep(self.poll_s)

    def _look(self, path: str, reader: Reader) -> tuple[JobLook | None, bytes | None]:
        argv = ["/bin/sh", "-c", _LOOK, "sh", str(self.job), path, str(reader.start)]
        answer: Answer = self.session.ask(argv, timeout_s=_ASK_S)
        about, mark, output = answer.text.partition(f"{_BEFORE_OUTPUT}\n")
        if not mark:
            raise ConnectionLost(f"the head node does not answer as it should: {answer.trouble}")
        try:
            data = None if output.strip() == "-" else base64.b64decode("".join(output.split()))
        except (binascii.Error, ValueError):
            data = None
        return parse_job(about), data

    def _shown(self) -> Any:
        """Return what the controller knows of the job; None when there is none, or it does not answer."""
        try:
            answer = self.session.ask(["hyperpod", "job", "show", str(self.job), "--output", "json"], timeout_s=_ASK_S)
            return json.loads(answer.text) if answer.code == 0 else None
        except (ValueError, CommandError):
            return None


def _sentence(job: int, look: JobLook, last: JobLook | None) -> str:
    """Return what there is to say of a look; nothing when it is as before."""
    if look.state == "RUNNING":
        return f"job {job}: running on {look.nodes}{_attempt(look)}"
    if look.state == "PENDING":
        return f"job {job}: waits ({look.reason}){_attempt(look)}"
    return "" if last is None or look.is_final else f"job {job}: {look.state.lower()}{_attempt(look)}"


def _attempt(look: JobLook) -> str:
    return f", attempt {look.restarts + 1}" if look.restarts else ""
