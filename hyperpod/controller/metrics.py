"""Prometheus metrics of the head node, on ``/metrics``; names are listed in docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hyperpod.controller.world import World
from hyperpod.core.repair import open_breakers

COUNTED = {
    "NodeReplaced": ("hyperpod_nodes_replaced", "Machines replaced."),
    "NodeFenced": ("hyperpod_nodes_fenced", "Machines powered off as a fence."),
    "RepairBegan": ("hyperpod_repairs_begun", "Repairs begun."),
    "JobRequeued": ("hyperpod_jobs_requeued", "Jobs requeued by the controller."),
    "AttemptEnded": ("hyperpod_attempts_ended", "Attempts of watched jobs that ended, in any way."),
    "SpareUsed": ("hyperpod_spares_used", "Spares brought into a partition."),
}


class WorldCollector(Collector):
    """Reads the last snapshot and the journal when Prometheus asks."""

    def __init__(self, world: World) -> None:
        self._world = world

    def collect(self) -> Iterator[Metric]:
        snapshot = self._world.last_snapshot
        if snapshot is not None:
            yield from self._gauges()
        counts = self._world.store.event_counts()
        for kind, (name, text) in COUNTED.items():
            yield CounterMetricFamily(name, text, value=counts.get(kind, 0))

    def _gauges(self) -> Iterator[Metric]:
        snapshot = self._world.last_snapshot
        assert snapshot is not None
        nodes = GaugeMetricFamily("hyperpod_nodes", "Workers by repair status.", labels=["group", "status"])
        tally: dict[tuple[str, str], int] = {}
        for node in snapshot.nodes:
            key = (node.group, node.repair.status.value if node.repair else "healthy")
            tally[key] = tally.get(key, 0) + 1
        for (group, status), count in sorted(tally.items()):
            nodes.add_metric([group, status], count)
        yield nodes
        age = GaugeMetricFamily("hyperpod_heartbeat_age_seconds", "Seconds since the last heartbeat.", labels=["node"])
        for node in snapshot.nodes:
            if node.heartbeat_at is not None:
                age.add_metric([node.name], (self._world.clock.now() - node.heartbeat_at).total_seconds())
        yield age
        findings = GaugeMetricFamily(
            "hyperpod_open_findings", "Open findings.", labels=["node", "check", "code", "severity"]
        )
        for node in snapshot.nodes:
            for finding in node.findings:
                findings.add_metric([node.name, finding.check, finding.code, finding.severity.name], 1)
        yield findings
        watched = sum(1 for r in snapshot.records.values() if r.is_armed and not r.verdict)
        yield GaugeMetricFamily("hyperpod_jobs_watched", "Jobs that would be resumed.", value=watched)
        policy = self._world.repair_policy
        breakers = open_breakers(snapshot.history, policy, snapshot.now, snapshot.breaker_reset_at)
        yield GaugeMetricFamily("hyperpod_open_breakers", "Causes with an open breaker.", value=len(breakers))
        missing = GaugeMetricFamily("hyperpod_source_missing", "1 while a source does not answer.", labels=["source"])
        for source in ("slurm", "provider"):
            missing.add_metric([source], 1 if source in snapshot.missing else 0)
        yield missing


def serve_metrics(world: World, address: str, port: int) -> None:
    """Serve ``/metrics`` in a thread of its own.

    Raises:
        OSError: if the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(WorldCollector(world))
    start_http_server(port, addr=address, registry=registry)
