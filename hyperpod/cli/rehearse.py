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

from hyperpod.cli import render
from hyperpod.cli.options import ClusterOption, OutputOption, examples, place_of
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, say
from hyperpod.core.rehearsal import Outcome, Plan, PlannedFault, Seen, choose_node, is_settled, judge, parse_plan
from hyperpod.errors import ConfigError, HyperpodError, InvalidState

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
            "hyperpod rehearse PLAN.yaml --seed 7 --junit report.xml --output json",
        ),
    )(rehearse)


def rehearse(
    ctx: typer.Context,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, see configs/rehearsals.")],
    cluster: ClusterOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="For other nodes and moments than the plan's seed.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Break nodes by a plan and report what the cluster did about it.

    Each fault waits until the job is in its stride, is caused, and is watched until the job runs again and the expected
    action was seen. The report says after how long it was noticed, to whom the job's end was laid, what was done, how
    long the job was away, how many steps it lost, and whether anything was done to a node that was well. Status 0 only
    when all was as the plan expects.
    """
    place = place_of(ctx)
    place.refuse_on_node("rehearse")
    parsed = read_plan(plan)
    if seed is not None:
        parsed = replace(parsed, seed=seed)
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
        ConfigError: if it cannot be read, is not YAML, or is not a plan.
    """
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    return parse_plan(data, str(path))


class Rehearsal:
    """Runs one plan on one cluster."""

    def __init__(self, place: Place, cluster: str, plan: Plan) -> None:
        self._place = place
        self._cluster = cluster
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._faults = place.make_faults(place.provider())
        self._controller = place.controller(cluster)
        self._job = 0
        self._folder = ""

    def run(self) -> list[Outcome]:
        """Submit the job, cause every fault, and end the job; return how each fault went."""
        outcomes = []
        self._submit()
        try:
            for number, planned in enumerate(self._plan.faults, start=1):
                say(f"fault {number} of {len(self._plan.faults)}: {planned.fault} {planned.argument}".rstrip())
                outcomes.append(self._one(planned))
                say(f"  {'as expected' if outcomes[-1].passed else '; '.join(outcomes[-1].problems)}")
        finally:
            with contextlib.suppress(HyperpodError):
                self._on_head(["scancel", str(self._job)])
                self._on_head(["rm", "-rf", self._folder])
        return outcomes

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._place.clock(), UTC)

    # --- the job ----------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        stamp = f"{self._now():%Y%m%d%H%M%S}"
        self._folder = f"/fsx/rehearsal-{stamp}"
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

    def _one(self, planned: PlannedFault) -> Outcome:
        self._wait("its job to run and save", self._is_in_stride, _START_S)
        self._place.sleep(self._random.uniform(*planned.after_s))
        # The breaker counts nodes that fail within an hour; here they are meant to.
        self._controller.command("reset-breaker")
        node = choose_node(planned.on, self._controller.query("nodes"), self._job, self._random.random())
        last = max((int(e["id"]) for e in self._controller.query("events", limit=1000)), default=0)
        before = int(self._attempts()[-1]["number"])
        argument = planned.argument.replace("{job}", str(self._job))
        at = self._now()
        say(f"  {self._faults.inject(self._cluster, node, planned.fault, argument)}")
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
        seen = replace(seen, reached=self._reached(before))
        outcome = judge(planned, seen)
        self._wait("all nodes to be well again", self._is_well, self._plan.limit_s)
        return outcome

    def _reached(self, attempt: int) -> int | None:
        """Return the last step that an attempt got to, by its own account."""
        lines = [line.split() for line in self._on_head(["cat", f"{self._folder}/progress"]).splitlines()]
        steps = [int(words[1]) for words in lines if len(words) == 2 and words[0] == str(attempt)]
        return max(steps, default=None)

    def _undo(self, node: str, fault: str, argument: str) -> None:
        from hyperpod.adapters.local.fault_kinds import FAULTS

        if FAULTS[fault].can_undo:
            with contextlib.suppress(HyperpodError):
                self._faults.undo(self._cluster, node, fault, argument)

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
    failures = sum(1 for outcome in outcomes if not outcome.passed)
    suite = ElementTree.Element(
        "testsuite", name=f"rehearsal {plan.name}", tests=str(len(outcomes)), failures=str(failures)
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
            ElementTree.SubElement(case, "failure", message=render.printable(problem))
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


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
