"""Commands about jobs and what happened: status, jobs, job show, events, why, breaker.

Owns their options. The controller answers; ``render`` shows. Users see their own jobs, root sees all.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from hyperpod.cli import render
from hyperpod.cli.ask import Controller
from hyperpod.cli.options import (
    ClusterOption,
    OutputOption,
    checked_job,
    checked_node,
    examples,
    place_of,
)
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, print_json, print_result, say
from hyperpod.errors import HyperpodError

_PAGE = 2000
"""Most events in one answer."""


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command(
        "status", epilog=examples("hyperpod status", "hyperpod status --watch", "hyperpod status --output json")
    )(status)
    app.command("jobs", epilog=examples("hyperpod jobs", "hyperpod jobs --all --output json"))(jobs)
    one = typer.Typer(help="The history of one job.", no_args_is_help=True, epilog=examples("hyperpod job show 42"))
    one.callback()(lambda: None)
    one.command("show", epilog=examples("hyperpod job show 42", "hyperpod job show 42 --output json"))(show)
    app.add_typer(one, name="job")
    app.command(
        "events",
        epilog=examples("hyperpod events", "hyperpod events --follow", "hyperpod events --node worker-2 --limit 20"),
    )(events)
    app.command("why", epilog=examples("hyperpod why 42", "hyperpod why worker-2"))(why)
    breaker = typer.Typer(
        help="What stops repairs when many nodes fail alike.",
        no_args_is_help=True,
        epilog=examples("hyperpod breaker reset"),
    )
    breaker.callback()(lambda: None)
    breaker.command("reset", epilog=examples("hyperpod breaker reset"))(reset)
    app.add_typer(breaker, name="breaker")


def status(
    ctx: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay, and show it anew until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.2, metavar="SECONDS", help="With --watch.")] = 1.0,
    cluster: ClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the cluster on one screen.

    Nodes with their one state, running jobs, repairs under way with their try and last error, spares, the repair
    budget, and what the controller has to remark.
    """
    place = place_of(ctx)
    controller = place.controller(cluster)
    if watch:
        _watch(place, controller, interval, output)
    answer = controller.query("status")
    if output is Output.JSON:
        print_json(answer)
    else:
        print_result(*render.status_screen(answer))


def _watch(place: Place, controller: Controller, interval_s: float, output: Output) -> None:
    """Show the status until interrupted. An answer that fails is shown, too: the screen outlives the controller."""
    from rich.console import Group
    from rich.live import Live

    try:
        if output is Output.JSON or not sys.stdout.isatty():
            while True:
                answer = controller.query("status")
                if output is Output.JSON:
                    render.print_json_line(answer)
                else:
                    print_result(*render.status_screen(answer), "")
                place.sleep(interval_s)
        with Live(console=render.console_for(sys.stdout), auto_refresh=False, screen=True) as live:
            while True:
                try:
                    parts = render.status_screen(controller.query("status"))
                except HyperpodError as error:
                    if error.retry_after is None:
                        raise
                    parts = [f"no answer now: {error.message}", error.hint]
                live.update(Group(*parts), refresh=True)
                place.sleep(interval_s)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def jobs(
    ctx: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that are over.")] = False,
    cluster: ClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs, their attempts and what became of them.

    Users see their own, root sees all."""
    rows = place_of(ctx).controller(cluster).query("jobs", running=not all_)
    if output is Output.JSON:
        print_json(rows)
        return
    if not rows:
        say("no jobs of yours are known here" if all_ else "no jobs of yours run or wait; --all lists those that ended")
        return
    print_result(render.jobs_table(rows))


def show(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(metavar="ID", help="Job id, as squeue shows it.")],
    cluster: ClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the history of one job.

    Each attempt with its nodes, the cause of its end and the evidence, the checkpoint it began from, the progress that
    was lost ("step 900 -> 400") and the time.
    """
    answer = place_of(ctx).controller(cluster).query("job", job_id=checked_job(job))
    if output is Output.JSON:
        print_json(answer)
    else:
        print_result(*render.job_page(answer))


def events(
    ctx: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, and show new ones until Ctrl-C.")] = False,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Only about this node.")] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only about this job.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=_PAGE, help="At most so many, the latest.")] = 50,
    cluster: ClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what happened, oldest first.

    Findings, repairs, resumes and what administrators did.

    With --follow and --output json each event is one line of JSON.
    """
    controller = place_of(ctx).controller(cluster)
    args: dict[str, Any] = {}
    if node:
        args["node"] = checked_node(node)
    if job:
        args["job_id"] = checked_job(job)
    after = 0
    latest: list[dict[str, Any]] = []
    while True:
        page = controller.query("events", after=after, limit=_PAGE, **args)
        if not page:
            break
        after = max(int(event["id"]) for event in page)
        latest = [*latest, *page][-limit:]
    if not follow:
        if output is Output.JSON:
            print_json(latest)
        elif latest:
            print_result(*map(render.event_line, latest))
        else:
            say("no events")
        return
    _follow(place_of(ctx), controller, latest, after, args, output)


def _follow(
    place: Place, controller: Controller, page: list[dict[str, Any]], after: int, args: dict[str, Any], output: Output
) -> None:
    is_away = False
    try:
        while True:
            for event in page:
                if output is Output.JSON:
                    render.print_json_line(event)
                else:
                    print_result(render.event_line(event))
            sys.stdout.flush()
            after = max([after, *(int(event["id"]) for event in page)])
            place.sleep(1.0)
            try:
                page = controller.query("events", after=after, limit=_PAGE, **args)
                is_away = False
            except HyperpodError as error:
                if error.retry_after is None:
                    raise
                if not is_away:
                    say(f"waiting: {error.message}")
                page, is_away = [], True
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def why(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="JOB|NODE", help="A job id or the name of a node.")],
    cluster: ClusterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say why a job or node is as it is, and what is next.

    Walks from the job to its nodes, their machines, findings and last errors. On the machine that carries the cluster
    also the record of the lifecycle scripts is shown.
    """
    place = place_of(ctx)
    checked = str(checked_job(name)) if name.isdigit() else checked_node(name)
    if not place.is_node:
        cluster = place.choose(cluster)
    births = [] if place.is_node else _births(place, str(cluster), None if name.isdigit() else checked)
    try:
        answer = place.controller(cluster).query("why", name=checked)
    except HyperpodError as error:
        # The script's own words are most needed when there is no controller yet.
        if error.retry_after is None or not births or output is Output.JSON:
            raise
        print_result(*(line for birth in births for line in render.birth_lines(birth)))
        raise
    named = {checked, *(node["node"] for node in answer.get("nodes", ()))}
    births = [birth for birth in births if birth["node"] in named and birth["status"] != "ok"]
    if output is Output.JSON:
        print_json({**answer, "births": births})
    else:
        print_result(*render.why_page({**answer, "births": births}))


def _births(place: Place, cluster: str, node: str | None) -> list[dict[str, Any]]:
    provider = place.provider()
    found = []
    for instance in provider.observe(cluster):
        if node is None or instance.node == node:
            birth = provider.birth(instance.id)
            found.append(
                {
                    "node": instance.node,
                    "instance_id": instance.id,
                    "status": birth.status.value,
                    "script": birth.script,
                    "exit_code": birth.exit_code,
                    "tail": list(birth.tail),
                    "log_path": birth.log_path,
                }
            )
    return found


def reset(ctx: typer.Context, cluster: ClusterOption = None, output: OutputOption = Output.TABLE) -> None:
    """Close the breaker, so that repairs go on.

    For when the common cause has been found and ended. Root only."""
    done = place_of(ctx).controller(cluster).command("reset-breaker")
    if output is Output.JSON:
        print_json({"done": done})
    else:
        print_result(done)
