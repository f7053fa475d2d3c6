"""The tags by which everything that belongs to a cluster is found again, and how a group's slots are written in one.

Owns the keys and their meaning. Pure. A machine's slot is known from the very call that makes it: its launch carries
the list of slots, and EC2 gives each machine of a launch a number, so no later tagging can be lost in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hyperpod.core.names import node_name, split_node_name
from hyperpod.errors import UsageError

CLUSTER: Final = "hyperpod:cluster"
GROUP: Final = "hyperpod:group"
ROLE: Final = "hyperpod:role"
NODE: Final = "hyperpod:node"
SLOTS: Final = "hyperpod:slots"
TOKEN: Final = "hyperpod:token"
FOLDER: Final = "hyperpod:folder"
"""Bucket and prefix of the cluster's folder, on its launch templates: where a cluster is found without its file."""
ACCOUNT: Final = "hyperpod:prepared"
"""What ``hyperpod prepare`` made for a whole account carries this tag, with the name of the preparation."""
PART: Final = "hyperpod:part"
NAME: Final = "Name"

MAX_SLOTS_TEXT: Final = 250
"""EC2 allows 256 characters in a tag's value."""


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the form of EC2's calls, in a steady order."""
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def tag_map(tags: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return the tags of an answer as a mapping."""
    return {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in tags or ()}


def tag_filters(**tags: str) -> list[dict[str, Any]]:
    """Return filters of a describe call: ``cluster="demo"`` means the tag ``hyperpod:cluster``."""
    return [{"Name": f"tag:hyperpod:{name}", "Values": [value]} for name, value in sorted(tags.items())]


def fold(indices: Iterable[int]) -> str:
    """Write slot numbers as ranges: ``1-4,7``. ``unfold`` reads them back in the same order.

    Args:
        indices: Whole numbers from 1, each once, rising.
    """
    parts: list[str] = []
    first = last = 0
    for index in indices:
        if last and index == last + 1:
            last = index
            continue
        if last:
            parts.append(f"{first}-{last}" if last > first else f"{first}")
        first = last = index
    if last:
        parts.append(f"{first}-{last}" if last > first else f"{first}")
    return ",".join(parts)


def unfold(text: str) -> list[int]:
    """Read what ``fold`` wrote.

    Raises:
        UsageError: if it is something else.
    """
    indices: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            indices += range(int(first), int(last or first) + 1)
    except ValueError as error:
        raise UsageError(f"not a list of slots: {text[:80]!r}") from error
    return indices


def batches(nodes: Sequence[str], most: int) -> list[list[str]]:
    """Cut one group's nodes into launches of at most ``most`` machines whose list of slots fits into a tag."""
    done: list[list[str]] = []
    current: list[str] = []
    for node in sorted(nodes, key=lambda name: split_node_name(name)[1]):
        longer = [*current, node]
        if len(longer) > most or len(slots_text(longer)) > MAX_SLOTS_TEXT:
            done.append(current)
            longer = [node]
        current = longer
    return [*done, current] if current else done


def slots_text(nodes: Sequence[str]) -> str:
    """Return the list of slots of one group's nodes, for the tag."""
    return fold(split_node_name(node)[1] for node in nodes)


def node_of(tags: Mapping[str, str], launch_index: int) -> str:
    """Return the name of the slot that a machine was made for; empty when its tags don't say.

    Args:
        launch_index: EC2's number of the machine within its launch (``AmiLaunchIndex``).
    """
    if tags.get(NODE):
        return tags[NODE]
    try:
        slots = unfold(tags.get(SLOTS, ""))
        return str(node_name(tags.get(GROUP, ""), slots[launch_index]))
    except (UsageError, IndexError):
        return ""
