"""Kernel logs that overflow: heartbeats go on, and what matters is found in the middle of the noise."""

from __future__ import annotations

import threading
import time

import pytest

from hyperpod.adapters.local.faults import kernel_record, next_sequence
from tests.e2e.lab import XID_79, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240, func_only=True)]

KMSG = "/var/log/hyperpod/kmsg"
NOISE = "NVRM: Xid (PCI:0000:65:00): 31, pid=1234, name=python3, MMU Fault: ENGINE GRAPHICS"
SILENCE_S = 3.0
"""So old may a heartbeat become before the node is suspected: three are missing then."""


def flood(lab: Lab, node: str, lines: int, *, fatal_at: int) -> None:
    """Have the kernel of a node log so many lines at once, with one fatal among them."""
    last = lab.on_node(node, "tail", "-n", "1", KMSG)
    first, now_us = next_sequence(last), time.monotonic_ns() // 1000
    records = [kernel_record(NOISE, sequence=first + i, monotonic_us=now_us + i) for i in range(lines)]
    records[fatal_at] = kernel_record(XID_79, sequence=first + fatal_at, monotonic_us=now_us + fatal_at)
    (lab.fsx / "flood").write_text("".join(records))
    lab.on_node(node, "sh", "-c", f"cat /fsx/flood >> {KMSG}")
    (lab.fsx / "flood").unlink()


def test_a_flood_of_kernel_lines_starves_no_heartbeat_and_hides_no_fatal_line(lab: Lab) -> None:
    job = lab.submit("--ntasks=1")
    lab.wait_running(job)
    bad = lab.batch_host(job)
    machine = lab.instance(bad)
    ages: list[float] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            ages.append(float(lab.nodes()[bad]["heartbeat_age_s"]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        flood(lab, bad, 100_000, fatal_at=50_000)
        lab.wait_running(job, attempt=2)
    finally:
        is_over.set()
        watcher.join(60)

    assert lab.job_nodes(job.id) != [bad]
    (drained,) = lab.events("NodeDrained", node=bad)
    assert "Xid 79" in drained["message"]
    # It was heard all the time: its jobs left because of the line, and nobody took it for dead.
    assert not lab.events("NodeFenced", node=bad)
    assert not lab.events("NodeDown", node=bad)
    assert ages
    assert max(ages) < SILENCE_S
    shown = lab.finish(job)
    assert [attempt["cause"] for attempt in shown["attempts"]] == ["NodeUnhealthy", "Completed"]
    lab.wait("the node to be repaired", lambda: lab.events("NodeHealthy", node=bad), 120)
    assert lab.instance(bad) == machine
