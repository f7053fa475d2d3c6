"""HyperPod's machines as the head node sees them, without rights in the account.

Owns the way HyperPod itself understands: a node set to FAIL with the reason ``Action:Replace`` or ``Action:Reboot``, to
the letter. The service's own agent does the rest; we ask once and never take part in it. Where the node's role allows
the API, that is asked first. Standard library only, unless the API is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from hyperpod.adapters.aws.resource_config import DEFAULT_PATH, Member, read_membership
from hyperpod.core.node import InstanceStatus
from hyperpod.errors import AccessDenied, CommandError, ConfigError, HyperpodError, NotFound, ProviderUnavailable
from hyperpod.ports.process import ProcessRunner
from hyperpod.ports.provider import Instance

logger = logging.getLogger(__name__)

REPLACE: Final = "Action:Replace"
REBOOT: Final = "Action:Reboot"
_TIMEOUT_S: Final = 30.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Ask = Callable[[str, str], None]
"""Asks the API: ``replace`` or ``reboot``, and the instance."""


@dataclass
class OnNodeMachines:
    """The part of a provider that repairs need; see ``controller.world.Machines``.

    Attributes:
        processes: Runs scontrol.
        path, parameters: The node's files about its cluster; the service keeps the head node's up to date.
        ask_api: Asks the HyperPod API; None where that is not wanted. A refusal for want of rights, or of a library
            that knows the call, is remembered.
    """

    processes: ProcessRunner
    path: Path = Path(DEFAULT_PATH)
    parameters: Path | None = None
    ask_api: Ask | None = None
    _asked: set[str] = field(default_factory=set)

    def observe(self, cluster: str) -> tuple[Instance, ...]:
        """Return the machines that the service names. It says nothing of their state: all count as running.

        Raises:
            ProviderUnavailable: The file cannot be read.
        """
        try:
            members = read_membership(self.path, self.parameters).members
        except HyperpodError as error:
            raise ProviderUnavailable(error.message, hint=error.hint) from error
        return tuple(_instance(member) for member in members)

    def power_off(self, instance_id: str) -> None:
        """Ask for the machine's replacement; return when it has left the cluster, which is the only sure sign.

        Nobody but the service can cut its power. Called in the controller's tick, so only Slurm is asked.

        Raises:
            ProviderUnavailable: It is still there, and may still write.
        """
        found = next((instance for instance in self.observe("") if instance.id == instance_id), None)
        if found is None:
            return
        self._ask_slurm(found, REPLACE, f"fence {instance_id}")
        raise ProviderUnavailable(
            f"{instance_id} is still in the cluster; HyperPod is asked to replace it",
            hint="its jobs start elsewhere when it is gone",
        )

    def reboot(self, instance_id: str) -> None:
        """Ask for a restart.

        Raises:
            NotFound: The cluster has no such machine.
        """
        found = next((i for i in self.observe("") if i.id == instance_id), None)
        if found is None:
            raise NotFound(f"the cluster has no instance {instance_id}")
        self._ask("reboot", found, REBOOT, f"reboot {instance_id}")

    def replace(self, node: str, instance_id: str, token: str) -> Instance:
        """Ask for another machine in a slot, and return it once it is there; until then the call is to be repeated.

        A repetition asks for nothing, and so does a call for a machine that has left the slot.

        Raises:
            NotFound: The cluster has no such node.
            ProviderUnavailable: The old machine is still there: the service takes its time.
        """
        now = next((i for i in self.observe("") if i.node == node), None)
        if now is None:
            raise NotFound(f"the cluster has no node {node}")
        if now.id != instance_id:
            return now
        self._ask("replace", now, REPLACE, token)
        raise ProviderUnavailable(f"HyperPod is asked to replace {instance_id}; it is still there")

    def _ask(self, verb: str, instance: Instance, reason: str, token: str) -> None:
        if self.ask_api is not None and token not in self._asked:
            try:
                self.ask_api(verb, instance.id)
                self._asked.add(token)
                return
            except (AccessDenied, ConfigError) as error:
                # No right to it, or the machine's library is too old to know the call.
                logger.info("node=%s the API cannot be used, Slurm is asked error=%s", instance.node, error)
                self.ask_api = None
        self._ask_slurm(instance, reason, token)

    def _ask_slurm(self, instance: Instance, reason: str, token: str) -> None:
        if token in self._asked:
            return
        try:
            # Exact and case-sensitive: near misses are ignored without a word.
            self.processes.run(
                ["scontrol", "update", f"nodename={instance.node}", "state=fail", f"reason={reason}"],
                timeout_s=_TIMEOUT_S,
            )
        except CommandError as error:
            raise ProviderUnavailable(
                f"slurmctld did not take {reason} for {instance.node}: {error.message}"
            ) from error
        self._asked.add(token)


def api_by_instance_role(cluster: str, region: str) -> Ask:
    """Return the way to the API by the node's own role; the library is loaded when it is first used."""

    def ask(verb: str, instance_id: str) -> None:
        from hyperpod.adapters.aws.client import Aws
        from hyperpod.adapters.aws.sagemaker import SageMaker
        from hyperpod.adapters.aws.sagemaker_provider import refusal

        api = SageMaker(Aws(region=region))
        act = api.replace_nodes if verb == "replace" else api.reboot_nodes
        for result in act(cluster, [instance_id]):
            if not result.is_done:
                raise refusal(result, verb)

    return ask


def _instance(member: Member) -> Instance:
    return Instance(
        id=member.instance_id,
        node=member.name,
        group=member.group,
        role=member.role,
        address=member.address,
        status=InstanceStatus.RUNNING,
        created_at=_EPOCH,
        labels={"type": member.instance_type},
    )
