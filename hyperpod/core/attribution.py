"""Who ended an attempt of a job: a node, the application, or nobody knows.

Owns the rules and their weights (docs/decisions/0010-who-was-it.md). Only computes: what is seen goes in, a verdict
with its evidence comes out. Evidence adds up: a later look hands in what an earlier one has found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hyperpod.core.explains import Exits, explains
from hyperpod.core.finding import ANY_PEER, Action, Finding, Severity, Whose
from hyperpod.core.job import BATCH_STEP, EXTERN_STEP, Attempt, ExitCause, TaskExit
from hyperpod.core.verdict import ELSEWHERE, Evidence, Kind, Method, Verdict

BEFORE = timedelta(minutes=10)
"""Findings that began up to this long before a failure may explain it: memory errors show minutes before the crash."""

AFTER = timedelta(minutes=5)
"""Findings that begin up to this long after it may, too: counters are read every few minutes."""

SITE_NODES = 3
"""So many nodes with one cause at once are no chance: the site, the switch or the server."""

SETTLED = timedelta(seconds=30)
"""A node that complains of nobody is the silent one only when it was heard so long after the others' complaints: all
have read their counters by then, which they do every quarter of a minute."""

SILENT = "silent"
"""Key of the evidence against the one node whose counters accuse nobody."""

SIMULTANEOUS_S = 1.0
MOST_EVIDENCE = 12
"""Pieces that are kept with an attempt: the journal is read at every tick."""

MOST_SUSPECTS = 32

NODE_SCORE = 0.5
"""Two methods that agree must together be this sure of a node, and surer of it than of the application."""

LEAD = 0.15
APPLICATION_SCORE = 0.75

OUT_OF_MEMORY_JOB = "OutOfMemoryJob"
OUT_OF_MEMORY_NODE = "OutOfMemoryNode"

_SIGBUS, _SIGKILL, _SIGTERM = 7, 9, 15
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
# What the first exit says about its node alone. A bus error is memory or a full /dev/shm more often than a program.
_SIGNAL_WEIGHT = {_SIGBUS: 0.5, _SIGKILL: 0.4, 4: 0.35, 8: 0.25}
_PLAIN_WEIGHT = 0.3

JUDGED = frozenset(
    {
        ExitCause.NODE_DEAD,
        ExitCause.NODE_UNHEALTHY,
        ExitCause.APPLICATION,
        ExitCause.OUT_OF_MEMORY,
        ExitCause.LAUNCH_FAILED,
    }
)


@dataclass(frozen=True)
class Witness:
    """What is known of one machine of the attempt.

    ``dead`` says how it died, ``refused`` how it failed to launch the job, ``leaving`` why it is being taken out of
    work; all are empty for a machine of which that is not so. ``suspicion`` is what other jobs have left on it.
    ``heard_at`` is when its agent was heard last: what a machine has not said means something only while it speaks.
    """

    node: str
    findings: tuple[Finding, ...] = ()
    dead: str = ""
    refused: str = ""
    leaving: str = ""
    suspicion: float = 0.0
    heard_at: datetime | None = None

    @property
    def is_of_interest(self) -> bool:
        """True when anything at all is known of it."""
        return bool(self.findings or self.dead or self.refused or self.leaving or self.suspicion)


def attribute(
    attempt: Attempt,
    exits: Sequence[TaskExit],
    witnesses: Sequence[Witness],
    earlier: Sequence[Attempt] = (),
    coincident: Mapping[str, int] | None = None,
    job_id: int | None = None,
) -> Verdict | None:
    """Say who ended an attempt, in the order: hard facts, first exit, findings and peers, the same failure elsewhere.

    Pure; the order of exits and witnesses does not matter.

    Args:
        attempt: The attempt that has ended; what its verdict rested on before is kept.
        exits: Failures of its tasks, their times on one clock.
        witnesses: Its machines as they were during it.
        earlier: Attempts of the same job before it.
        coincident: How many nodes of the cluster have a finding of this ``check/code`` now.
        job_id: The job, to know findings about it from those about others.

    Returns:
        The verdict; None where there is nobody to look for (it completed, its user or its limit ended it).
    """
    if attempt.cause not in JUDGED:
        return None
    at = failure_time(attempt, exits)
    old = attempt.attribution.evidence if attempt.attribution else ()
    if _complaints(attempt, witnesses, at):
        # Who was silent a moment ago may complain by now.
        old = tuple(e for e in old if e.key != SILENT)
    found = [
        *_facts(attempt, witnesses, at),
        *_from_exits(attempt, exits),
        *_from_findings(attempt, witnesses, at, job_id),
        *_from_peers(attempt, witnesses, at),
        *_from_record(witnesses),
    ]
    if attempt.cause is ExitCause.OUT_OF_MEMORY:
        is_machines = any(e.key.endswith(f"/{OUT_OF_MEMORY_NODE}") for e in found)
        found.append(
            Evidence(at, "", attempt.message, 0.3 if is_machines else 0.8, Method.EXITS, Kind.APPLICATION, "memory")
        )
    elsewhere = _same_failure_elsewhere(attempt, earlier)
    found += [elsewhere] if elsewhere else _shared_by_failures(attempt, earlier)
    evidence = _merged(old, found)
    evidence = _with_coincidence(evidence, coincident or {})
    return _judge(attempt, evidence)


def failure_time(attempt: Attempt, exits: Sequence[TaskExit]) -> datetime | None:
    """Return when the first task of an attempt failed, else when its end was seen.

    A task's time that is far from what was seen here comes from a clock that is wrong beyond measure.
    """
    seen = min((t for t in (attempt.failure_seen_at, attempt.ended_at) if t is not None), default=None)
    first = min((e.time for e in _own(attempt, exits)), default=None)
    if first is None:
        return seen
    if seen is not None and abs(first - seen.timestamp()) > BEFORE.total_seconds():
        return seen
    return datetime.fromtimestamp(first, UTC)


def _own(attempt: Attempt, exits: Iterable[TaskExit]) -> list[TaskExit]:
    return [e for e in exits if e.restart_count == attempt.restart_count and e.is_failure and e.step_id != EXTERN_STEP]


# --- 1. hard facts ----------------------------------------------------------------------------------------------


def _facts(attempt: Attempt, witnesses: Sequence[Witness], at: datetime | None) -> list[Evidence]:
    found = []
    for w in witnesses:
        if w.dead:
            found.append(Evidence(at, w.node, w.dead, 1.0, Method.FACT, key="node/NodeDead"))
        if w.refused:
            found.append(Evidence(at, w.node, w.refused, 0.9, Method.FACT, key="node/LaunchRefused"))
        if w.leaving:
            found.append(Evidence(at, w.node, w.leaving, 0.8, Method.FINDINGS, key="node/Leaving"))
        for f in w.findings:
            if f.is_hard and is_nodes_own_fault(f) and _is_in_time(f, at, attempt):
                found.append(_finding_evidence(f, w.node, 0.95, Method.FACT))
    return found


def is_nodes_own_fault(finding: Finding) -> bool:
    """Say whether a finding alone takes a node out of work: FATAL, the node's own, with something to do about it."""
    is_own = finding.whose is Whose.NODE and finding.action not in (Action.NONE, Action.REQUEUE)
    return finding.severity is Severity.FATAL and is_own and not finding.peer


def _is_in_time(finding: Finding, at: datetime | None, attempt: Attempt) -> bool:
    """Say whether a finding began in the window; one of a fatal kind also counts when it began during the attempt."""
    if finding.since is None or at is None:
        return True
    oldest = at - BEFORE
    if finding.severity is Severity.FATAL and attempt.started_at is not None:
        oldest = min(oldest, attempt.started_at)
    return oldest <= finding.since <= at + AFTER


def _finding_evidence(
    finding: Finding, node: str, weight: float, method: Method, points_to: Kind = Kind.NODE
) -> Evidence:
    key = f"{finding.check}/{finding.code}"
    return Evidence(finding.since, node, f"{key}: {finding.message}"[:300], weight, method, points_to, key)


# --- 2. exits ---------------------------------------------------------------------------------------------------


def _from_exits(attempt: Attempt, exits: Sequence[TaskExit]) -> list[Evidence]:
    """Weigh the first exit. Whoever falls after it by SIGKILL or SIGTERM was dragged along and says nothing."""
    if attempt.cause is ExitCause.LAUNCH_FAILED:
        return []
    own = [e for e in _own(attempt, exits) if e.step_id != BATCH_STEP and e.signal != _SIGTERM]
    if not own:
        return []
    # Of two at the same time the one that was not killed is the cause.
    first = min(own, key=lambda e: (e.time, e.signal == _SIGKILL, e.node, e.step_id, e.rank, *_how(e)))
    when = failure_time(attempt, [first])
    what = _how(first)
    alike = [e for e in own if _how(e) == what and e.time - first.time <= SIMULTANEOUS_S and e.step_id >= 0]
    where = {e.node for e in alike}
    key = f"exit:{what[0]}:{what[1]}"
    if len(where) > 1 and first.signal != _SIGKILL:
        text = f"{len(alike)} ranks on {len(where)} nodes failed alike within {SIMULTANEOUS_S:g} s: {first.sentence}"
        return [Evidence(when, "", text, 0.4, Method.EXITS, Kind.APPLICATION, key)]
    name = f" ({_SIGNALS[first.signal]})" if first.signal in _SIGNALS else ""
    weight = _SIGNAL_WEIGHT.get(first.signal or 0, _PLAIN_WEIGHT)
    return [Evidence(when, first.node, f"the first to fall: {first.sentence}{name}", weight, Method.EXITS, key=key)]


def _how(task: TaskExit) -> tuple[int, int]:
    return (task.exit_code or 0, task.signal or 0)


# --- 3. findings and peers --------------------------------------------------------------------------------------


def _from_findings(
    attempt: Attempt, witnesses: Sequence[Witness], at: datetime | None, job_id: int | None
) -> list[Evidence]:
    found = []
    for w in witnesses:
        for f in w.findings:
            if f.peer or not _is_in_time(f, at, attempt) or (f.is_hard and is_nodes_own_fault(f)):
                continue
            if f.check == "neuron" and f.code.startswith(_OF_OUTPUT):
                found += _from_output(attempt, f, w.node, job_id)
                continue
            is_others = f.job_id is not None and job_id is not None and f.job_id != job_id
            if f.whose is Whose.USER and not is_others and f.severity in (Severity.WARN, Severity.FATAL):
                is_limit = f.code == OUT_OF_MEMORY_JOB and attempt.cause in _MEMORY_CAUSES
                weight = 0.9 if is_limit else 0.3 if f.job_id is not None else 0.2
                found.append(_finding_evidence(f, w.node, weight, Method.FINDINGS, Kind.APPLICATION))
            elif f.whose is Whose.SITE and f.severity in (Severity.WARN, Severity.FATAL):
                found.append(_finding_evidence(f, w.node, 0.3, Method.SITE, Kind.UNKNOWN))
            elif f.whose is Whose.NODE and is_nodes_own_fault(f):
                found.append(_finding_evidence(f, w.node, 0.8, Method.FINDINGS))
            elif f.whose is Whose.NODE and f.severity in (Severity.WARN, Severity.FATAL):
                found.append(_finding_evidence(f, w.node, _warning_weight(f), Method.FINDINGS))
    return found


def _from_output(attempt: Attempt, finding: Finding, node: str, job_id: int | None) -> list[Evidence]:
    """A status of the Neuron runtime in the job's own output: it says on which machine only where there is one, and
    anybody can write it, so it is no witness against a node beside others."""
    if finding.job_id is None or finding.job_id != job_id:
        return []
    if len(attempt.nodes) == 1:
        return [_finding_evidence(finding, node, 0.3, Method.FINDINGS)]
    return [Evidence(finding.since, "", finding.message[:300], 0.3, Method.FINDINGS, Kind.UNKNOWN, finding.code)]


def _warning_weight(finding: Finding) -> float:
    if finding.code == OUT_OF_MEMORY_NODE:
        return 0.45
    return 0.15 if explains(finding.check, finding.code) is Exits.NONE else 0.35


_OF_OUTPUT = "Nrt"
"""What codes begin with that come from a job's own output."""

_MEMORY_CAUSES = (ExitCause.OUT_OF_MEMORY, ExitCause.APPLICATION)


def _from_peers(attempt: Attempt, witnesses: Sequence[Witness], at: datetime | None) -> list[Evidence]:
    """Weigh what nodes say about others: several reporters against one peer accuse the peer, never the reporters."""
    names = {w.node for w in witnesses}
    against: dict[str, set[str]] = {}
    complaints = _complaints(attempt, witnesses, at)
    first = min((f.since for _, f in complaints if f.since is not None), default=None)
    for w, f in complaints:
        if f.peer in names and f.peer != w.node:
            against.setdefault(f.peer, set()).add(w.node)
    found = []
    for peer, reporters in sorted(against.items()):
        told = ", ".join(sorted(reporters)[:4]) + (", …" if len(reporters) > 4 else "")
        weight = 0.6 if len(reporters) > 1 else 0.3
        found.append(Evidence(first, peer, f"accused by {told}", weight, Method.PEERS, key="peers"))
    unnamed = [(w, f) for w, f in complaints if f.peer == ANY_PEER]
    silent = _silent_one(witnesses, unnamed)
    if silent is not None and silent not in against:
        told = _listed(sorted({w.node for w, _ in unnamed}))
        text = f"the other nodes of the job ({told}) count errors of a peer, and only {silent} counts none"
        found.append(Evidence(first, silent, text, SILENT_WEIGHT, Method.PEERS, key=SILENT))
    return found


SILENT_WEIGHT = 0.5


def _complaints(attempt: Attempt, witnesses: Sequence[Witness], at: datetime | None) -> list[tuple[Witness, Finding]]:
    """Return what nodes say about others in the window."""
    return [
        (w, f)
        for w in witnesses
        for f in w.findings
        if f.peer and f.severity in (Severity.WARN, Severity.FATAL) and _is_in_time(f, at, attempt)
    ]


def _silent_one(witnesses: Sequence[Witness], unnamed: Sequence[tuple[Witness, Finding]]) -> str | None:
    """Return the one node that complains of nobody, while two or more others, and all others, complain of somebody.

    Its silence must be its own: it has been heard since, and has not said that it cannot tell.
    """
    complaining = {w.node for w, _ in unnamed}
    silent = [w for w in witnesses if w.node not in complaining]
    if len(complaining) < 2 or len(silent) != 1:
        return None
    (one,) = silent
    checks = {f.check for _, f in unnamed}
    last = max((f.since for _, f in unnamed if f.since is not None), default=None)
    is_blind = any(f.severity is Severity.UNKNOWN and f.check in checks for f in one.findings)
    is_heard = one.heard_at is not None and (last is None or one.heard_at >= last + SETTLED)
    return one.node if is_heard and not is_blind else None


def _from_record(witnesses: Sequence[Witness]) -> list[Evidence]:
    """What failures of other jobs have left on a machine: it makes a suspect worse, and is no second witness."""
    return [
        Evidence(
            None,
            w.node,
            f"earlier failures have left a suspicion of {w.suspicion:.1f} on its machine",
            round(min(0.5, w.suspicion / 3), 3),
            Method.HISTORY,
            key="suspicion",
        )
        for w in witnesses
        if w.suspicion >= SUSPICION_COUNTS
    ]


SUSPICION_COUNTS = 0.9


# --- 4. the same failure elsewhere ------------------------------------------------------------------------------


def _machines(attempt: Attempt) -> frozenset[str]:
    """Return the machines of an attempt; names stand in where the provider was silent."""
    ids = attempt.instance_ids if len(attempt.instance_ids) == len(attempt.nodes) else ("",) * len(attempt.nodes)
    return frozenset(instance or name for name, instance in zip(attempt.nodes, ids, strict=True))


def _alike(attempt: Attempt, earlier: Sequence[Attempt]) -> list[Attempt]:
    """Return earlier attempts that failed in the same way and were not put down to a node."""
    is_applications = attempt.cause is not None and attempt.cause.is_applications
    if not attempt.signature or not attempt.nodes or not is_applications:
        return []
    return [
        a
        for a in earlier
        if a.number < attempt.number
        and a.signature == attempt.signature
        and a.nodes
        and (a.attribution is None or a.attribution.kind is not Kind.NODE)
    ]


def _same_failure_elsewhere(attempt: Attempt, earlier: Sequence[Attempt]) -> Evidence | None:
    mine = _machines(attempt)
    for a in reversed(_alike(attempt, earlier)):
        if mine.isdisjoint(_machines(a)):
            text = (
                f"the same failure on two sets of nodes without a common machine: attempt {a.number} on "
                f"{_listed(a.nodes)}, attempt {attempt.number} on {_listed(attempt.nodes)}"
            )
            return Evidence(None, "", text, 0.9, Method.HISTORY, Kind.APPLICATION, ELSEWHERE)
    return None


def _shared_by_failures(attempt: Attempt, earlier: Sequence[Attempt]) -> list[Evidence]:
    """A machine that was there each time, while others changed, is a suspect."""
    alike = _alike(attempt, earlier)
    sets = [_machines(a) for a in alike]
    mine = _machines(attempt)
    if not sets or all(s == mine for s in sets):
        return []
    shared = mine.intersection(*sets)
    ids = dict(zip(attempt.nodes, attempt.instance_ids, strict=False))
    return [
        Evidence(
            None,
            name,
            f"it was there each time: in attempts {', '.join(str(a.number) for a in (*alike, attempt))}",
            0.2,
            Method.HISTORY,
            key="shared",
        )
        for name in attempt.nodes
        if (ids.get(name) or name) in shared
    ]


def _listed(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")


# --- the judgement ----------------------------------------------------------------------------------------------


def _merged(old: Iterable[Evidence], found: Iterable[Evidence]) -> list[Evidence]:
    """Put old and new evidence together; of one thing seen twice the newer word counts. Exits are judged as a whole."""
    # Of one code on two parts of a node the graver counts.
    found = list({e.identity: e for e in sorted(found, key=lambda e: (e.weight, e.what))}.values())
    has_exits = any(e.method is Method.EXITS for e in found)
    merged = {e.identity: e for e in old if not (has_exits and e.method is Method.EXITS)}
    for e in found:
        before = merged.get(e.identity)
        merged[e.identity] = replace(e, when=before.when) if before is not None and before.when else e
    if any(e.key == ELSEWHERE for e in merged.values()):
        merged = {i: e for i, e in merged.items() if e.key != "shared"}
    return list(merged.values())


def _with_coincidence(evidence: list[Evidence], coincident: Mapping[str, int]) -> list[Evidence]:
    """One cause on three nodes or more is the site's: it holds nothing against any of them."""
    counts: Counter[str] = Counter()
    for key, _ in {
        (e.key, e.node) for e in evidence if e.node and "/" in e.key and e.points_to is not Kind.APPLICATION
    }:
        counts[key] += 1
    common = {key: max(n, coincident.get(key, 0)) for key, n in counts.items()}
    out = []
    for e in evidence:
        many = common.get(e.key, 0)
        if many >= SITE_NODES and e.points_to is Kind.NODE:
            e = replace(e, points_to=Kind.UNKNOWN, what=f"{e.what} (on {many} nodes at once)")
        out.append(e)
    return out


def _sum(weights: Iterable[float]) -> float:
    """Add independent weights: two of one half make three quarters."""
    return round(1.0 - math.prod(1.0 - min(w, 1.0) for w in weights), 3)


def _judge(attempt: Attempt, evidence: list[Evidence]) -> Verdict:
    signal = _signal_of_first(evidence)
    # What explains nothing comes last: it must not push out what does.
    evidence.sort(key=lambda e: (_is_weak(e, signal), -e.weight, e.method, e.node, e.key, e.what))
    kept = tuple(evidence[:MOST_EVIDENCE])
    against: dict[str, list[Evidence]] = {}
    for e in evidence:
        if e.points_to is Kind.NODE and e.node:
            against.setdefault(e.node, []).append(e)
    scores = {name: _sum(e.weight for e in found) for name, found in against.items()}
    worst = sorted(scores, key=lambda n: (-scores[n], n))[:MOST_SUSPECTS]
    suspects = {name: scores[name] for name in sorted(worst)}
    # A node is convicted by what explains the failure; the rest only makes it a suspect.
    strong = {name: [e for e in found if not _is_weak(e, signal)] for name, found in against.items()}
    sure = {name: _sum(e.weight for e in found) for name, found in strong.items() if found}
    program = [e for e in evidence if e.points_to is Kind.APPLICATION]
    # One cause on fifty nodes is one cause.
    by_key = {e.key: e.weight for e in reversed(program)}
    program_score = _sum(by_key.values())
    site = sorted({e.key for e in evidence if e.points_to is Kind.UNKNOWN and "/" in e.key})

    hard = tuple(sorted(n for n, found in against.items() if any(e.method is Method.FACT for e in found)))
    if hard:
        why = "; ".join(f"{n}: {against[n][0].what}" if len(hard) > 1 else against[n][0].what for n in hard[:3])
        score = max(scores[n] for n in hard)
        return Verdict(Kind.NODE, f"{_named(hard)}, because {why}", hard, score, True, suspects, kept)
    if any(e.key == ELSEWHERE for e in program):
        # Elsewhere it failed the same way: whatever the first exit says about a node is no witness any more.
        return Verdict(Kind.APPLICATION, f"application, because {program[0].what}", score=program_score, evidence=kept)
    top = max(sure, key=lambda n: (sure[n], n), default="")
    if top:
        others = [score for n, score in sure.items() if n != top]
        methods = {e.method for e in strong[top] if _is_witness(e, signal)}
        is_alone = sure[top] - max(others, default=0.0) >= LEAD and sure[top] > program_score
        why = ", and ".join(e.what for e in strong[top][:3])
        if is_alone and len(methods) > 1 and sure[top] >= NODE_SCORE:
            return Verdict(Kind.NODE, f"node {top}, because {why}", (top,), scores[top], True, suspects, kept)
        bad = tuple(n for n, found in sorted(strong.items()) if any(e.weight >= _FATAL_WEIGHT for e in found))
        if bad and sure[top] > program_score:
            score = max(scores[n] for n in bad)
            told = "; ".join(strong[n][0].what for n in bad[:3])
            return Verdict(Kind.NODE, f"{_named(bad)}, because {told}", bad, score, False, suspects, kept)
    if program_score >= APPLICATION_SCORE:
        return Verdict(Kind.APPLICATION, f"application, because {program[0].what}", score=program_score, evidence=kept)
    if site:
        told = next(e.what for e in evidence if e.points_to is Kind.UNKNOWN and e.key == site[0])
        return Verdict(Kind.UNKNOWN, f"unknown, because it may be the site: {told}", suspects=suspects, evidence=kept)
    top = max(suspects, key=lambda n: (suspects[n], n), default="")
    if top:
        why = f"{against[top][0].what}, and nothing else points to a node or to the program"
        if len(against[top]) > 1:
            why = f"{against[top][0].what}, and {against[top][1].what}, which is not enough to blame a node"
        return Verdict(Kind.UNKNOWN, f"unknown, because {why}", score=suspects[top], suspects=suspects, evidence=kept)
    if program:
        why = f"{program[0].what}, which says little alone"
    else:
        why = f"nothing points to a node or to the program: {attempt.message or 'no word of its tasks'}"
    return Verdict(Kind.UNKNOWN, f"unknown, because {why}", evidence=kept)


def _signal_of_first(evidence: Iterable[Evidence]) -> int | None:
    """Return what ended the first rank to fall: a signal, 0 for an exit code, None when no exit is known."""
    for e in evidence:
        word, _, what = e.key.partition(":")
        if e.method is Method.EXITS and word == "exit":
            return int(what.partition(":")[2])
    return None


def _explains(e: Evidence, signal: int | None) -> bool:
    check, _, code = e.key.partition("/")
    return explains(check, code).covers(signal)


def _is_weak(e: Evidence, signal: int | None) -> bool:
    """Say whether a piece is a warning that is no reason for this exit."""
    return (
        e.method is Method.FINDINGS
        and e.points_to is Kind.NODE
        and e.weight < _FATAL_WEIGHT
        and not _explains(e, signal)
    )


def _is_witness(e: Evidence, signal: int | None) -> bool:
    """Say whether a piece counts as one of the two methods that must agree.

    A task that the kernel killed for memory is the same event as the kernel's word about it, and what other jobs have
    left is first exits again: users' broken programs fall somewhere every day. A rank that dies by its own fault stops
    answering its peers: their counters are no second witness beside its exit. Nor is a finding, or a repair under way,
    that is no reason for the exit, however bad: its own rules deal with it.
    """
    if e.method is Method.FINDINGS:
        return _explains(e, signal) and not e.key.endswith(f"/{OUT_OF_MEMORY_NODE}")
    return e.method is not Method.HISTORY and e.key != SILENT


_FATAL_WEIGHT = 0.8


def _named(nodes: Sequence[str]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {_listed(nodes)}"
