"""The controller where the service replaces machines by itself, some time after it was asked (HyperPod)."""

from __future__ import annotations

from datetime import datetime, timedelta

from hyperpod.adapters.aws.on_node import REPLACE
from hyperpod.core.finding import Action, Finding, Severity
from hyperpod.core.job import JobStatus
from hyperpod.errors import ProviderUnavailable
from hyperpod.ports.provider import Instance
from tests.daemons.cluster import Cluster

SERVICE_TAKES = timedelta(seconds=90)


class Service:
    """HyperPod behind ``OnNodeMachines``: asked through Slurm, it replaces a machine a while later."""

    def __init__(self, lab: Cluster) -> None:
        self.lab = lab
        self.asked: dict[str, datetime] = {}
        self.inner = (lab.machines.replace, lab.machines.observe)
        lab.machines.power_off = self.power_off  # type: ignore[method-assign]
        lab.machines.replace = self.replace  # type: ignore[method-assign]
        lab.machines.observe = self.observe  # type: ignore[method-assign]

    def ask(self, node: str, instance_id: str) -> None:
        if instance_id not in self.asked:
            self.asked[instance_id] = self.lab.clock.now()
            self.lab.slurm.drain(node, REPLACE)

    def node_of(self, instance_id: str) -> str:
        return next((n for n, m in self.lab.machines.machines.items() if m.instance.id == instance_id), "")

    def observe(self, cluster: str) -> tuple[Instance, ...]:
        for instance_id, since in self.asked.items():
            node = self.node_of(instance_id)
            if node and self.lab.clock.now() - since >= SERVICE_TAKES:
                self.lab.agents.mute.discard(node)
                self.lab.cut.discard(node)
                self.lab.agents.findings.pop(node, None)
                self.inner[0](node, instance_id, f"service {instance_id}")
        return self.inner[1](cluster)

    def power_off(self, instance_id: str) -> None:
        self.observe("lab")
        node = self.node_of(instance_id)
        if node:
            self.ask(node, instance_id)
            raise ProviderUnavailable(f"{instance_id} is still in the cluster")

    def replace(self, node: str, instance_id: str, token: str) -> Instance:
        now = next(i for i in self.observe("lab") if i.node == node)
        if now.id == instance_id:
            self.ask(node, instance_id)
            raise ProviderUnavailable(f"{instance_id} is still there")
        return now


def test_a_dead_machine_is_replaced_once_and_its_job_is_not_started_beside_it() -> None:
    lab = Cluster()
    service = Service(lab)
    job = lab.submit()
    lost = lab.view(job).nodes[0]
    lab.agents.mute.add(lost)
    lab.cut.add(lost)
    lab.run_until(lambda: bool(service.asked), seconds=20)
    lab.run(60)
    # Slurm's SlurmdTimeout may release it; we do not while the machine may still write.
    assert lab.view(job).restart_count == 0
    assert "still in the cluster" in lab.store.repairs()[0].last_error
    lab.run_until(lab.is_well, seconds=200)
    assert lab.machines.made[lost] == 2
    assert len(service.asked) == 1


def test_a_sick_machines_job_does_not_wait_and_the_machine_is_replaced_once() -> None:
    lab = Cluster()
    service = Service(lab)
    job = lab.submit()
    ill = lab.view(job).nodes[0]
    finding = Finding("kernel_log", "Xid79", Severity.FATAL, "Xid79 was seen", Action.REPLACE, is_hard=True)
    lab.agents.findings[ill] = (finding,)
    waited = lab.run_until(
        lambda: lab.view(job).status is JobStatus.RUNNING and lab.view(job).restart_count == 1, seconds=30
    )
    assert waited < 20
    assert ill not in lab.view(job).nodes
    lab.run_until(lab.is_well, seconds=600)
    assert lab.machines.made[ill] == 2
    assert len(service.asked) == 1
    assert lab.node(ill).reason == ""
