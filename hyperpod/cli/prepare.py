"""The commands ``prepare`` and ``unprepare``: what clusters need in an AWS account, made and taken back.

Owns the options, the table of a plan and the last words. What is done is in ``provisioning.prepare``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyperpod.cli import render
from hyperpod.cli.options import (
    OutputOption,
    ProfileOption,
    RegionOption,
    YesOption,
    confirm,
    examples,
    place_of,
)
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.errors import UsageError

if TYPE_CHECKING:
    from hyperpod.adapters.aws.client import Aws
    from hyperpod.core.account import Step, Wanted

NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the preparation.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command(
        "prepare",
        epilog=examples(
            "hyperpod prepare --dry-run",
            "hyperpod prepare --instance-type ml.p5.48xlarge",
            "hyperpod prepare --vpc vpc-0123 --subnet subnet-0123 --file-system-gib 0",
            "hyperpod prepare --template stack.json",
        ),
    )(prepare)
    app.command(
        "unprepare",
        epilog=examples("hyperpod unprepare --dry-run", "hyperpod unprepare --delete-data fs-0123456789abcdef0"),
    )(unprepare)


def prepare(
    ctx: typer.Context,
    name: NameOption = "main",
    zone: Annotated[
        str | None, typer.Option("--zone", metavar="ZONE", help="Availability zone. Default: the first that fits.")
    ] = None,
    instance_type: Annotated[
        list[str] | None,
        typer.Option("--instance-type", metavar="TYPE", help="The zone must have this instance type. May be repeated."),
    ] = None,
    cidr: Annotated[str, typer.Option("--cidr", metavar="CIDR", help="Network of a new VPC.")] = "10.1.0.0/16",
    nat: Annotated[
        bool, typer.Option("--nat/--no-nat", help="A NAT gateway as the way out, or endpoints for the services only.")
    ] = True,
    for_: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="PROVIDER", help="ec2 or sagemaker. May be repeated. Default: both."),
    ] = None,
    file_system_gib: Annotated[
        int, typer.Option("--file-system-gib", metavar="GIB", help="Size of a new FSx for Lustre; 0 for none.")
    ] = 1200,
    vpc: Annotated[str | None, typer.Option("--vpc", metavar="ID", help="Take over this VPC, with --subnet.")] = None,
    subnet: Annotated[str | None, typer.Option("--subnet", metavar="ID", help="Take over this subnet.")] = None,
    security_group: Annotated[
        str | None, typer.Option("--security-group", metavar="ID", help="Take over this security group.")
    ] = None,
    bucket: Annotated[str | None, typer.Option("--bucket", metavar="NAME", help="Take over this bucket.")] = None,
    file_system: Annotated[
        str | None, typer.Option("--file-system", metavar="ID", help="Take over this file system.")
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option("--template", metavar="FILE", help="Write a CloudFormation template instead of making anything."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make what clusters need in an AWS account, or take over what is there.

    Network, security group, bucket, roles and a shared file system. Everything made is tagged and found again by its
    tag: run it again after an interruption and it goes on; run it on a prepared account and it changes nothing.
    """
    from hyperpod.adapters.aws.prepare import Preparation
    from hyperpod.core.account import check_wanted, parts_of, plan_prepare, spec_lines
    from hyperpod.provisioning.prepare import prepare as apply

    place = place_of(ctx)
    aws = place.aws(region, profile)
    taken = {
        "vpc": vpc,
        "private-subnet": subnet,
        "security-group": security_group,
        "bucket": bucket,
        "file-system": file_system,
    }
    take = {key: value for key, value in taken.items() if value}
    wanted = _wanted(
        aws,
        name,
        zone=zone,
        types=instance_type or (),
        cidr=cidr,
        has_nat=nat,
        providers=frozenset(for_ or ("ec2", "sagemaker")),
        file_system_gib=file_system_gib,
        take=take,
    )
    check_wanted(wanted)
    if template is not None:
        _write_template(wanted, template)
        return
    account = Preparation(aws)
    steps = plan_prepare(wanted, account.find(wanted, parts_of(wanted)))
    if dry_run:
        _show(steps, wanted, output)
        return
    if any(step.changes for step in steps) and not yes:
        _say_changes(steps)
        if not confirm(place, f"Make this in account {wanted.account}, {wanted.region}", "--yes"):
            raise typer.Exit(1)
    ids = apply(account, wanted, say)
    mount = account.mount(ids["file-system"]) if "file-system" in ids else None
    if output is Output.JSON:
        parameters = {"fsx_dns_name": mount[0], "fsx_mountname": mount[1]} if mount else {}
        print_json(
            {"name": wanted.name, "region": wanted.region, "account": wanted.account, "ids": ids,
             "provisioning_parameters": parameters}
        )  # fmt: skip
        return
    print_result(f"account {wanted.account} in {wanted.region} is prepared; for a specification:")
    print_result(*(f"  {line}" for line in spec_lines(wanted, ids, mount)))


def unprepare(
    ctx: typer.Context,
    name: NameOption = "main",
    delete_data: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-data", metavar="ID", help="Remove this bucket or file system with its data. May be repeated."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    region: RegionOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove what prepare made, and nothing else.

    A bucket or file system with data stays unless it is named, and with a file system the network that it stands in.
    Exit status 1 when something could not be removed.
    """
    from hyperpod.adapters.aws.prepare import Preparation
    from hyperpod.core.account import all_parts, plan_unprepare
    from hyperpod.provisioning.prepare import unprepare as apply

    place = place_of(ctx)
    aws = place.aws(region, profile)
    wanted = _wanted(aws, name)
    account = Preparation(aws)
    steps = plan_unprepare(wanted, account.find(wanted, all_parts(wanted)), delete_data or ())
    if not steps:
        say(f"nothing named {name} was prepared in account {wanted.account}, {wanted.region}")
        if output is Output.JSON:
            print_json({"removed": [], "left": [], "failed": []})
        return
    if dry_run:
        _show(steps, wanted, output)
        return
    if any(step.changes for step in steps) and not yes:
        _say_changes(steps)
        if not confirm(place, f"Remove this from account {wanted.account}, {wanted.region}", "--yes"):
            raise typer.Exit(1)
    done = apply(account, wanted, say, delete_data=delete_data or ())
    if output is Output.JSON:
        print_json({"removed": done.removed, "left": done.left, "failed": done.failed})
    else:
        print_result(*(f"removed {line}" for line in done.removed), *(f"left {line}" for line in done.left))
    for line in done.failed:
        say(f"error: {line}")
    if done.failed:
        raise typer.Exit(1)


def _wanted(aws: Aws, name: str, *, zone: str | None = None, types: Sequence[str] = (), **settings: Any) -> Wanted:
    from hyperpod.adapters.aws.prepare import zone_of_subnet, zones
    from hyperpod.core.account import Wanted

    account = aws.account()
    subnet = settings.get("take", {}).get("private-subnet")
    if subnet and not zone:
        zone = zone_of_subnet(aws, subnet)
    fitting = zones(aws, types) if not zone or types else [zone]
    if zone and zone not in fitting:
        raise UsageError(f"zone {zone} does not have {', '.join(types)}", hint=f"zones that do: {', '.join(fitting)}")
    return Wanted(name=name, region=aws.region_name, account=account, zone=zone or fitting[0], **settings)


def _write_template(wanted: Wanted, path: Path) -> None:
    from hyperpod.provisioning.template import render_template

    path.write_text(render_template(wanted) + "\n")
    say(f"written: {path}")
    say(
        f"make it: aws cloudformation deploy --stack-name hyperpod-{wanted.name} --region {wanted.region} "
        f"--template-file {path} --capabilities CAPABILITY_NAMED_IAM"
    )


def _show(steps: Sequence[Step], wanted: Wanted, output: Output) -> None:
    if output is Output.JSON:
        print_json([_plain(step) for step in steps])
        return
    rows = [(step.do.value, step.part.title, step.id or "-", step.part.cost.value, step.why) for step in steps]
    print_result(render.table(("DO", "WHAT", "ID", "COST", "WHY"), rows))
    changes = sum(step.changes for step in steps)
    say(f"account {wanted.account}, {wanted.region}, zone {wanted.zone}: {changes} of {len(steps)} to change")


def _say_changes(steps: Sequence[Step]) -> None:
    for step in steps:
        if step.changes or step.why:
            say(f"  {step.do.value} {step.part.title} {step.id}".rstrip() + (f": {step.why}" if step.why else ""))


def _plain(step: Step) -> Mapping[str, Any]:
    return {
        "do": step.do.value,
        "part": step.part.key,
        "title": step.part.title,
        "id": step.id,
        "cost": step.part.cost.value,
        "why": step.why,
    }
