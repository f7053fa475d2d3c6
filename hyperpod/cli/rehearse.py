"""``hyperpod rehearse``: faults on a schedule over a running local cluster, and a report of what it made of them.

Owns the breaking and the watching; the plan's form and the judgement are in ``core.rehearsal``. The rehearsal brings
its own job, which counts and saves, and ends it; nobody else's job is touched.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

import typer

from hyperpod.adapters.local.diary import Diary, Trace
from hyperpod.cli import render
from hyperpod.cli.leftovers import rehearsals_of, undo_faults, undo_overdue
from hyperpod.cli.options import ClusterOption, OutputOption, ended_like_ctrl_c, examples, place_of
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, say
from hyperpod.core.rehearsal import Outcome, Plan, PlannedFault, Seen, choose_node, is_settled, judge, parse_plan
from hyperpod.errors import ConfigError, HyperpodError, InvalidState, UsageError

USER = "ubuntu"
_POLL_S = 0.5
_START_S = 120.0
_CALL_S = 30.0

_COUNTING_JOB = """\
#!/bin/bash
#SBATCH --open-mode=append
# The job of a rehearsal: every rank counts, the first one saves. It needs nothing but bash.
exec srun --kill-on-bad-exit=0 bash -c '
set -eu
dir=$HYPERPOD_CHECKPOINT_DIR; step=0
mkdir -p "$dir"
if [[ -n ${HYPERPOD_RESUME_FROM:-} ]]; then step=$(<"$HYPERPOD_RESUME_FROM/counter"); fi
while true; do
    sleep "$REHEARSAL_STEP_S"; step=$((step + 1))
    ((SLURM_PROCID)) || echo "$HYPERPOD_ATTEMPT $step" >>"$dir/../progress"
    if ((SLURM_PROCID == 0 && step % REHEARSAL_SAVE_EVERY == 0)); then
        mkdir "$dir/.step_$step"; echo "$step" >"$dir/.step_$step/counter"; mv -T "$dir/.step_$step" "$dir/step_$step"
        ls -d "$dir"/step_* | sort -t_ -k2 -n | head -n -3 | xargs -r rm -rf
    fi
done'
"""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(
        "rehearse",
        epilog=examples(
            "hyperpod rehearse configs/rehearsals/dead-node.yaml",
            "hyperpod rehearse PLAN.yaml --dry-run",
            "hyperpod rehearse PLAN.yaml --seed 7 --junit report.xml --output json",
            "hyperpod rehearse --undo",
        ),
    )(rehearse)


def rehearse(
    ctx: typer.Context,
    plan: Annotated[Path | None, typer.Argument(metavar="[PLAN]", help="The plan, see configs/rehearsals.")] = None,
    cluster: ClusterOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="For other nodes and moments than the plan's seed.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the plan and show it; break nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Only undo what a killed rehearsal has left.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Break nodes by a plan and report what the cluster did about it.

    Each fault waits until the job is in its stride, is caused, and is watched until the job runs again and the expected
    action was seen. The report says after how long it was noticed, to whom the job's end was laid, what was done, how
    long the job was away, how many steps it lost, and whether anything was done to a node that was well. Status 0 only
    when all was as the plan expects.

    An interrupt (Ctrl-C, SIGTERM, a lost terminal) undoes everything. What a killed rehearsal has left is undone by the
    next one, or by --undo.
    """
    place = place_of(ctx)
    place.refuse_on_node("rehearse")
    if (plan is None) != undo:
        raise UsageError("a PLAN is needed, or --undo without one", hint="plans are in configs/rehearsals")
    if plan is None:
        chosen = place.choose(cluster)
        _undo_what_is_left(place, chosen)
        return
    parsed = read_plan(plan)
    if seed is not None:
        parsed = replace(parsed, seed=seed)
    if dry_run:
        _show_plan(parsed, output)
        return
    if junit is not None and (junit.is_dir() or not junit.absolute().parent.is_dir()):
        raise UsageError(f"--junit {junit}: no file can be written there")
    with ended_like_ctrl_c():
        outcomes = Rehearsal(place, place.choose(cluster), parsed).run()
    report = report_of(parsed, outcomes)
    if junit is not None:
        junit.write_bytes(junit_of(parsed, outcomes))
    if output is Output.JSON:
        render.print_json(report)
    else:
        _show(report)
    raise typer.Exit(0 if report["passed"] else 1)


def read_plan(path: Path) -> Plan:
    """Read a plan from a file.

    Raises:
        ConfigError: if it cannot be read, is not YAML, or is not a plan that could be carried out.
    """
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    plan = parse_plan(data, str(path))
    check_faults(plan, str(path))
    return plan


def check_faults(plan: Plan, source: str) -> None:
    """Check what the plan's form does not: that its faults exist and can be caused like that.

    Raises:
        ConfigError: naming the place and what is wrong.
    """
    from hyperpod.adapters.local.fault_kinds import known_fault, whole_argument

    for part, planned in [
        *((f"Prepare[{n}]", planned) for n, planned in enumerate(plan.prepare)),
        *((f"Faults[{n}]", planned) for n, planned in enumerate(plan.faults)),
    ]:
        where = f"{source}: {part}"
        try:
            whole_argument(planned.fault, planned.argument.replace("{job}", "1"))
        except UsageError as error:
            raise ConfigError(f"{where}: {error.message}", hint="hyperpod inject --list shows the faults") from error
        can_undo = known_fault(planned.fault).can_undo
        if not can_undo and (part.startswith("Prepare") or planned.for_s is not None):
            raise ConfigError(f"{where}: {planned.fault} cannot be undone")


class Rehearsal:
    """Runs one plan on one cluster."""

    def __init__(self, place: Place, cluster: str, plan: Plan) -> None:
        self._place = place
        self._cluster = cluster
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._faults = place.make_faults(place.provider())
        self._controller = place.controller(cluster)
        self._diary = rehearsals_of(place, cluster)
        self._job = 0
        self._folder = ""
        self._prepared: set[tuple[str, str]] = set()

    def run(self) -> list[Outcome]:
        """Submit the job, cause every fault, and end the job; return how each fault went.

        When it cannot go on, the fault at which that happened says so, and the rest are not tried.
        """
        outcomes: list[Outcome] = []
        with self._diary.opened():
            undo_overdue(self._place, self._cluster)
            if self._diary.traces:
                say("an earlier rehearsal was ended in its middle; what it has left is undone first")
                undo_traces(self._place, self._cluster, self._diary)
            try:
                self._prepare()
                self._submit()
                for number, planned in enumerate(self._plan.faults, start=1):
                    say(f"fault {number} of {len(self._plan.faults)}: {planned.fault} {planned.argument}".rstrip())
                    outcomes.append(self._one(planned))
                    say(f"  {'as expected' if outcomes[-1].passed else '; '.join(outcomes[-1].problems)}")
                    if not outcomes[-1].was_tried:
                        break
            finally:
                undo_traces(self._place, self._cluster, self._diary)
        rest = self._plan.faults[len(outcomes) :]
        return outcomes + [_not_tried(planned, "the rehearsal had ended before") for planned in rest]

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._place.clock(), UTC)

    # --- the job ----------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        stamp = f"{self._now():%Y%m%d%H%M%S}"
        self._folder = f"/fsx/rehearsal-{stamp}"
        self._diary.note_job(0, self._folder)
        self._on_head(["install", "-d", "-o", USER, "-g", USER, self._folder])
        argv = [
            "runuser", "-u", USER, "--", "env", f"HOME=/home/{USER}",
            f"REHEARSAL_STEP_S={self._plan.step_s:g}", f"REHEARSAL_SAVE_EVERY={self._plan.save_every}",
            "sbatch", "--parsable", "--auto-resume=1000", f"--checkpoint-dir={self._folder}/checkpoints",
            f"--nodes={self._plan.job_nodes}", "--ntasks-per-node=1", f"--job-name=rehearsal-{stamp}",
            f"--output={self._folder}/out", f"--chdir={self._folder}",
        ]  # fmt: skip
        text = self._on_head(argv, input=_COUNTING_JOB)
        self._job = int(text.strip().split(";")[0])
        self._diary.note_job(self._job, self._folder)
        say(f"job {self._job} on {self._plan.job_nodes} nodes")

    def _on_head(self, argv: Sequence[str], input: str | None = None) -> str:
        head = self._place.head(self._cluster)
        return self._place.provider().connect(head.id).run(argv, timeout_s=_CALL_S, input=input).stdout

    def _attempts(self) -> list[Mapping[str, Any]]:
        try:
            found: list[Mapping[str, Any]] = self._controller.query("job", job_id=self._job)["attempts"]
        except HyperpodError:
            # Not seen by the controller yet, or the head node is busy: it is asked again.
            return []
        return found

    def _is_running(self) -> bool:
        attempts = self._attempts()
        return bool(attempts) and attempts[-1].get("cause") is None and attempts[-1].get("first_task_at") is not None

    def _wait(self, what: str, is_so: Callable[[], bool], seconds: float) -> None:
        end = self._place.clock() + seconds
        while not is_so():
            if self._place.clock() > end:
                raise InvalidState("go on with the rehearsal", f"waiting for {what} for more than {seconds:g} s")
            self._place.sleep(_POLL_S)

    # --- one fault --------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Do to every worker what the plan wants beforehand; machines that came since are done, too."""
        for row in self._controller.query("nodes") if self._plan.prepare else ():
            key = (str(row["node"]), str(row["instance_id"]))
            if key in self._prepared:
                continue
            for planned in self._plan.prepare:
                say(f"  {self._inject(key[0], planned.fault, planned.argument)}")
            self._prepared.add(key)

    def _one(self, planned: PlannedFault) -> Outcome:
        try:
            outcome = self._cause(planned)
        except HyperpodError as error:
            return _not_tried(planned, error.message)
        try:
            self._wait("all nodes to be well again", self._is_well, self._plan.limit_s)
        except HyperpodError as error:
            outcome = replace(outcome, problems=(*outcome.problems, error.message))
        return outcome

    def _cause(self, planned: PlannedFault) -> Outcome:
        self._prepare()
        self._wait("its job to run and save", self._is_in_stride, _START_S)
        self._place.sleep(self._random.uniform(*planned.after_s))
        # The breaker counts nodes that fail within an hour; here they are meant to.
        self._controller.command("reset-breaker")
        node = choose_node(planned.on, self._controller.query("nodes"), self._job, self._random.random())
        last = max((int(e["id"]) for e in self._controller.query("events", limit=1000)), default=0)
        before = int(self._attempts()[-1]["number"])
        argument = planned.argument.replace("{job}", str(self._job))
        at = self._now()
        say(f"  {self._inject(node, planned.fault, argument)}")
        seen = Seen(at, node, attempt_before=before)
        try:
            while True:
                self._place.sleep(_POLL_S)
                now = self._now()
                seen = self._look(seen, last)
                running_s = (now - at).total_seconds()
                if planned.for_s is not None and running_s >= planned.for_s:
                    self._undo(node, planned.fault, argument)
                if is_settled(planned, seen, now, is_job_running=self._is_running()):
                    break
                if running_s > self._plan.limit_s:
                    break
        finally:
            self._undo(node, planned.fault, argument)
        return judge(planned, replace(seen, reached=self._reached(before)))

    def _reached(self, attempt: int) -> int | None:
        """Return the last step that an attempt got to, by its own account."""
        lines = [line.split() for line in self._on_head(["cat", f"{self._folder}/progress"]).splitlines()]
        steps = [int(words[1]) for words in lines if len(words) == 2 and words[0] == str(attempt)]
        return max(steps, default=None)

    def _inject(self, node: str, fault: str, argument: str) -> str:
        from hyperpod.adapters.local.fault_kinds import FAULTS

        if FAULTS[fault].can_undo:
            self._diary.note_fault(Trace(node, fault, argument))
        return self._faults.inject(self._cluster, node, fault, argument)

    def _undo(self, node: str, fault: str, argument: str) -> None:
        trace = Trace(node, fault, argument)
        if trace in self._diary.traces.faults:
            with contextlib.suppress(HyperpodError):
                self._faults.undo(self._cluster, node, fault, argument)
                self._diary.forget_fault(trace)

    def _is_in_stride(self) -> bool:
        saved = (
            self._on_head(["find", f"{self._folder}/checkpoints", "-maxdepth", "1", "-name", "step_*"])
            if (self._is_running())
            else ""
        )
        return bool(saved.strip())

    def _is_well(self) -> bool:
        try:
            nodes = self._controller.query("nodes")
        except HyperpodError:
            return False
        return all(n["state"] in ("in use", "idle", "spare") for n in nodes) and self._is_running()

    def _look(self, seen: Seen, last: int) -> Seen:
        try:
            events = self._controller.query("events", after=last, limit=1000)
            nodes = self._controller.query("nodes")
        except HyperpodError:
            return seen
        finding_at = seen.finding_at
        for node in nodes:
            for finding in node["findings"] if node["node"] == seen.node else ():
                since = datetime.fromisoformat(finding["since"]) if finding["since"] else None
                if since is not None and since >= seen.at and (finding_at is None or since < finding_at):
                    finding_at = since
        return replace(seen, events=events, attempts=self._attempts() or seen.attempts, finding_at=finding_at)


def undo_traces(place: Place, cluster: str, diary: Diary) -> None:
    """Undo what the diary holds, the last first, and forget what is undone; the rest stays for another try."""
    undo_faults(place, cluster, diary, diary.traces.faults)
    job, folder = diary.traces.job, diary.traces.folder
    if not folder:
        return
    try:
        head = place.provider().connect(place.head(cluster).id)
        if job:
            head.run(["scancel", str(job)], timeout_s=_CALL_S)
        head.run(["rm", "-rf", folder], timeout_s=_CALL_S)
    except HyperpodError as error:
        say(f"job {job} of the rehearsal could not be ended: {error.message}")
        return
    diary.note_job(0, "")


def _undo_what_is_left(place: Place, cluster: str) -> None:
    diary = rehearsals_of(place, cluster)
    overdue = undo_overdue(place, cluster)
    with diary.opened():
        if not diary.traces and overdue:
            return
        if not diary.traces:
            render.print_result("no rehearsal has left anything")
            return
        left = [f"{trace.node}: {trace.fault} is undone" for trace in diary.traces.faults]
        left += [f"job {diary.traces.job} is ended"] if diary.traces.job else []
        undo_traces(place, cluster, diary)
        if diary.traces:
            raise InvalidState("undo everything", "left as said above", hint="hyperpod rehearse --undo tries again")
    render.print_result(*left)


def _not_tried(planned: PlannedFault, why: str) -> Outcome:
    return Outcome(planned.fault, "-", problems=(why,), was_tried=False)


# --- reports ----------------------------------------------------------------------------------------------------


def report_of(plan: Plan, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "plan": plan.name,
        "seed": plan.seed,
        "passed": bool(outcomes) and all(outcome.passed for outcome in outcomes),
        "faults": [{**outcome.__dict__, "passed": outcome.passed} for outcome in outcomes],
    }


def junit_of(plan: Plan, outcomes: Sequence[Outcome]) -> bytes:
    """Return the report as JUnit XML: one test case for each fault."""
    failures = sum(1 for outcome in outcomes if outcome.was_tried and not outcome.passed)
    skipped = sum(1 for outcome in outcomes if not outcome.was_tried)
    suite = ElementTree.Element(
        "testsuite",
        name=f"rehearsal {plan.name}",
        tests=str(len(outcomes)),
        failures=str(failures),
        skipped=str(skipped),
    )
    for number, outcome in enumerate(outcomes, start=1):
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=plan.name,
            name=f"{number} {outcome.fault} on {outcome.node}",
            time=f"{outcome.resumed_s or outcome.detected_s or 0:.3f}",
        )
        for problem in outcome.problems:
            # What was not tried has neither passed nor failed.
            kind = "failure" if outcome.was_tried else "skipped"
            ElementTree.SubElement(case, kind, message=render.printable(problem))
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def _show_plan(plan: Plan, output: Output) -> None:
    rows = [
        {
            "fault": planned.fault,
            "argument": planned.argument,
            "node": planned.on,
            "after_s": list(planned.after_s),
            "for_s": planned.for_s,
            "verdict": planned.expected.verdict,
            "action": planned.expected.action,
        }
        for planned in plan.faults
    ]
    if output is Output.JSON:
        prepare = [{"fault": planned.fault, "argument": planned.argument} for planned in plan.prepare]
        render.print_json({"plan": plan.name, "seed": plan.seed, "prepare": prepare, "faults": rows})
        return
    cells = [
        (
            row["fault"],
            row["argument"] or "-",
            row["node"],
            f"{planned.after_s[0]:g} to {planned.after_s[1]:g} s",
            "-" if planned.for_s is None else render.duration(planned.for_s),
            row["verdict"],
            row["action"],
        )
        for row, planned in zip(rows, plan.faults, strict=True)
    ]
    columns = ("FAULT", "ARGUMENT", "NODE", "AFTER", "FOR", "EXPECTED VERDICT", "EXPECTED ACTION")
    before = [f"before: every worker gets {planned.fault} {planned.argument}".rstrip() for planned in plan.prepare]
    render.print_result(*before, render.table(columns, cells), f"seed {plan.seed}; nothing was broken")


def _show(report: Mapping[str, Any]) -> None:
    rows = [
        (
            outcome["fault"],
            outcome["node"],
            _seconds(outcome["detected_s"]),
            outcome["verdict"],
            outcome["action"],
            _seconds(outcome["resumed_s"]),
            "-" if outcome["lost_steps"] is None else str(outcome["lost_steps"]),
            ", ".join(outcome["false_actions"]) or "-",
            "as expected" if outcome["passed"] else "; ".join(outcome["problems"]),
        )
        for outcome in report["faults"]
    ]
    columns = ("FAULT", "NODE", "NOTICED", "VERDICT", "ACTION", "RESUMED", "LOST STEPS", "FALSE ACTIONS", "RESULT")
    render.print_result(render.table(columns, rows), f"seed {report['seed']}")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
