"""Faults that a killed command has left on a local cluster: written down before they are caused, undone by the next.

Shared by ``inject --for`` and ``rehearse``.
"""

from __future__ import annotations

from collections.abc import Iterable

from hyperpod.adapters.local.diary import Diary, Trace
from hyperpod.adapters.local.home import ClusterHome
from hyperpod.cli.place import Place
from hyperpod.cli.render import say
from hyperpod.errors import HyperpodError

GRACE_S = 10.0
"""A command that lives undoes its fault itself, and takes some seconds for it."""


def rehearsals_of(place: Place, cluster: str) -> Diary:
    """Return the diary of a cluster's rehearsals."""
    return Diary(ClusterHome(place.home, cluster).path)


def injections_of(place: Place, cluster: str) -> Diary:
    """Return the diary of the faults that were injected for a time."""
    return Diary(ClusterHome(place.home, cluster).path, "injected")


def undo_faults(place: Place, cluster: str, diary: Diary, due: Iterable[Trace]) -> list[Trace]:
    """Undo faults of an opened diary, the last first, and forget them; what could not be undone stays and is told."""
    faults = place.make_faults(place.provider())
    undone = []
    for trace in reversed(list(due)):
        try:
            faults.undo(cluster, trace.node, trace.fault, trace.argument)
        except HyperpodError as error:
            say(f"{trace.node}: {trace.fault} could not be undone: {error.message}")
            continue
        diary.forget_fault(trace)
        undone.append(trace)
    return undone


def undo_overdue(place: Place, cluster: str) -> list[Trace]:
    """Undo what ``inject --for`` has left past its time because it was killed, and say so in one line."""
    diary = injections_of(place, cluster)
    if diary.is_empty:
        return []
    with diary.opened(wait=True):
        due = [trace for trace in diary.traces.faults if place.clock() > trace.until + GRACE_S]
        undone = undo_faults(place, cluster, diary, due)
    if undone:
        told = ", ".join(f"{trace.fault} on {trace.node}" for trace in undone)
        say(f"an earlier inject --for was ended before its time was over; undone now: {told}")
    return undone


def note_injection(place: Place, cluster: str, trace: Trace) -> None:
    """Write down a fault that is about to be caused for a time."""
    diary = injections_of(place, cluster)
    with diary.opened(wait=True):
        diary.note_fault(trace)


def forget_injection(place: Place, cluster: str, trace: Trace) -> None:
    """A fault is undone, so no later call has to; without a time in it, all that are undone by the same are meant."""
    from hyperpod.adapters.local.fault_kinds import argument_to_undo

    def is_same(other: Trace) -> bool:
        is_one = (other.node, other.fault) == (trace.node, trace.fault) and trace.until in (0.0, other.until)
        return is_one and what_of(other) == what_of(trace)

    def what_of(one: Trace) -> str:
        # Of a file of the device tree the name alone tells, and not the value that was given.
        argument = argument_to_undo(one.fault, one.argument)
        return argument.partition("=")[0] if one.fault == "sysfs" else argument

    diary = injections_of(place, cluster)
    if diary.is_empty:
        return
    with diary.opened(wait=True):
        for other in [t for t in diary.traces.faults if is_same(t)]:
            diary.forget_fault(other)
