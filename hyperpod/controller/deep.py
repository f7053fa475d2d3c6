"""Deep checks: orders programs to the agents, in rounds, and gives the figures to the judgement in ``core.deep``.

Runs beside the tick. Nodes are not drained for it: a job that comes takes its node back at once, and the node is left
out of what remains. Nothing is kept but the last reports and an event: whoever wants to know again asks again.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from hyperpod.controller.memory import Report
from hyperpod.controller.world import World
from hyperpod.core import messages as words
from hyperpod.core.deep import (
    CHECK,
    DCGM_LIMITS_S,
    Kind,
    Measured,
    Outcome,
    Pair,
    bad_pairs,
    better,
    judge_pairs,
    judge_tests,
    rounds,
    untold,
    untold_finding,
)
from hyperpod.core.finding import Finding, Severity, observed, worst_severity
from hyperpod.core.node import NodeView
from hyperpod.core.plan import Note
from hyperpod.core.policy import Mode
from hyperpod.deep.result import Line, parse_lines
from hyperpod.errors import ConnectionLost, HyperpodError, InvalidState, NotFound, UsageError

log = logging.getLogger(__name__)

Ask = Callable[[str, Mapping[str, Any], float], Mapping[str, Any]]
"""Orders one agent to do something and waits for its answer; raises ConnectionLost when there is none in time."""

KEPT_REPORTS: Final = 20
MOST_AT_A_TIME: Final = 64
"""Nodes that are spoken to at a time; a thread waits for each."""

GATHER: Final = timedelta(seconds=3)
"""New machines that boot together are checked together: so long after the last of them, the check begins."""

GATHER_AT_MOST: Final = timedelta(seconds=60)
PARTNER_WAIT: Final = timedelta(minutes=5)
"""So long a new machine waits for another one that its links can be measured with; then it takes jobs without."""

MOST_TRIES: Final = 3
"""After so many checks of one boot that could not tell, a node takes jobs: not to know is no fault of it."""

PARTNERS: Final = 3
"""Idle nodes that measure a single new one."""

PAUSE: Final = timedelta(seconds=30)
"""After a run that left nodes waiting (they gave no answer, or gave way)."""

GAVE_WAY: Final = "gave way to a job"

_MOST_PARTS: Final = 20
"""Parts of the stress that take ``seconds``: memory, processors, matrices on the processor and on each of 16 GPUs."""

_PORTS: Final = (20_000, 30_000)


@dataclass(frozen=True)
class Options:
    """How hard nodes are tested.

    Attributes:
        seconds: Time for each part of the stress on one node.
        disk_mb, transfer_mb: Written on a disk, sent over each link.
        matrix: Rows of the matrices that are multiplied, where PyTorch is there.
        tolerance: Share below the median at which a link is slow.
        folders: Where disks are tested.
        dcgm_level: Of ``dcgmi diag``, from 1 to 4, where DCGM is there.
        limit_s: A program that takes longer than its parts and this is given up.
    """

    seconds: float = 10.0
    disk_mb: int = 256
    transfer_mb: int = 256
    matrix: int = 1024
    tolerance: float = 0.3
    folders: tuple[str, ...] = ("/var/tmp",)
    dcgm_level: int = 1
    limit_s: float = 600.0


_LIMITS: Final = {
    "seconds": (0.1, 3600.0),
    "disk_mb": (4, 1_000_000),
    "transfer_mb": (1, 100_000),
    "matrix": (16, 65_536),
    "tolerance": (0.01, 0.99),
    "dcgm_level": (1, 4),
    "limit_s": (1.0, 7200.0),
}


def parse_options(data: Mapping[str, Any], base: Options) -> Options:
    """Return the options with what is given in ``data``.

    Raises:
        UsageError: naming the value that is not allowed.
    """
    values: dict[str, Any] = dict(base.__dict__)
    for name, value in data.items():
        if name not in _LIMITS:
            raise UsageError(f"deep: there is no option {name!r}", hint=f"known are: {', '.join(_LIMITS)}")
        low, high = _LIMITS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise UsageError(f"deep: {name} must be a number from {low:g} to {high:g}, got {value!r}")
        values[name] = type(values[name])(value)
    return Options(**values)


@dataclass
class Run:
    """One deep check, while it runs and after."""

    key: str
    at: datetime
    nodes: tuple[str, ...]
    stressed: tuple[str, ...]
    """Those that are put under load; the others only help to measure links."""

    kinds: tuple[Kind, ...]
    options: Options
    why: str
    addresses: Mapping[str, str]
    modes: Mapping[str, Mode] = field(default_factory=dict)
    """What deep checks may do, by node: findings of nodes that are only observed drain nobody."""

    is_first: bool = False
    """It is the check before the first job: what it cannot tell is tried again a few times."""

    progress: str = "begins"
    is_over: bool = False
    error: str = ""
    out: dict[str, str] = field(default_factory=dict)
    """Nodes that are left out, with the reason: a job has come, no answer."""

    untold: dict[str, dict[Kind, str]] = field(default_factory=dict)
    """Kinds of which nothing can be told, by node, each with the reason."""

    tests: dict[str, list[Line]] = field(default_factory=dict)
    pairs: dict[Pair, Measured] = field(default_factory=dict)
    findings: dict[str, list[Finding]] = field(default_factory=dict)

    def found(self, node: str) -> list[Finding]:
        """Return the findings of a node, what could not be told included, as its group's policy has them."""
        mode = self.modes.get(node, Mode.ACT)
        if mode is Mode.OFF:
            return []
        unknown = self.untold.get(node, {})
        found = [*self.findings.get(node, []), *(untold_finding(kind, why) for kind, why in unknown.items())]
        return [observed(f) for f in found] if mode is Mode.OBSERVE else found

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        nodes = []
        for name in self.nodes:
            found = self.found(name)
            worst = worst_severity(found)
            state = self.out.get(name) or ("running" if not self.is_over else worst.name)
            nodes.append(
                {
                    "node": name,
                    "state": state,
                    "tests": [line.__dict__ for line in self.tests.get(name, [])],
                    "findings": [f.to_dict() for f in found],
                }
            )
        return {
            "run": self.key,
            "at": self.at.isoformat(),
            "why": self.why,
            "kinds": [kind.value for kind in self.kinds],
            "progress": self.progress,
            "is_over": self.is_over,
            "error": self.error,
            "nodes": nodes,
            "pairs": [
                {"nodes": list(pair), **measured.__dict__} for pair, measured in sorted(dict(self.pairs).items())
            ],
        }


class DeepChecks:
    """Starts deep checks and keeps their reports. One runs at a time.

    Args:
        world: The surroundings; its last snapshot says which nodes have jobs.
        ask: Speaks to an agent.
        options: How hard, where nobody says otherwise.
    """

    def __init__(self, world: World, ask: Ask, options: Options = Options()) -> None:
        self._world = world
        self._ask = ask
        self._options = options
        self._runs: dict[str, Run] = {}
        self._count = 0
        self._gathering: tuple[frozenset[str], datetime, datetime] | None = None
        self._not_before: datetime | None = None
        self._alone_since: dict[str, datetime] = {}
        self._tries: dict[str, tuple[str, int]] = {}
        """Checks before the first job that could not tell, by node: of which boot, how many."""

    # --- for people -------------------------------------------------------------------------------------------

    def command(self, world: World, args: Mapping[str, Any]) -> str:
        """Begin a deep check and return its key. Runs in the tick's thread.

        Raises:
            UsageError, NotFound: for options, kinds or nodes that do not exist.
            InvalidState: if one runs already, or no node is free.
        """
        kinds = _kinds(args.get("kinds") or [kind.value for kind in Kind])
        options = parse_options(args.get("options") or {}, self._options)
        nodes = self._free_nodes(args.get("nodes"))
        if kinds == (Kind.CONNECTIVITY,) and len(nodes) < 2:
            raise InvalidState("check connectivity", "only one node", hint="name two or more, or have another one idle")
        return self._begin(nodes, kinds, options, "asked by an administrator")

    def report(self, args: Mapping[str, Any], uid: int) -> dict[str, Any]:
        """Return the report of a run; without a key that of the last one.

        Raises:
            NotFound: if there is none.
        """
        key = str(args.get("run") or (next(reversed(self._runs)) if self._runs else ""))
        run = self._runs.get(key)
        if run is None:
            raise NotFound(f"there is no deep check {key or 'yet'}".rstrip(), hint="hyperpod health deep begins one")
        return run.to_dict()

    def _free_nodes(self, asked: object) -> list[NodeView]:
        snapshot = self._world.last_snapshot
        known = {n.name: n for n in snapshot.workers} if snapshot is not None else {}
        if asked is None:
            free = [n for n in known.values() if not n.jobs and n.name in self._connected()]
            if not free:
                raise InvalidState("check deeply", "without an idle worker", hint="wait for one to be idle")
            return free
        if not isinstance(asked, list) or not asked:
            raise UsageError("deep: nodes must be a list of names")
        for name in asked:
            if name not in known:
                raise NotFound(f"there is no worker {name!r}", hint=f"workers are: {', '.join(known) or 'none yet'}")
        busy = [name for name in asked if known[name].jobs]
        if busy:
            raise InvalidState(
                "check deeply",
                f"not idle: {', '.join(busy)} has jobs",
                hint="hyperpod drain NODE, and wait for its jobs",
            )
        return [known[name] for name in dict.fromkeys(asked)]

    def _connected(self) -> Collection[str]:
        return [name for name, word in self._world.memory.nodes.items() if word.heartbeat_at is not None]

    def _begin(
        self,
        nodes: Sequence[NodeView],
        kinds: tuple[Kind, ...],
        options: Options,
        why: str,
        partners: Sequence[NodeView] = (),
        *,
        is_first: bool = False,
    ) -> str:
        if any(not run.is_over for run in self._runs.values()):
            raise InvalidState("check deeply", "busy with another deep check", hint="wait for its end")
        self._count += 1
        now = self._world.clock.now()
        key = f"deep-{now:%Y%m%dT%H%M%S}-{self._count}"
        addresses = {slot.name: slot.address for slot in self._world.slots()}
        policy = self._world.repair_policy
        modes = {slot.name: policy.mode_of(slot.group, CHECK) for slot in self._world.slots()}
        stressed = tuple(n.name for n in nodes)
        names = (*stressed, *(n.name for n in partners))
        run = Run(key, now, names, stressed, kinds, options, why, addresses, modes, is_first)
        self._runs[key] = run
        while len(self._runs) > KEPT_REPORTS:
            del self._runs[next(iter(self._runs))]
        self._world.jobs.submit("deep", partial(self._work, run))
        return key

    # --- before the first job ---------------------------------------------------------------------------------

    def on_tick(self) -> None:
        """Begin a check of the nodes that wait for one. Called in the tick's thread."""
        now = self._world.clock.now()
        snapshot = self._world.last_snapshot
        if snapshot is None or (self._not_before is not None and now < self._not_before):
            return
        wanted = {n: set(word.wants) for n, word in self._world.memory.nodes.items() if word.wants}
        waiting = [n for n in snapshot.workers if n.name in wanted and not n.jobs]
        self._alone_since = {name: since for name, since in self._alone_since.items() if name in wanted}
        if not waiting or any(not run.is_over for run in self._runs.values()):
            return
        names = frozenset(n.name for n in waiting)
        if self._gathering is None or self._gathering[0] != names:
            since = self._gathering[2] if self._gathering is not None else now
            self._gathering = (names, now, since)
        _, changed, since = self._gathering
        if now - changed < GATHER and now - since < GATHER_AT_MOST:
            return
        kinds = tuple(kind for kind in Kind if any(kind.value in wanted[name] for name in names))
        partners: list[NodeView] = []
        if Kind.CONNECTIVITY in kinds and len(waiting) < 2:
            partners = self._partners(waiting[0], snapshot.workers)
            if not partners and self._may_get_partner(waiting[0], snapshot.workers, now):
                kinds = tuple(kind for kind in kinds if kind is not Kind.CONNECTIVITY)
        if not kinds:
            return
        self._gathering, self._not_before = None, now + PAUSE
        self._begin(waiting, kinds, self._options, "before their first job", partners, is_first=True)

    @staticmethod
    def _partners(node: NodeView, workers: Sequence[NodeView]) -> list[NodeView]:
        """Return idle nodes that may measure a single new one; those of its own group first."""
        free = [n for n in workers if n.name != node.name and n.is_ready and not n.jobs]
        return sorted(free, key=lambda n: (n.group != node.group, n.name))[:PARTNERS]

    def _may_get_partner(self, node: NodeView, workers: Sequence[NodeView], now: datetime) -> bool:
        since = self._alone_since.setdefault(node.name, now)
        return len(workers) > 1 and now - since < PARTNER_WAIT

    # --- the run itself ---------------------------------------------------------------------------------------

    def _work(self, run: Run) -> None:
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(run, done), name="deep-watch", daemon=True)
        watch.start()
        try:
            if Kind.STRESS in run.kinds:
                self._stress(run)
            if Kind.CONNECTIVITY in run.kinds:
                self._connectivity(run)
            self._judge(run)
        except HyperpodError as error:
            run.error = error.message
            self._give_up(run, error.message)
        finally:
            done.set()
            run.progress = "done" if not run.error else "failed"
            run.is_over = True
        self._tell(run)

    def _watch(self, run: Run, done: threading.Event) -> None:
        """Take nodes out that Slurm has given to a job, should their own agents not have noticed yet."""
        while not done.wait(0.5):
            snapshot = self._world.last_snapshot
            for node in snapshot.workers if snapshot is not None else ():
                if node.name in run.nodes and node.jobs and node.name not in run.out:
                    run.out[node.name] = GAVE_WAY
                    self._world.agents.send(node.name, {"type": words.DEEP_STOP})

    def _order(self, run: Run, node: str, program: str, args: Mapping[str, Any], limit_s: float) -> tuple[Line, ...]:
        """Run a program on a node; nothing when the node is left out, which is then noted."""
        if node in run.out:
            return ()
        order = {"type": words.DEEP, "program": program, "args": args, "timeout_s": limit_s}
        try:
            answer = self._ask(node, order, limit_s + 5.0)
        except ConnectionLost as error:
            run.out[node] = f"no answer: {error.message}"
            return ()
        if answer.get("gave_way"):
            run.out[node] = GAVE_WAY
            return ()
        lines = parse_lines(str(answer.get("output") or ""))
        if not answer.get("ok", True):
            lines = (*lines, Line(program, False, detail=str(answer.get("message") or "failed")[:200], skipped=True))
        return lines

    def _stress(self, run: Run) -> None:
        o = run.options
        run.progress = f"stress on {len(run.stressed)} nodes"
        args = {"seconds": o.seconds, "folders": list(o.folders), "disk_mb": o.disk_mb, "matrix": o.matrix}
        limit_s = o.limit_s + _MOST_PARTS * o.seconds

        def one(node: str) -> None:
            longest_s = limit_s + DCGM_LIMITS_S[o.dcgm_level]
            with_dcgm = {**args, "dcgm_level": o.dcgm_level}
            run.tests[node] = list(self._order(run, node, "stress", with_dcgm, longest_s))

        _side_by_side([partial(one, node) for node in run.stressed])
        # As with links, seen once is not enough.
        found = judge_tests(_outcomes(run))
        slow = [node for node, findings in sorted(found.items()) if all(f.severity is Severity.WARN for f in findings)]
        if not slow:
            return
        run.progress = f"stress on {len(slow)} nodes once more"

        def once_more(node: str) -> None:
            run.tests[node] = _better_of(run.tests[node], self._order(run, node, "stress", args, limit_s))

        _side_by_side([partial(once_more, node) for node in slow])

    def _connectivity(self, run: Run) -> None:
        nodes = [node for node in run.nodes if node not in run.out]
        plan = rounds(nodes)
        for number, pairs in enumerate(plan, start=1):
            run.progress = f"network, round {number} of {len(plan)}"
            _side_by_side([partial(self._pair, run, pair) for pair in pairs])
        bad = bad_pairs(run.pairs, run.options.tolerance)
        for pairs in plan:
            # Seen once is not enough: another program may have been in the way.
            again = [pair for pair in pairs if pair in bad]
            run.progress = f"network, {len(bad)} links once more" if again else run.progress
            _side_by_side([partial(self._pair, run, pair) for pair in again])
        nodes = [node for node in run.nodes if node not in run.out]
        if len(nodes) > 1:
            run.progress = f"all-reduce over {len(nodes)} nodes"
            self._all_reduce(run, nodes)

    def _pair(self, run: Run, pair: Pair) -> None:
        server, client = pair
        o = run.options
        measured = Measured(failure="not measured")
        for _ in range(2):
            # A port may be taken by somebody else; another one is tried once.
            port, token = random.randrange(*_PORTS), os.urandom(32).hex()
            limit_s = min(o.limit_s, 30.0 + o.transfer_mb / 10)
            both = {"port": port, "token": token, "timeout_s": limit_s}
            serve = {**both, "address": run.addresses[server], "peer": run.addresses[client]}
            measure = {**both, "peer": run.addresses[server], "size_mb": o.transfer_mb}
            served: list[Line] = []
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(self._order, run, server, "serve", serve, limit_s)
                lines = self._order(run, client, "measure", measure, limit_s)
                served += other.result()
            if server in run.out or client in run.out:
                return
            measured = _measured(lines)
            if not measured.failure or not any(not line.ok for line in served):
                break
        before = run.pairs.get(pair)
        run.pairs[pair] = measured if before is None else better(before, measured)

    def _all_reduce(self, run: Run, nodes: Sequence[str]) -> None:
        o = run.options
        port = random.randrange(*_PORTS)
        limit_s = min(o.limit_s, 120.0)

        def one(rank: int, node: str) -> None:
            args = {
                "rank": rank,
                "world": len(nodes),
                "head": run.addresses[nodes[0]],
                "port": port,
                "elements": 1 << 20,
                "timeout_s": limit_s / 2,
                "interface": "",
            }
            run.tests.setdefault(node, []).extend(self._order(run, node, "all_reduce", args, limit_s))

        _side_by_side([partial(one, rank, node) for rank, node in enumerate(nodes)], most=len(nodes))

    def _judge(self, run: Run) -> None:
        tests = _outcomes(run)
        pairs = {pair: m for pair, m in run.pairs.items() if not set(pair) & set(run.out)}
        for found in (judge_tests(tests), judge_pairs(pairs, run.options.tolerance)):
            for node, findings in found.items():
                run.findings.setdefault(node, []).extend(findings)
        for node in run.nodes:
            own = run.kinds if node in run.stressed else (Kind.CONNECTIVITY,)
            failure = next((line.detail for line in run.tests.get(node, ()) if line.skipped and not line.ok), "")
            if node not in run.out:
                self._say(run, node, own, untold(own, node, tests.get(node, ()), pairs, failure))
            elif run.out[node] != GAVE_WAY and node in run.stressed:
                self._say(run, node, own, dict.fromkeys(own, run.out[node]))

    def _give_up(self, run: Run, why: str) -> None:
        for node in run.stressed:
            self._say(run, node, run.kinds, dict.fromkeys(run.kinds, why))

    def _say(self, run: Run, node: str, kinds: Sequence[Kind], unknown: Mapping[Kind, str]) -> None:
        """Tell a node what was found. Of what could not be told it is let go with a finding that says so: at once after
        a check that a person has asked for, after ``MOST_TRIES`` of those before the first job."""
        run.untold[node] = dict(unknown)
        is_alone = len(run.nodes) == 1 and set(unknown) == {Kind.CONNECTIVITY}
        # One that is measured alone has waited for another node long enough before.
        is_last = not (run.is_first and unknown) or is_alone or self._is_last_try(node)
        told = [kind for kind in kinds if is_last or kind not in unknown]
        found = run.found(node)
        if told:
            told_now = [f.to_dict() for f in found if is_last or f.severity is not Severity.UNKNOWN]
            message = {"type": words.DEEP_JUDGED, "kinds": [kind.value for kind in told], "findings": told_now}
            self._world.agents.send(node, message)

    def _is_last_try(self, node: str) -> bool:
        word = self._world.memory.nodes.get(node)
        boot = f"{word.instance_id}/{word.boot_id}" if word is not None else ""
        before, count = self._tries.get(node, (boot, 0))
        count = count + 1 if before == boot else 1
        self._tries[node] = (boot, count)
        return count >= MOST_TRIES

    def _tell(self, run: Run) -> None:
        """Write an event with the outcome; in the tick's thread, where the journal belongs."""
        bad = {node: found for node in run.findings if (found := run.found(node))}
        parts = [f"{len(run.nodes) - len(run.out)} of {len(run.nodes)} nodes checked"]
        parts += [f"{node}: {found[0].message}" for node, found in sorted(bad.items())[:5]]
        parts += [f"failed: {run.error}"] if run.error else []
        note = Note("DeepCheck", "; ".join(parts))

        def in_tick(world: World) -> None:
            world.store.add_event(note.code, note.message, world.clock.now(), data={"run": run.key})

        self._world.inbox.put(Report(words.COMMAND, self._world.clock.now(), {"run": in_tick}))


def _outcomes(run: Run) -> dict[str, list[Outcome]]:
    return {
        node: [Outcome(line.test, line.ok, line.value, line.unit, line.detail) for line in lines if not line.skipped]
        for node, lines in run.tests.items()
        if node not in run.out
    }


def _better_of(first: Sequence[Line], second: Sequence[Line]) -> list[Line]:
    """Return the better figure of each test. A wrong answer stays, whichever run gave it."""
    if [line.test for line in first] != [line.test for line in second]:
        return list(first)
    out = []
    for line, again in zip(first, second, strict=True):
        is_told = line.ok and not line.skipped and not again.skipped
        is_other = not again.ok or (again.value or 0.0) > (line.value or 0.0)
        out.append(again if is_told and is_other else line)
    return out


def _measured(lines: Sequence[Line]) -> Measured:
    by_test = {line.test: line for line in lines}
    failure = next((line.detail or "failed" for line in lines if not line.ok), "")
    if not failure and not {"network_latency", "network_bandwidth"} <= by_test.keys():
        failure = "no figures"
    if failure:
        return Measured(failure=failure)
    return Measured(by_test["network_bandwidth"].value or 0.0, by_test["network_latency"].value or 0.0)


def _side_by_side(work: Sequence[Callable[[], None]], most: int = MOST_AT_A_TIME) -> None:
    if not work:
        return
    with ThreadPoolExecutor(max_workers=min(len(work), most), thread_name_prefix="deep") as pool:
        for done in [pool.submit(one) for one in work]:
            done.result()


def _kinds(given: object) -> tuple[Kind, ...]:
    if not isinstance(given, list):
        raise UsageError("deep: kinds must be a list")
    try:
        return tuple(dict.fromkeys(Kind(str(kind)) for kind in given))
    except ValueError as error:
        raise UsageError(f"deep: {error}", hint=f"known are: {', '.join(kind.value for kind in Kind)}") from error
