"""The page docs/states.md, made from the repair's state table so that the two cannot differ. Pure."""

from __future__ import annotations

from hyperpod.core.node import ALLOWED, RepairStatus

_MEANINGS = {
    RepairStatus.HEALTHY: "No repair is under way. The node may still be drained by a person, or wait as a spare.",
    RepairStatus.DRAINING: "New work is kept away; it waits until its jobs have left.",
    RepairStatus.FENCING: "The node is dead: its machine is powered off and it is marked down, so that nothing of "
    "its jobs can write any more.",
    RepairStatus.REBOOTING: "Its machine is being rebooted.",
    RepairStatus.REPLACING: "The provider is giving the slot another machine; tried again with growing delays.",
    RepairStatus.CHECKING: "A machine is there; it must pass its basic checks before it takes work.",
    RepairStatus.HELD: "The tries are used up: a person must look. Another machine in the slot, `Action:Replace` or "
    "`Action:Reboot` in the reason, `hyperpod replace-node`, or a drain lifted by hand bring it back.",
    RepairStatus.ASLEEP: "A spare whose machine is stopped, so that it costs only its disk.",
    RepairStatus.WAKING: "A spare that is needed: its machine is being started.",
}

_CAUSES = {
    (RepairStatus.HEALTHY, RepairStatus.DRAINING): "fatal finding, blamed for a job's end by two methods, "
    "repeat offender, administrator's wish, orderly shutdown",
    (RepairStatus.HEALTHY, RepairStatus.FENCING): "silent, and a second opinion agrees",
    (RepairStatus.HEALTHY, RepairStatus.CHECKING): "back after it was down, or another machine in the slot",
    (RepairStatus.DRAINING, RepairStatus.FENCING): "died while draining",
    (RepairStatus.DRAINING, RepairStatus.REBOOTING): "jobs have left, a reboot may help",
    (RepairStatus.DRAINING, RepairStatus.REPLACING): "jobs have left, the machine is bad",
    (RepairStatus.DRAINING, RepairStatus.HEALTHY): "last fatal finding closed",
    (RepairStatus.FENCING, RepairStatus.REPLACING): "powered off and its jobs are gone",
    (RepairStatus.FENCING, RepairStatus.REBOOTING): "powered off, the policy says reboot",
    (RepairStatus.FENCING, RepairStatus.CHECKING): "another machine or another boot is there already",
    (RepairStatus.REBOOTING, RepairStatus.CHECKING): "another boot is heard",
    (RepairStatus.REBOOTING, RepairStatus.REPLACING): "not back in time",
    (RepairStatus.REPLACING, RepairStatus.CHECKING): "the new machine runs",
    (RepairStatus.REPLACING, RepairStatus.HELD): "tries used up",
    (RepairStatus.CHECKING, RepairStatus.HEALTHY): "checks passed",
    (RepairStatus.CHECKING, RepairStatus.DRAINING): "fatal finding on a machine that was only back",
    (RepairStatus.CHECKING, RepairStatus.FENCING): "died with work on it",
    (RepairStatus.CHECKING, RepairStatus.REPLACING): "checks failed, or not ready in time",
    (RepairStatus.CHECKING, RepairStatus.HELD): "tries used up",
    (RepairStatus.HELD, RepairStatus.HEALTHY): "a person opened the node",
    (RepairStatus.HELD, RepairStatus.REPLACING): "a person asks for another try",
    (RepairStatus.HELD, RepairStatus.REBOOTING): "a person asks for a reboot",
    (RepairStatus.HELD, RepairStatus.CHECKING): "a person brought another machine",
    (RepairStatus.HEALTHY, RepairStatus.ASLEEP): "a spare that nobody needs, where spares are stopped",
    (RepairStatus.ASLEEP, RepairStatus.WAKING): "the running spares are used up, or spares are not stopped any more",
    (RepairStatus.ASLEEP, RepairStatus.CHECKING): "another machine is in the slot",
    (RepairStatus.ASLEEP, RepairStatus.REPLACING): "its machine is gone",
    (RepairStatus.WAKING, RepairStatus.ASLEEP): "it could not be started, and is not needed any more",
    (RepairStatus.WAKING, RepairStatus.CHECKING): "its agent is heard",
    (RepairStatus.WAKING, RepairStatus.REPLACING): "its machine is gone, or not back in time",
}


def render_states() -> str:
    """Return the page as Markdown: what each state means, a diagram, and every move with its cause."""
    lines = [
        "# States of a node's repair",
        "",
        "This page is generated from `hyperpod/core/node.py` (`python3 -m hyperpod.core.states_doc`).",
        "`hyperpod why NODE` shows where a repair stands, since when, and the last error.",
        "",
        "| state | what it means |",
        "|---|---|",
        *(f"| `{status.value}` | {_MEANINGS[status]} |" for status in RepairStatus),
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {RepairStatus.HEALTHY.value}",
    ]
    moves = [(before, after) for before in RepairStatus for after in RepairStatus if after in ALLOWED[before]]
    lines += [f"    {a.value} --> {b.value}" for a, b in moves if a is not b]
    lines += ["```", "", "| from | to | because |", "|---|---|---|"]
    lines += [f"| `{a.value}` | `{b.value}` | {_because(a, b)} |" for a, b in moves]
    return "\n".join(lines) + "\n"


def _because(before: RepairStatus, after: RepairStatus) -> str:
    if before is after:
        return "the next try"
    return _CAUSES[(before, after)]


if __name__ == "__main__":
    print(render_states(), end="")  # noqa: T201 - its purpose
