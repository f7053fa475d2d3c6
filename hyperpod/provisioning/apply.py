"""Creates, changes and deletes clusters: observe, diff (pure, in core.provision), apply.

Owns the order of effects and the limits of retries. Any call may be killed and made again: what is done already is
seen as done, and nothing is left behind. It prints nothing; the caller is told through ``progress``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from hyperpod.adapters.local.home import ClusterHome, read_json, write_json
from hyperpod.adapters.local.provider import LocalProvider
from hyperpod.adapters.local.service import ensure_service, stop_service
from hyperpod.core.node import InstanceStatus, Role
from hyperpod.core.provision import ProvisionPlan, SeenNode, diff_cluster, wanted_nodes
from hyperpod.core.spec import ClusterSpec
from hyperpod.errors import (
    CommandError,
    CommandTimeout,
    ConfigError,
    HyperpodError,
    InvalidState,
    NotFound,
    ProviderError,
    StoreError,
)
from hyperpod.ports.provider import Birth, BirthStatus, Instance
from hyperpod.provisioning.node_files import node_launches

logger = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Told what is being done and how far it is (0 to 1)."""

READY_TIMEOUT_S = 600.0
_APPLY_CONF = "/opt/hyperpod/lifecycle_scripts/apply_slurm_conf.sh"
_REFRESH = "/opt/hyperpod/lifecycle_scripts/steps/60_hyperpod.sh"
# Without the controller's prefix, so that it is a person's drain to it and is left alone.
_SCALE_DOWN_REASON = "removed by scale-down"
_SEPARATOR = "\x1f"
# One more machine for one whose script failed (it has had its own tries by then); then a person has to look.
REPLACEMENTS_PER_NODE = 1


@dataclass(frozen=True)
class BirthFailure:
    """A machine whose lifecycle script did not end well, with all that a person needs to find out why."""

    node: str
    birth: Birth

    def lines(self) -> tuple[str, ...]:
        """Return the failure for people, the script's last lines included."""
        birth = self.birth
        return (
            f"{self.node} ({birth.instance_id}): {birth.script or 'its boot'} ended with status {birth.exit_code} "
            f"after {max(birth.attempt, 1)} tries",
            *(f"    {line}" for line in birth.tail),
            f"    whole log: {birth.log_path}",
        )


@dataclass(frozen=True)
class ClusterResult:
    """What a creation or change did.

    Attributes:
        plan: What was found to be done at the start.
        instances: The machines at the end.
        seconds: Where the time went, by phase.
        failures: Machines that are not born; the rest of the cluster works.
    """

    plan: ProvisionPlan
    instances: tuple[Instance, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    failures: tuple[BirthFailure, ...] = ()


@dataclass(frozen=True)
class Readiness:
    """How far a cluster is from being ready. ``waiting_for`` says per node what is missing."""

    ready: int
    total: int
    waiting_for: dict[str, str]
    failures: tuple[BirthFailure, ...] = ()

    @property
    def is_ready(self) -> bool:
        return not self.waiting_for and not self.failures


def stored_spec(provider: LocalProvider, cluster: str) -> ClusterSpec | None:
    """Return the specification that a cluster was last created or changed with; None for a half-made one.

    Raises:
        NotFound: There is no such cluster.
    """
    home = provider.cluster(cluster)
    if cluster not in provider.clusters():
        known = ", ".join(provider.clusters()) or "none"
        raise NotFound(f"no cluster {cluster} on this machine (there are: {known})", hint="hyperpod list-clusters")
    return _read_spec(home)


def _read_spec(home: ClusterHome) -> ClusterSpec | None:
    data = read_json(home.spec)
    try:
        return None if data is None else ClusterSpec.from_json(data)
    except ConfigError as error:
        raise StoreError(
            f"{home.spec} is damaged: {error.message}",
            hint="delete-cluster removes the cluster; --keep-data keeps its shared files",
        ) from error


def observe_nodes(provider: LocalProvider, spec: ClusterSpec) -> tuple[SeenNode, ...]:
    """Return the machines of the cluster, with those marked busy that hold a job (or may, as far as is known)."""
    instances = provider.observe(spec.cluster_name)
    names = {node.name for node in wanted_nodes(spec)}
    # Only a removal asks who is busy; without one slurmctld is left in peace.
    needs_jobs = any(instance.node not in names for instance in instances)
    busy = _busy_nodes(provider, instances) if needs_jobs else frozenset()
    stored = _read_spec(provider.cluster(spec.cluster_name)) if needs_jobs else None
    earlier = () if stored is None else wanted_nodes(stored)
    partitions = {group.name: group.partition for group in spec.workers}
    partitions |= {node.group: node.partition for node in earlier}
    return tuple(
        SeenNode(
            instance.node,
            instance.group,
            instance.id,
            instance.status,
            is_busy=instance.role is Role.WORKER
            and instance.status is InstanceStatus.RUNNING
            and (busy is None or instance.node in busy),
            partition=partitions.get(instance.group),
        )
        for instance in instances
    )


def plan_cluster(spec: ClusterSpec, provider: LocalProvider, *, force: bool = False) -> ProvisionPlan:
    """Return what ``create_cluster`` would do now. Changes nothing."""
    return diff_cluster(spec, observe_nodes(provider, spec), force=force)


def create_cluster(
    spec: ClusterSpec,
    provider: LocalProvider,
    progress: Progress = lambda _what, _share: None,
    *,
    force: bool = False,
    keep_failed: bool = False,
    timeout_s: float = READY_TIMEOUT_S,
    start_service: Callable[[LocalProvider, str], None] = ensure_service,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ClusterResult:
    """Make the cluster what the specification says, and wait until it is ready. Also grows, shrinks and mends.

    Args:
        force: Remove nodes that a job runs on.
        keep_failed: Leave machines whose script failed for inspection instead of replacing them once.
        timeout_s: How long to wait for readiness.
        start_service: Starts the provider's service for the head node if it is not there.
    Returns:
        What was done; ``failures`` when some machines are not born although the rest works.
    Raises:
        ProviderError: The machines could not be made; what was made stays and is found by the next call.
    """
    began = monotonic()
    seconds: dict[str, float] = {}

    def phase(name: str) -> None:
        seconds[name] = round(monotonic() - began - sum(seconds.values()), 2)

    names = [node.name for node in wanted_nodes(spec)]
    progress("preparing network and keys", 0.0)
    local = spec.hyperpod.local
    present = [name for name in provider.addresses(spec.cluster_name) if name not in names]
    addresses = provider.prepare(spec.cluster_name, [*present, *names], subnet=local.subnet, internet=local.internet)
    home = provider.cluster(spec.cluster_name)
    with home.lock("provision"):
        phase("prepare")
        image = provider.ensure_image(local.image.value, lambda what, share: progress(what, share * 0.5))
        phase("image")
        plan = _plan_with_drained(spec, provider, force)
        write_json(home.spec, spec.to_json())
        launches = {
            launch.node: launch for launch in node_launches(spec, addresses, keep=plan.keep, image_reference=image)
        }
        changed = provider.configure(list(launches.values()))
        start_service(provider, spec.cluster_name)
        for gone in plan.remove:
            progress(f"removing {gone.name}", 0.5)
            provider.terminate(gone.instance_id)
            provider.forget_node(spec.cluster_name, gone.name)
        _take_over_slurm_conf(provider, spec)
        _refresh_daemons(provider, spec, changed)
        starting = len(plan.create) + len(plan.start)
        if starting:
            progress(f"starting {starting} machine{'' if starting == 1 else 's'}", 0.5)
        missing = [*(node.name for node in plan.create), *(node.name for node in plan.start)]
        for failed in () if keep_failed else plan.retry:
            provider.replace(failed.name, failed.instance_id, f"create-{failed.instance_id}")
        provider.launch([launches[name] for name in missing])
        phase("start")
        failures = _wait(spec, provider, progress, keep_failed, timeout_s, monotonic, sleep)
        phase("boot")
    progress("ready" if not failures else "not all machines are ready", 1.0)
    return ClusterResult(plan, provider.observe(spec.cluster_name), seconds, failures)


def readiness(spec: ClusterSpec, provider: LocalProvider) -> Readiness:
    """Return how far the cluster is: a node is ready when it is born and, for workers, when Slurm can use it."""
    wanted = wanted_nodes(spec)
    by_node = {instance.node: instance for instance in provider.observe(spec.cluster_name)}
    waiting: dict[str, str] = {}
    failures = []
    for node in wanted:
        instance = by_node.get(node.name)
        if instance is None:
            waiting[node.name] = "no machine"
        elif instance.status is InstanceStatus.FAILED:
            failures.append(BirthFailure(node.name, provider.birth(instance.id)))
        elif instance.status is not InstanceStatus.RUNNING:
            birth = provider.birth(instance.id)
            waiting[node.name] = birth.message if birth.status is BirthStatus.RUNNING else instance.status.value
    workers = [node.name for node in wanted if node.role is Role.WORKER and node.name not in waiting]
    head = next((by_node[node.name] for node in wanted if node.role is Role.HEAD and node.name in by_node), None)
    if workers and head is not None and head.status is InstanceStatus.RUNNING:
        states = node_states(provider, head, workers)
        failed = {failure.node for failure in failures}
        for name in workers:
            state = states.get(name, "unknown to Slurm")
            if name not in failed and not _is_usable(state):
                waiting[name] = f"in Slurm: {state}"
    return Readiness(len(wanted) - len(waiting) - len(failures), len(wanted), waiting, tuple(failures))


def delete_cluster(
    cluster: str,
    provider: LocalProvider,
    progress: Progress = lambda _what, _share: None,
    *,
    keep_data: bool = False,
) -> None:
    """Remove machines, network, service and folder of a cluster, half-made ones too. One that is gone is done."""
    progress(f"deleting {cluster}", 0.0)
    stop_service(provider.cluster(cluster))
    provider.delete(cluster, keep_data=keep_data)
    progress("deleted", 1.0)


def node_states(provider: LocalProvider, head: Instance, nodes: Collection[str]) -> dict[str, str]:
    """Return Slurm's state of these nodes, in lower case; those that it does not know are missing.

    Empty while slurmctld does not answer.
    """
    connection = provider.connect(head.id)
    try:
        listed = connection.run(["sinfo", "--all", "--noheader", "--Node", "--format=%N %T"], timeout_s=15)
        states = parse_node_states(listed.stdout)
        if set(nodes) <= set(states):
            return states
        # sinfo leaves out nodes that are in no partition at the moment, as a spare of a cluster without spares is.
        shown = connection.run(["scontrol", "--oneliner", "show", "nodes"], timeout_s=15)
    except (CommandError, ProviderError):
        return {}
    return parse_shown_nodes(shown.stdout) | states


def parse_node_states(text: str) -> dict[str, str]:
    """Read ``sinfo --Node --format='%N %T'``; flags after the state (``*``, ``~`` …) stay."""
    pairs = (line.split() for line in text.splitlines())
    return {words[0]: words[1].lower() for words in pairs if len(words) == 2}


def parse_shown_nodes(text: str) -> dict[str, str]:
    """Read ``scontrol --oneliner show nodes``; a node that does not answer gets sinfo's ``*``."""
    states = {}
    for line in text.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "NodeName" in fields and "State" in fields:
            base, *flags = fields["State"].lower().split("+")
            silent = "*" if "not_responding" in flags and not base.endswith("*") else ""
            states[fields["NodeName"]] = base + silent
    return states


def _is_usable(state: str) -> bool:
    # A node that a person or the controller drained is as ready as it can be; "*" means that it does not answer.
    return not state.endswith("*") and state.startswith(
        ("idle", "mixed", "allocated", "completing", "drain", "reserved", "planned")
    )


def _wait(
    spec: ClusterSpec,
    provider: LocalProvider,
    progress: Progress,
    keep_failed: bool,
    timeout_s: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> tuple[BirthFailure, ...]:
    deadline = monotonic() + timeout_s
    replaced: dict[str, int] = {}
    while True:
        state = readiness(spec, provider)
        for failure in state.failures:
            tries = replaced.get(failure.node, 0)
            if not keep_failed and tries < REPLACEMENTS_PER_NODE:
                replaced[failure.node] = tries + 1
                progress(f"{failure.node}: its script failed, trying another machine", 0.5)
                provider.replace(failure.node, failure.birth.instance_id, f"create-{failure.birth.instance_id}")
                state.waiting_for[failure.node] = "another machine after a failed script"
        progress(_waiting_text(state), 0.5 + 0.5 * state.ready / max(state.total, 1))
        if not state.waiting_for:
            return state.failures
        if monotonic() >= deadline:
            missing = ", ".join(f"{node} ({why})" for node, why in sorted(state.waiting_for.items()))
            raise InvalidState(
                f"wait for cluster {spec.cluster_name} any longer",
                f"not ready after {timeout_s:g} s: {missing}",
                hint="hyperpod describe-cluster shows each node; create-cluster again goes on from here",
            )
        sleep(0.2)


def _waiting_text(state: Readiness) -> str:
    if not state.waiting_for:
        return f"{state.ready} of {state.total} nodes ready"
    node, why = sorted(state.waiting_for.items())[0]
    return f"{state.ready} of {state.total} nodes ready; {node}: {why}"


def _busy_nodes(provider: LocalProvider, instances: Sequence[Instance]) -> frozenset[str] | None:
    """Return the nodes that hold a job; None when nobody can say, which must be taken as "all of them"."""
    head = next((instance for instance in instances if instance.role is Role.HEAD), None)
    if head is None or head.status is not InstanceStatus.RUNNING:
        return None
    try:
        done = provider.connect(head.id).run(
            ["squeue", "--noheader", "--states=R,CG,S,CF,SI,SO", "--format=%N"], timeout_s=20
        )
        hosts = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        if not hosts:
            return frozenset()
        names = provider.connect(head.id).run(["scontrol", "show", "hostnames", ",".join(hosts)], timeout_s=20)
    except (CommandError, ProviderError):
        return None
    return frozenset(names.stdout.split())


def _plan_with_drained(spec: ClusterSpec, provider: LocalProvider, force: bool) -> ProvisionPlan:
    """Return the plan, with the nodes to be removed drained before it was asked once more who is busy.

    Without that a job could start on a node between the question and the removal.
    """
    plan = plan_cluster(spec, provider, force=force)
    head = _running_head(provider, spec.cluster_name)
    if head is None:
        return plan
    _set_state(provider, head, [node.name for node in plan.remove], "drain")
    if plan.remove:
        plan = plan_cluster(spec, provider, force=force)
    # Nodes that stay after all: refused ones, and those of an earlier scale-down that was taken back.
    removed = {node.name for node in plan.remove}
    try:
        listed = provider.connect(head.id).run(
            ["sinfo", "--all", "--noheader", "--Node", "--list-reasons", f"--format=%N {_SEPARATOR}%E"], timeout_s=20
        )
    except (CommandError, ProviderError):
        return plan
    pairs = {tuple(line.split(f" {_SEPARATOR}", 1)) for line in listed.stdout.splitlines() if _SEPARATOR in line}
    stay = sorted(name for name, reason in pairs if reason == _SCALE_DOWN_REASON and name not in removed)
    _set_state(provider, head, stay, "resume")
    return plan


def _running_head(provider: LocalProvider, cluster: str) -> Instance | None:
    for instance in provider.observe(cluster):
        if instance.role is Role.HEAD and instance.status is InstanceStatus.RUNNING:
            return instance
    return None


def _set_state(provider: LocalProvider, head: Instance, nodes: Sequence[str], state: str) -> None:
    if not nodes:
        return
    reason = [f"reason={_SCALE_DOWN_REASON}"] if state == "drain" else []
    try:
        provider.connect(head.id).run(
            ["scontrol", "update", f"nodename={','.join(nodes)}", f"state={state}", *reason], timeout_s=20
        )
    except CommandError as error:
        logger.warning("slurmctld refused state=%s nodes=%s: %s", state, ",".join(nodes), error.message)


def _take_over_slurm_conf(provider: LocalProvider, spec: ClusterSpec) -> None:
    """Have a running head node use the slurm.conf that was just written for it; equal ones change nothing."""
    head = _running_head(provider, spec.cluster_name)
    if head is None:
        return
    try:
        provider.connect(head.id).run([_APPLY_CONF], timeout_s=90)
    except CommandTimeout as error:
        raise ProviderError("the head node does not take a changed slurm.conf", hint="hyperpod ssh to it") from error
    except CommandError as error:
        raise HyperpodError(
            f"the new slurm.conf was refused: {error.stderr_tail.strip()}",
            hint="the running one stays in force; correct Hyperpod.Slurm.Parameters",
        ) from error


def _refresh_daemons(provider: LocalProvider, spec: ClusterSpec, changed: Collection[str]) -> None:
    """Have the daemons of nodes that run use the configuration that was just written for them."""
    for instance in provider.observe(spec.cluster_name):
        if instance.node in changed and instance.status is InstanceStatus.RUNNING:
            try:
                provider.connect(instance.id).run([_REFRESH], timeout_s=30)
            except (CommandError, ProviderError) as error:
                # It reads the file at its next boot; a node that does not answer is the controller's business.
                logger.warning("node not refreshed node=%s error=%s", instance.node, error.message)
