"""Commands about lifecycle scripts in S3: ``hyperpod scripts sync`` and ``hyperpod scripts pull``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyperpod.cli.options import OutputOption, ProfileOption, RegionOption, examples, place_of
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from hyperpod.adapters.aws.scripts import Changes, Script

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Folder with the scripts.")]
PlaceArgument = Annotated[str, typer.Argument(metavar="S3_URI", help="Where they are in S3: s3://BUCKET/PREFIX.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


def register(app: typer.Typer) -> None:
    """Add ``scripts sync`` and ``scripts pull`` to the program."""
    sync_examples = examples(
        "hyperpod scripts sync lifecycle_scripts s3://sagemaker-my-bucket/lifecycle-scripts/",
        "hyperpod scripts sync lifecycle_scripts s3://sagemaker-my-bucket/lifecycle-scripts/ --fix --delete",
    )
    pull_examples = examples("hyperpod scripts pull scripts s3://sagemaker-my-bucket/lifecycle-scripts/")
    group = typer.Typer(
        help="Lifecycle scripts in S3: send them, fetch them.", no_args_is_help=True, epilog=sync_examples
    )
    group.callback()(lambda: None)
    group.command("sync", epilog=sync_examples)(sync)
    group.command("pull", epilog=pull_examples)(pull)
    app.add_typer(group, name="scripts")


def sync(
    ctx: typer.Context,
    folder: FolderArgument,
    target: PlaceArgument,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend Windows line ends and missing execute rights on the way.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Take away in S3 what the folder does not have.")] = False,
    entry: Annotated[
        list[str] | None,
        typer.Option(
            "--entry", metavar="FILE", help="A script that the service starts. Default: on_create.sh, if there."
        ),
    ] = None,
    with_hyperpod: Annotated[
        bool,
        typer.Option("--with-hyperpod", help="Send our agent, controller and plugin, too, with on_init_complete.sh."),
    ] = False,
    spec: Annotated[
        Path | None, typer.Option("--spec", metavar="SPEC", help="With --with-hyperpod: the policies for the nodes.")
    ] = None,
    dry_run: DryRunOption = False,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send lifecycle scripts to S3: those that changed, after a look at all of them.

    Windows line ends, a missing #! line, shell files that bash cannot read, and a missing entry script are refused
    before anything is sent. With --with-hyperpod a HyperPod cluster becomes ours by one line of its specification:
    OnInitComplete: on_init_complete.sh.
    """
    from hyperpod.adapters.aws.scripts import ScriptStore, check_scripts, mend, parse_prefix, read_folder
    from hyperpod.adapters.process import Processes

    prefix = parse_prefix(target)
    scripts = read_folder(folder)
    if with_hyperpod:
        ours = _bundle(spec)
        own = {script.name for script in ours}
        scripts = [script for script in scripts if script.name not in own] + ours
    elif spec:
        raise UsageError("--spec goes with --with-hyperpod")
    names = {script.name for script in scripts}
    entries = list(entry or [name for name in ("on_create.sh", "on_init_complete.sh") if name in names])
    processes = Processes()
    troubles = check_scripts(scripts, processes, entries)
    mended = sorted({trouble.name for trouble in troubles if trouble.is_mendable}) if fix else []
    if fix:
        troubles = [trouble for trouble in troubles if not trouble.is_mendable]
        scripts = [mend(s, is_entry=s.name in entries) if s.name in mended else s for s in scripts]
    if troubles:
        hint = "--fix mends line ends and rights" if any(t.is_mendable for t in troubles) else "nothing was sent"
        raise ConfigError("\n".join(str(trouble) for trouble in troubles), hint=hint)
    store = ScriptStore(place_of(ctx).aws(region, profile), lambda verb, name: say(f"{verb} {name}"))
    changes = store.sync(scripts, prefix, delete=delete, dry_run=dry_run)
    for name in mended:
        say(f"note: {name} was mended on the way; the file itself is as it was")
    _show(changes, str(prefix), "would be sent" if dry_run else "sent", dry_run, output)


def _bundle(spec: Path | None) -> list[Script]:
    """Return what the nodes need of us; the daemons import two libraries, which are plain Python."""
    import json

    import ClusterShell
    import prometheus_client

    import hyperpod
    from hyperpod.adapters.aws.scripts import node_bundle

    policies = ""
    if spec is not None:
        from hyperpod.cli.spec import load_for_command
        from hyperpod.core.spec import spec_policies

        policies = json.dumps(spec_policies(load_for_command(spec).spec), indent=1, sort_keys=True) + "\n"
    libraries = {module.__name__: Path(str(module.__file__)).parent for module in (ClusterShell, prometheus_client)}
    return node_bundle(Path(hyperpod.__file__).parents[1], libraries, policies)


def pull(
    ctx: typer.Context,
    folder: FolderArgument,
    source: PlaceArgument,
    dry_run: DryRunOption = False,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Fetch lifecycle scripts from S3 into a folder: those that changed.

    Files that are only in the folder stay."""
    from hyperpod.adapters.aws.scripts import ScriptStore, parse_prefix

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder")
    prefix = parse_prefix(source)
    store = ScriptStore(place_of(ctx).aws(region, profile), lambda verb, name: say(f"{verb} {name}"))
    changes = store.pull(folder, prefix, dry_run=dry_run)
    _show(changes, str(folder), "would be fetched" if dry_run else "fetched", dry_run, output)


def _show(changes: Changes, target: str, verb: str, dry_run: bool, output: Output) -> None:
    if output is Output.JSON:
        print_json(
            {"changed": changes.sent, "removed": changes.removed, "equal": changes.equal, "extra": changes.extra,
             "dry_run": dry_run}
        )  # fmt: skip
        return
    if dry_run:
        print_result(*(f"~ {name}" for name in changes.sent), *(f"- {name}" for name in changes.removed))
    parts = [f"{len(changes.sent)} {verb}", f"{len(changes.equal)} equal already"]
    if changes.removed:
        parts.append(f"{len(changes.removed)} removed")
    if changes.extra:
        parts.append(f"{len(changes.extra)} only there")
    say(f"{target}: {', '.join(parts)}")
