"""Prometheus metrics of the head node, on ``/metrics``; names are listed in docs/reference/metrics.md.

Anybody may read them, so they name nodes and never jobs or users, and whoever connects costs a bounded number of
threads for a bounded time.
"""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hyperpod.controller.world import World
from hyperpod.core.budget import open_breakers

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
        # Not from the snapshot: in quiet times it is older than a heartbeat.
        for name, word in sorted(self._world.memory.nodes.copy().items()):
            if word.heartbeat_at is not None:
                age.add_metric([name], (self._world.clock.now() - word.heartbeat_at).total_seconds())
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
    server = MetricsServer((address, port), _Handler)
    server.set_app(make_wsgi_app(registry))  # type: ignore[arg-type, unused-ignore]
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


class _Handler(WSGIRequestHandler):
    timeout = 5.0

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """One thread per connection, but no more than ``most``: the oldest makes room."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    most = 16

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._open: OrderedDict[socket.socket, None] = OrderedDict()
        self._guard = threading.Lock()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin with a connection, after ending the oldest when there are too many."""
        with self._guard:
            self._open[request] = None
            oldest = self._open.popitem(last=False)[0] if len(self._open) > self.most else None
        if oldest is not None:
            # Its thread wakes up, finds the end and closes it.
            _shut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away is none of our errors."""


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


GAUGES = {
    "hyperpod_nodes{group,status}": "Workers by repair status (docs/states.md).",
    "hyperpod_heartbeat_age_seconds{node}": "Seconds since the last heartbeat of a node's agent.",
    "hyperpod_open_findings{node,check,code,severity}": "1 for each open finding.",
    "hyperpod_jobs_watched": "Jobs that would be resumed.",
    "hyperpod_open_breakers": "Causes with an open breaker.",
    "hyperpod_source_missing{source}": "1 while slurm or provider does not answer.",
}


def reference_page() -> str:
    """Return docs/reference/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "<!-- Generated by hyperpod/controller/metrics.py; do not edit. -->",
        "",
        "The controller serves them for Prometheus on the head node, port 9630, path `/metrics`.",
        "",
        "| name | type | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | gauge | {text} |" for name, text in GAUGES.items()),
        *(f"| `{name}_total` | counter | {text} |" for name, text in COUNTED.values()),
    ]
    return "\n".join(lines) + "\n"
