"""Waits for a HyperPod cluster, tells how far every instance is, and why it failed.

Owns how often is asked and what counts as done: the cluster's status alone is not enough, it stays InService while
groups grow.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hyperpod.adapters.aws.sagemaker import SageMaker, iter_failed, log_group, log_stream
from hyperpod.adapters.aws.sagemaker_views import Cluster, Node
from hyperpod.errors import HyperpodError, NotFound, ProviderUnavailable, Throttled

LOOK_EVERY_S: Final = 15.0
TIMEOUT_S: Final = 2 * 3600.0
_MANY: Final = 500
"""Beyond this many nodes their list (a call for each 100) is only read at every fourth look."""
_SHOWN_FAILURES: Final = 5
_NEVER: Final = -1.0


@dataclass(frozen=True)
class ScriptFailure:
    """An instance that did not come up, with its script's last words."""

    node: Node
    tail: tuple[str, ...]
    log: str
    message: str

    def lines(self) -> tuple[str, ...]:
        """Return the failure for people."""
        said = [f"    {line}" for line in self.tail] or [
            "    its log is empty: the script was not started, or not found"
        ]
        head = f"{self.node.name} ({self.node.instance_id}, group {self.node.group}): {self.message or 'failed'}"
        return (head, *said, f"    whole log: {self.log}")


@dataclass(frozen=True)
class Look:
    """How far a cluster is: what the caller shows at every look."""

    cluster: Cluster
    nodes: tuple[Node, ...]

    @property
    def share(self) -> float:
        """Part of the wanted instances that are there, 0 to 1."""
        wanted = sum(group.target for group in self.cluster.groups)
        there = sum(min(group.current, group.target) for group in self.cluster.groups)
        return there / wanted if wanted else 1.0

    def line(self) -> str:
        """Return it in one line."""
        groups = ", ".join(f"{group.name} {group.current} of {group.target}" for group in self.cluster.groups)
        return f"{self.cluster.status}: {groups}"


@dataclass(frozen=True)
class Outcome:
    """How the waiting ended. ``is_ready``: in service with all its instances."""

    cluster: Cluster
    nodes: tuple[Node, ...] = ()
    failures: tuple[ScriptFailure, ...] = ()
    is_ready: bool = False
    has_timed_out: bool = False


@dataclass
class Waiter:
    """Asks until a cluster has settled. Time is given from outside.

    Attributes:
        on_look: Told at every look.
        sleep, monotonic: Time.
        every_s, timeout_s: How often is asked, and for how long.
    """

    api: SageMaker
    on_look: Callable[[Look], None] = lambda _: None
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    every_s: float = LOOK_EVERY_S
    timeout_s: float = TIMEOUT_S
    _seen: dict[str, Node] = field(default_factory=dict)
    _deadline: float = _NEVER

    def until_settled(self, name: str) -> Outcome:
        """Wait until a cluster has all its instances, or has failed.

        A look that fails because AWS does not answer is only a look less.

        Raises:
            NotFound: It is gone.
        """
        self._deadline = self.monotonic() + self.timeout_s
        nodes: tuple[Node, ...] = ()
        cluster: Cluster | None = None
        looks = 0
        while True:
            try:
                cluster = self.api.describe(name)
                if looks % 4 == 0 or len(nodes) <= _MANY or cluster.is_settled:
                    nodes = self.api.nodes(name)
                    self._seen |= {node.instance_id: node for node in nodes}
                self.on_look(Look(cluster, nodes))
                outcome = self._outcome(cluster, nodes)
                if outcome is not None:
                    return outcome
            except (ProviderUnavailable, Throttled):
                if self.monotonic() >= self._deadline:
                    raise
            looks += 1
            if self.monotonic() >= self._deadline and cluster is not None:
                return Outcome(cluster, nodes, self._failures(cluster, nodes), has_timed_out=True)
            self.sleep(self.every_s)

    def _outcome(self, cluster: Cluster, nodes: tuple[Node, ...]) -> Outcome | None:
        if cluster.status == "Failed":
            return Outcome(cluster, nodes, self._failures(cluster, nodes))
        if cluster.status != "InService":
            return None
        failed = list(iter_failed(nodes))
        is_coming = any(node.status in ("Pending", "SystemUpdating", "ShuttingDown") for node in nodes)
        if cluster.is_settled and not is_coming:
            return Outcome(cluster, nodes, self._failures(cluster, nodes), is_ready=not failed)
        if failed and not is_coming:
            return Outcome(cluster, nodes, self._failures(cluster, nodes))
        # A roll-back leaves it InService, smaller than asked for, and says why.
        if cluster.failure and not is_coming:
            return Outcome(cluster, nodes, self._failures(cluster, nodes))
        return None

    def _failures(self, cluster: Cluster, nodes: Sequence[Node]) -> tuple[ScriptFailure, ...]:
        """Return what is known of instances that failed, also of those that a roll-back has taken away."""
        blamed = {node.instance_id: node for node in self._seen.values() if node.status == "Failure"}
        blamed |= {node.instance_id: node for node in iter_failed(nodes)}
        for instance_id in re.findall(r"\bi-[0-9a-f]{8,17}\b", cluster.failure):
            if instance_id in self._seen:
                blamed.setdefault(instance_id, self._seen[instance_id])
        found = []
        for node in list(blamed.values())[:_SHOWN_FAILURES]:
            try:
                tail = self.api.log_tail(cluster, node.group, node.instance_id)
            except HyperpodError as error:
                tail = (f"(its log cannot be read: {error.message})",)
            place = f"{log_group(cluster)} {log_stream(node.group, node.instance_id)} (CloudWatch)"
            found.append(ScriptFailure(node, tail, place, node.message or cluster.failure))
        return tuple(found)

    def until_gone(self, name: str) -> None:
        """Wait until a cluster is deleted.

        Raises:
            ProviderUnavailable: It is still there at the end of the time.
        """
        self._deadline = self.monotonic() + self.timeout_s
        while True:
            try:
                cluster = self.api.describe(name)
                self.on_look(Look(cluster, ()))
            except NotFound:
                return
            except (ProviderUnavailable, Throttled):
                pass
            if self.monotonic() >= self._deadline:
                raise ProviderUnavailable(
                    f"cluster {name} is still being deleted",
                    hint=f"hyperpod describe-cluster {name} shows how far it is",
                )
            self.sleep(self.every_s)
