"""``hyperpod logs``: what a node's lifecycle scripts, daemons and Slurm have written, also when the node is gone.

Owns the choice of sources. The journal is read on the node; the birth record outlives the machine and is read where
the provider keeps it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hyperpod.cli.node import cloud_of
from hyperpod.cli.options import ClusterOption, ProfileOption, ProviderOption, RegionOption, examples, place_of
from hyperpod.cli.place import Place
from hyperpod.cli.reach import (
    DirectOption,
    KeyOption,
    ec2_spot,
    known_names,
    local_spot,
    node_word,
    open_spot,
    own_name,
    pick_instance,
)
from hyperpod.cli.render import printable, say
from hyperpod.core.login import lines_since, parse_since, read_words, remote_line
from hyperpod.errors import ConnectionLost, InvalidState, NotFound, UsageError
from hyperpod.ports.provider import Birth, BirthStatus

UNITS = ("hyperpod-bootstrap", "hyperpod-agent", "hyperpod-controller", "slurmctld", "slurmd", "sackd", "munge")
_SHORT = {"agent": "hyperpod-agent", "controller": "hyperpod-controller", "bootstrap": "hyperpod-bootstrap"}


class Source(StrEnum):
    """Where lines come from."""

    ALL = "all"
    LIFECYCLE = "lifecycle"
    JOURNAL = "journal"
    HEALTH = "health"


def register(app: typer.Typer) -> None:
    """Add ``logs`` to the program."""
    app.command(
        "logs",
        epilog=examples(
            "hyperpod logs demo",
            "hyperpod logs demo worker-2 --unit slurmd --since 15m",
            "hyperpod logs demo --unit controller --follow",
            "hyperpod logs ml worker-1 --provider sagemaker --source lifecycle",
        ),
    )(logs)


def logs(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CLUSTER] [NODE]", help="Default: the only cluster; its head node. Or a machine's id."),
    ] = None,
    source: Annotated[
        Source,
        typer.Option(
            "--source", help="lifecycle: the machine's birth; journal: daemons and Slurm; health: HyperPod's agent."
        ),
    ] = Source.ALL,
    unit: Annotated[
        list[str] | None,
        typer.Option("--unit", metavar="NAME", help="Only this unit's journal, such as slurmd. May be repeated."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only newer lines: 15m, 2h, or 2026-01-02T15:04.")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=1_000_000, help="Most lines of each source.")
    ] = 1000,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, and show new lines until Ctrl-C.")] = False,
    key: KeyOption = None,
    direct: DirectOption = False,
    cluster: ClusterOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
) -> None:
    """Show what a node's lifecycle scripts, daemons and Slurm have written.

    The record of a machine's birth is there also when the machine is gone; name it by its id. Journals are read on the
    node, as root. On HyperPod the lines are those in CloudWatch."""
    place = place_of(ctx)
    after = parse_since(since, datetime.fromtimestamp(place.clock(), UTC)) if since else None
    units = [_SHORT.get(name, name.removesuffix(".service")) for name in unit or ()]
    if units and source in (Source.LIFECYCLE, Source.HEALTH):
        raise UsageError(f"--unit is about journals, not about {source.value}", hint="--source journal")
    source = Source.JOURNAL if units else source
    cloud: Any = cloud_of(place, provider, region, profile)
    read = read_words(words or (), cluster, known_names(place, cloud))
    if read.argv:
        raise UsageError(f"one word too many: {read.argv[0]}", hint="hyperpod logs CLUSTER NODE")
    if cloud is not None and cloud.kind == "sagemaker":
        if source is Source.JOURNAL:
            raise UsageError(
                "the journal of HyperPod's nodes is not in CloudWatch", hint="hyperpod run CLUSTER -- journalctl"
            )
        kinds = [s.value for s in (Source.LIFECYCLE, Source.HEALTH) if source in (s, Source.ALL)]
        cloud.commands.logs(cloud, read.cluster, read.node or "head", kinds, after, lines, follow)
        return
    if source is Source.HEALTH:
        raise UsageError("only HyperPod has its own health agent", hint="--unit agent shows ours")
    argv = journal_argv(units or UNITS, after, lines, follow)
    if place.is_node and cloud is None:
        place.controller(read.cluster)
        raise typer.Exit(_on_node(place, read.node, source, argv))
    with ExitStack() as stack:
        try:
            raise typer.Exit(
                _outside(place, stack, cloud, read.cluster, read.node, source, argv, after, lines, follow, key, direct)
            )
        except KeyboardInterrupt:
            if not follow:
                raise
            raise typer.Exit(130) from None


def journal_argv(units: Sequence[str], since: datetime | None, lines: int, follow: bool) -> list[str]:
    """Return the command that reads the journal of these units."""
    argv = ["journalctl", "--no-pager", "--output=short-iso", f"--lines={lines}"]
    argv += [f"--unit={name}" for name in units]
    argv += [f"--since=@{since.timestamp():.0f}"] if since else []
    return [*argv, *(["--follow"] if follow else [])]


def _on_node(place: Place, node: str | None, source: Source, argv: Sequence[str]) -> int:
    settings = place.node_settings()
    is_here = node == settings.node or (node is None and settings.role.value == "head")
    show = ["tail", "-n", argv[3].partition("=")[2], "/var/log/provision/provisioning.log"]
    steps = ([show] if source is not Source.JOURNAL else []) + ([list(argv)] if source is not Source.LIFECYCLE else [])
    status = 0
    for step in steps:
        if is_here:
            status = place.terminal(step) or status
        else:
            name = f"{own_name(place)}@{node_word(place, node)}"
            status = place.terminal(["ssh", name, "--", remote_line(step)]) or status
    return status


def _outside(
    place: Place,
    stack: ExitStack,
    cloud: Any,
    asked: str | None,
    node: str | None,
    source: Source,
    argv: Sequence[str],
    after: datetime | None,
    lines: int,
    follow: bool,
    key: Path | None,
    direct: bool,
) -> int:
    """Show the birth record from where the provider keeps it, and the journal from the node."""
    provider: Any = cloud.provider(asked) if cloud is not None else place.provider()
    name: str = provider.cluster if cloud is not None else place.choose(asked)
    try:
        instance = pick_instance(provider.observe(name), name, node)
        identity = instance.id
    except NotFound:
        gone = gone_machine(provider, cloud is not None, name, node or "")
        if not gone:
            raise
        instance, identity = None, gone
    is_needed = (source is Source.LIFECYCLE and not follow) or instance is None
    shown = 0
    if source is not Source.JOURNAL:
        shown = _show_birth(provider, identity, node or "", after, lines, is_needed=is_needed)
    if source is Source.LIFECYCLE:
        if follow and instance is not None:
            _follow_birth(place, provider, identity, shown)
        return 0
    if instance is None:
        say(f"{identity} is gone, and its journal with it")
        return 0
    try:
        if cloud is not None:
            spot = ec2_spot(cloud, provider, identity, "ubuntu" if key else "root", key, direct=direct)
        else:
            spot = local_spot(place, name, identity, "root", key)
        session = open_spot(place, spot, stack)
    except (ConnectionLost, InvalidState) as error:
        if source is Source.JOURNAL:
            raise
        say(f"note: no journal: {error.message}")
        return 0
    return session.attach(["sudo", *argv] if key is not None else argv)


def gone_machine(provider: Any, is_ec2: bool, cluster: str, word: str) -> str:
    """Return the id of a machine that is gone but has left its record; by its id, or the last one of a node."""
    if is_ec2:
        entries = [e for e in provider.folder.entries("births/") if e.name.endswith(".log")]
        ids = {e.name.removeprefix("births/").removesuffix(".log"): e.written_at for e in entries}
        if word in ids:
            return word
        told = sorted(provider.folder.entries("instances/"), key=lambda e: e.written_at, reverse=True)
        for entry in told[:_LOOKED_AT]:
            if str((provider.folder.read_json(entry.name) or {}).get("node", "")) == word:
                return str(entry.name).removeprefix("instances/").removesuffix(".json")
        return ""
    home = provider.cluster(cluster)
    return word if word.startswith("i-") and "/" not in word and home.instance(word).is_dir() else ""


_LOOKED_AT = 200
"""Records read in search of a node's last machine; each is a call."""


def _show_birth(provider: Any, identity: str, node: str, after: datetime | None, lines: int, *, is_needed: bool) -> int:
    """Write out the log of a machine's lifecycle scripts and return how long it is."""
    birth = provider.birth(identity)
    text = birth_text(provider, birth)
    if not text:
        trouble = f"{node or identity} has left no record of its birth yet ({birth.status.value})"
        if is_needed:
            raise NotFound(trouble, hint=f"it would be {birth.log_path}")
        say(f"note: {trouble}")
        return 0
    _write(lines_since(text.splitlines(), after)[-lines:])
    return len(text)


def _follow_birth(place: Place, provider: Any, identity: str, shown: int) -> None:
    """Show what the scripts write from here on, until they have ended."""
    while True:
        birth = provider.birth(identity)
        text = birth_text(provider, birth)
        whole = text[: text.rfind("\n") + 1]
        _write(whole[shown:].splitlines())
        shown = max(shown, len(whole))
        if birth.status in (BirthStatus.OK, BirthStatus.FAILED):
            say(f"the scripts have ended: {birth.status.value}")
            return
        place.sleep(1.0)


def _write(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(printable(line, keep="\t") + "\n" for line in lines))
    sys.stdout.flush()


def birth_text(provider: Any, birth: Birth) -> str:
    """Return the log of a machine's birth; nothing where there is none yet."""
    if birth.log_path.startswith("s3://"):
        found = provider.folder.read(f"births/{birth.instance_id}.log")
        return "" if found is None else str(found.decode(errors="replace"))
    path = Path(birth.log_path)
    return path.read_text(errors="replace") if birth.log_path and path.is_file() else ""
