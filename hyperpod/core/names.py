"""Names of clusters, instance groups, nodes, instances and jobs, and the rules they obey.

Owns the patterns and the one way to build a node's name. Pure; imports nothing but the
error tree, so daemons may use it.
"""

from __future__ import annotations

import re
from typing import Final, NewType

from hyperpod.errors import UsageError

ClusterName = NewType("ClusterName", str)
GroupName = NewType("GroupName", str)
NodeName = NewType("NodeName", str)
InstanceId = NewType("InstanceId", str)
JobId = NewType("JobId", int)

MAX_NAME_LENGTH: Final = 63
"""Characters in a cluster or group name (SageMaker ``ClusterName``), and in one label of a host name (RFC 1123)."""

_NAME: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_NODE: Final = re.compile(r"(?P<group>[a-zA-Z0-9](-*[a-zA-Z0-9])*)-(?P<index>[1-9][0-9]{0,5})")
_INSTANCE: Final = re.compile(r"i-[0-9a-f]{17}")
_NAME_RULE: Final = "1 to 63 letters, digits and single or repeated '-' between them"


def parse_cluster_name(text: str) -> ClusterName:
    """Return ``text`` as the name of a cluster.

    Raises:
        UsageError: if the name breaks SageMaker's rule for ``ClusterName``.
    """
    return ClusterName(_checked("cluster name", text))


def parse_group_name(text: str) -> GroupName:
    """Return ``text`` as the name of an instance group.

    Raises:
        UsageError: if the name breaks SageMaker's rule for ``InstanceGroupName``.
    """
    return GroupName(_checked("instance group name", text))


def parse_node_name(text: str) -> NodeName:
    """Return ``text`` as the name of a node, ``<group>-<index>`` with an index from 1.

    Raises:
        UsageError: if it has another form, or is too long for a host name.
    """
    if len(text) > MAX_NAME_LENGTH or not _NODE.fullmatch(text):
        raise UsageError(
            f"{text[:80]!r} is not a node name: it must be <group>-<index> with an index from 1, such as worker-2",
            hint="hyperpod list-nodes shows the names",
        )
    return NodeName(text)


def parse_instance_id(text: str) -> InstanceId:
    """Return ``text`` as the id of an instance.

    Raises:
        UsageError: if it is not ``i-`` and 17 hexadecimal digits in lower case.
    """
    if not _INSTANCE.fullmatch(text):
        raise UsageError(f"{text[:80]!r} is not an instance id: it must be 'i-' and 17 hexadecimal digits")
    return InstanceId(text)


def parse_job_id(text: str) -> JobId:
    """Return ``text`` as Slurm's id of a job.

    Raises:
        UsageError: if it is not a whole number from 1 to 2^32 - 1.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) < 2**32):
        raise UsageError(f"{text[:80]!r} is not a job id: it must be a whole number from 1, as squeue shows it")
    return JobId(int(text))


def is_name(text: str) -> bool:
    """Say whether ``text`` may name a cluster or an instance group."""
    return len(text) <= MAX_NAME_LENGTH and _NAME.fullmatch(text) is not None


def node_name(group: str, index: int) -> NodeName:
    """Return the name of the slot ``index`` (from 1) of ``group``.

    Raises:
        UsageError: if the index is below 1, or the name would be too long for a host name.
    """
    return parse_node_name(f"{group}-{index}")


def split_node_name(node: str) -> tuple[GroupName, int]:
    """Return group and index of a node name; the inverse of ``node_name``.

    Raises:
        UsageError: if ``node`` is not a node name.
    """
    parse_node_name(node)
    group, _, index = node.rpartition("-")
    return GroupName(group), int(index)


def _checked(what: str, text: str) -> str:
    if not is_name(text):
        raise UsageError(f"{text[:80]!r} is not a valid {what}: allowed are {_NAME_RULE}")
    return text
