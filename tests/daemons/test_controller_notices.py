"""The controller with a provider that knows of failed checks, scheduled events and spot interruptions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hyperpod.controller.commands import _clear
from hyperpod.controller.notices import EVERY
from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.job import JobStatus
from hyperpod.errors import Throttled
from tests.daemons.cluster import Cluster


class Knowing(Cluster):
    """A cluster whose provider tells findings; ``said`` is what it knows, by node."""

    def __init__(self, **options: Any) -> None:
        self.said: dict[str, tuple[Finding, ...]] = {}
        self.asked = 0
        self.refusal: Exception | None = None
        super().__init__(**options)

    def _new_world(self) -> Any:
        self.machines.findings = self._findings  # type: ignore[attr-defined]
        return super()._new_world()

    def _findings(self) -> dict[str, tuple[Finding, ...]]:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        return dict(self.said)

    def says(self, node: str, code: str, check: str, severity: Severity = Severity.FATAL, **fields: Any) -> Finding:
        instance_id = self.machines.machines[node].instance.id
        finding = Finding(
            check, code, severity, f"EC2: {code}", Action.REPLACE, instance_id=instance_id, is_hard=True, **fields
        )
        self.said[node] = (finding,)
        return finding


def test_the_provider_is_asked_now_and_then_and_not_with_every_tick() -> None:
    lab = Knowing()
    before = lab.asked
    lab.run(60)

    assert lab.asked - before == 60 / EVERY.total_seconds()


def test_a_provider_without_such_knowledge_is_not_asked() -> None:
    lab = Cluster()
    lab.run(60)

    assert lab.world.last_snapshot is not None
    assert lab.world.last_snapshot.are_notices_known


def test_a_spot_interruption_moves_the_job_at_once_and_gets_another_machine() -> None:
    lab = Knowing()
    job = lab.submit()
    node = lab.view(job).nodes[0]
    lab.says(node, "SpotInterruption", "ec2_spot")

    took = lab.run_until(lambda: lab.view(job).restart_count == 1 and lab.view(job).status is JobStatus.RUNNING)

    assert took <= EVERY.total_seconds() + 5
    assert node not in lab.view(job).nodes
    lab.run_until(lab.is_well)
    assert lab.machines.made[node] == 2
    assert "ProviderFinding" in lab.kinds()


def test_a_scheduled_retirement_waits_for_the_job_and_then_replaces_the_machine() -> None:
    lab = Knowing()
    job = lab.submit()
    node = lab.view(job).nodes[0]
    deadline = lab.clock.now() + timedelta(days=7)
    lab.says(node, "InstanceRetirement", "ec2_event", Severity.WARN, deadline=deadline, device="event-1")
    lab.run(120)
    assert (lab.view(job).restart_count, lab.node(node).is_drained) == (0, True)
    assert lab.machines.made[node] == 1

    lab.slurm.end_job(job)
    lab.run_until(lambda: lab.machines.made[node] == 2)
    lab.run_until(lab.is_well)


def test_a_job_that_would_outlast_its_machine_is_moved_shortly_before() -> None:
    lab = Knowing()
    job = lab.submit()
    node = lab.view(job).nodes[0]
    deadline = lab.clock.now() + timedelta(minutes=17)
    lab.says(node, "SystemMaintenance", "ec2_event", Severity.WARN, deadline=deadline, device="event-1")
    lab.run(60)
    assert lab.view(job).restart_count == 0
    lab.run(90)
    assert lab.view(job).restart_count == 1
    assert node not in lab.view(job).nodes


def test_a_failed_status_check_is_believed_only_when_it_lasts() -> None:
    lab = Knowing()
    lab.says("worker-1", "SystemCheckFailed", "ec2_status")
    lab.run(60)
    lab.said.clear()
    lab.run(120)
    assert lab.machines.made["worker-1"] == 1

    lab.says("worker-1", "SystemCheckFailed", "ec2_status")
    took = lab.run_until(lambda: lab.machines.made["worker-1"] == 2, seconds=300)
    assert took >= 120
    lab.run_until(lab.is_well)


def test_a_provider_that_does_not_tell_changes_nothing_and_is_asked_less(caplog: pytest.LogCaptureFixture) -> None:
    lab = Knowing()
    deadline = lab.clock.now() + timedelta(days=7)
    job = lab.submit()
    node = lab.view(job).nodes[0]
    lab.says(node, "InstanceRetirement", "ec2_event", Severity.WARN, deadline=deadline)
    lab.run(20)
    lab.refusal = Throttled("slow down")
    before = lab.asked
    lab.run(600)

    assert lab.node(node).is_drained
    assert lab.asked - before < 10
    assert len([r for r in caplog.records if "tells no findings" in r.message and r.levelname == "WARNING"]) == 1
    assert lab.view(job).restart_count == 0


def test_a_restarted_controller_does_not_lift_the_drain_before_the_provider_has_spoken() -> None:
    lab = Knowing()
    job = lab.submit()
    node = lab.view(job).nodes[0]
    deadline = lab.clock.now() + timedelta(days=7)
    lab.says(node, "InstanceRetirement", "ec2_event", Severity.WARN, deadline=deadline)
    lab.run(20)
    lab.refusal = Throttled("slow down")
    lab.restart()
    lab.run(30)

    assert lab.node(node).is_drained
    assert lab.store.repairs()[0].cause == "ec2_event/InstanceRetirement"


def test_a_notice_cleared_by_a_person_stays_cleared_until_it_has_ended() -> None:
    lab = Knowing()
    lab.submit()
    deadline = lab.clock.now() + timedelta(days=7)
    lab.says("worker-1", "InstanceRetirement", "ec2_event", Severity.WARN, deadline=deadline)
    lab.run(20)
    args = {"node": "worker-1", "check": "ec2_event", "code": "InstanceRetirement", "reason": "we know"}
    _clear(lab.world, args)
    lab.run(30)
    assert not lab.node("worker-1").is_drained

    lab.said.clear()
    lab.run(20)
    lab.says("worker-1", "InstanceRetirement", "ec2_event", Severity.WARN, deadline=deadline)
    lab.run(20)
    assert lab.node("worker-1").is_drained
