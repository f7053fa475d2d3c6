"""The commands about clusters and nodes, where the cluster is a HyperPod cluster of AWS.

Owns what they show and ask there. The commands themselves are in ``cluster`` and ``node``; they come here when
``--provider sagemaker`` or the specification says so. Nothing here is imported before.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import typer

from hyperpod.adapters.aws.sagemaker import (
    NodeResult,
    SageMaker,
    log_group,
    log_stream,
    pick_node,
    session_target,
)
from hyperpod.adapters.aws.sagemaker_provider import SageMakerProvider
from hyperpod.adapters.aws.sagemaker_requests import TAG, Update, create_request, update_request
from hyperpod.adapters.aws.sagemaker_views import Cluster, Node
from hyperpod.adapters.aws.sagemaker_wait import Look, Outcome, Waiter
from hyperpod.adapters.aws.session import SessionConnection
from hyperpod.adapters.process import Processes
from hyperpod.cli import render
from hyperpod.cli.options import confirm
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, print_json, print_result, printable, say
from hyperpod.core.login import Forward
from hyperpod.core.node import Role
from hyperpod.errors import AccessDenied, HyperpodError, InvalidState, NotFound, ProviderUnavailable, UsageError
from hyperpod.ports.login import Session

if TYPE_CHECKING:
    from hyperpod.core.spec import ClusterSpec

_LONGEST_S = 24 * 3600.0
"""A session of Session Manager ends by itself after a day at most."""
_LOOK_S = 3.0
_NEVER = datetime.fromtimestamp(0, UTC)
_SHOWN_NODES = 40
"""In larger clusters only the counts are shown while they come up."""


@dataclass
class Cloud:
    """HyperPod clusters of one account, for one run of the program."""

    kind: ClassVar[str] = "sagemaker"
    place: Place
    api: SageMaker
    flags: str

    @property
    def commands(self) -> Any:
        """The module with what the commands do with this kind of account."""
        return sys.modules[__name__]

    @property
    def where(self) -> str:
        """The account and region that were asked, for people."""
        try:
            return f"account {self.api.aws.account()} in {self.api.aws.region_name}"
        except HyperpodError:
            return self.api.aws.region_name

    def names(self) -> list[str]:
        """Return the account's clusters."""
        return [cluster.name for cluster in self.api.clusters()]

    def choose(self, asked: str | None) -> Cluster:
        """Return the cluster that is meant: the one asked for, or the only one."""
        from hyperpod.core.names import parse_cluster_name
        from hyperpod.provisioning.directory import choose_cluster

        name = asked or self.place.env.get("HYPERPOD_CLUSTER")
        if not name:
            name = choose_cluster([cluster.name for cluster in self.api.clusters()], None, self.where)
        return self.api.describe(parse_cluster_name(name))

    def provider(self, cluster: str) -> SageMakerProvider:
        return SageMakerProvider(self.api, cluster, Processes())

    def roles(self, cluster: Cluster) -> Mapping[str, Role]:
        return self.provider(cluster.name).roles(cluster)


def open_cloud(place: Place, provider: str | None, region: str | None, profile: str | None) -> Cloud | None:
    """Return the account if the cluster is one of HyperPod's; None for clusters on this machine.

    Raises:
        UsageError: The provider is unknown, or these commands do not serve it.
    """
    kind = place.provider_kind(provider)
    if kind == "local":
        if region or profile:
            raise UsageError("--region and --profile are about AWS", hint="add --provider sagemaker")
        return None
    if kind != "sagemaker":
        raise UsageError(f"this command does not serve provider {kind}")
    flags = " --provider sagemaker" + (f" --region {region}" if region else "")
    return Cloud(place, SageMaker(place.aws(region, profile)), flags + (f" --profile {profile}" if profile else ""))


# --- create and update ------------------------------------------------------------------------------------------


def remote_parameters(cloud: Cloud, data: Mapping[str, Any]) -> Path | None:
    """Fetch provisioning_parameters.json from where the scripts lie, for a file whose groups don't say their roles.

    Returns:
        A local copy; None when the file does not need it, or it is not there.
    """
    listed = data.get("InstanceGroups")
    groups = [group for group in listed if isinstance(group, Mapping)] if isinstance(listed, list) else []
    if any(group.get("SlurmConfig") for group in groups):
        return None
    scripts = [group.get("LifeCycleConfig") for group in groups]
    sources = dict.fromkeys(str(one.get("SourceS3Uri") or "") for one in scripts if isinstance(one, Mapping))
    for source in sources:
        parts = urlsplit(source)
        if parts.scheme != "s3":
            continue
        key = f"{parts.path.strip('/')}/provisioning_parameters.json".lstrip("/")
        try:
            answer = cloud.api.aws.call("s3", "GetObject", what=f"{source}", Bucket=parts.netloc, Key=key)
        except (NotFound, AccessDenied) as error:
            say(f"note: no roles of the groups from s3://{parts.netloc}/{key}: {error.message}")
            continue
        path = _scratch() / "provisioning_parameters.json"
        path.write_bytes(answer["Body"].read())
        say(f"note: roles of the groups are read from s3://{parts.netloc}/{key}")
        return path
    return None


def create(
    cloud: Cloud, spec: ClusterSpec, *, dry_run: bool, yes: bool, wait: bool, output: Output, update_only: bool = False
) -> None:
    """Make a cluster, or bring one to what the specification says, and wait for it."""
    name = spec.cluster_name
    found = cloud.api.find(name)
    if found is None and update_only:
        raise NotFound(
            f"no cluster {name} in {cloud.where}", hint=f"hyperpod create-cluster SPEC{cloud.flags} makes it"
        )
    if found is None:
        if dry_run:
            _show_new(spec, output)
            return
        cloud.api.create(spec)
        say(f"cluster {name} is asked for")
        _finish(cloud, name, ("created",), wait, output)
        return
    if found.status in ("Failed", "Deleting"):
        what = "wait until it is gone" if found.status == "Deleting" else f"hyperpod delete-cluster {name}{cloud.flags}"
        raise InvalidState(
            f"create cluster {name}",
            f"there, and {found.status}{_because(found)}",
            hint=f"{what}, then create it again",
        )
    update = Update({}) if found.status == "Creating" else update_request(spec, found.details)
    if dry_run:
        if output is Output.JSON:
            print_json({"cluster": name, "changes": list(update.changes), "request": update.request})
        elif update.changes:
            print_result(*update.changes)
        else:
            say(f"cluster {name}: nothing to do")
        return
    _change(cloud, found, update, yes=yes, wait=wait, output=output)


def _because(cluster: Cluster) -> str:
    return f" ({cluster.failure})" if cluster.failure else ""


def set_count(
    cloud: Cloud, cluster: str | None, group: str, count: int, *, dry_run: bool, wait: bool, output: Output
) -> None:
    """Change the size of one group."""
    from hyperpod.adapters.aws.sagemaker_requests import count_request

    found = cloud.choose(cluster)
    if found.group(group) is None:
        known = ", ".join(one.name for one in found.groups)
        raise NotFound(f"cluster {found.name} has no instance group {group}", hint=f"groups are {known}")
    update = count_request(found.details, {group: count})
    if dry_run:
        print_result(*update.changes) if update.changes else say(f"cluster {found.name}: nothing to do")
        return
    _change(cloud, found, update, yes=True, wait=wait, output=output)


def _change(cloud: Cloud, found: Cluster, update: Update, *, yes: bool, wait: bool, output: Output) -> None:
    name = found.name
    if update.request:
        for line in update.changes:
            say(line)
        if not yes and not confirm(cloud.place, f"Change cluster {name}", "--yes makes these changes"):
            raise InvalidState(f"change cluster {name}", "as it was: not confirmed")
        cloud.api.update(update.request)
    elif found.is_settled:
        say(f"cluster {name} is as the specification says")
    _finish(cloud, name, update.changes, wait, output)


def _finish(cloud: Cloud, name: str, changes: Sequence[str], wait: bool, output: Output) -> None:
    if not wait:
        say(f"next: hyperpod describe-cluster {name}{cloud.flags}")
        if output is Output.JSON:
            print_json({"cluster": name, "changes": list(changes), "status": cloud.api.describe(name).status})
        return
    began = cloud.place.clock()
    screen = _Screen(cloud)
    outcome = Waiter(cloud.api, screen, cloud.place.sleep, cloud.place.clock).until_settled(name)
    roles = cloud.roles(outcome.cluster)
    rows = [_node_row(node, roles) for node in outcome.nodes]
    if output is Output.JSON:
        print_json(
            {
                "cluster": name,
                "status": outcome.cluster.status,
                "is_ready": outcome.is_ready,
                "changes": list(changes),
                "nodes": rows,
                "failures": [
                    {"node": f.node.name, "instance_id": f.node.instance_id, "group": f.node.group,
                     "message": f.message, "tail": list(f.tail), "log_path": f.log}
                    for f in outcome.failures
                ],
            }
        )  # fmt: skip
    elif outcome.is_ready:
        print_result(_nodes_table(rows))
    _say_outcome(cloud, name, outcome, cloud.place.clock() - began)


def _say_outcome(cloud: Cloud, name: str, outcome: Outcome, seconds: float) -> None:
    for failure in outcome.failures:
        first, *rest = failure.lines()
        say(f"error: {first}")
        for line in rest:
            say(line)
    if outcome.is_ready:
        head = next(
            (g.name for g in outcome.cluster.groups if cloud.roles(outcome.cluster).get(g.name) is Role.HEAD), ""
        )
        say(f"ready after {render.duration(seconds)}")
        say(f"next: hyperpod ssh {head}-1 --cluster {name}{cloud.flags}" if head else f"cluster {name} is ready")
        return
    if outcome.has_timed_out:
        raise ProviderUnavailable(
            f"cluster {name} is not ready after {render.duration(seconds)}: {Look(outcome.cluster, ()).line()}",
            hint="run the same command again: it goes on waiting",
        )
    if not outcome.failures:
        say(f"error: {outcome.cluster.failure or Look(outcome.cluster, ()).line()}")
    if outcome.cluster.status == "Failed":
        say(f"hint: correct the cause, hyperpod delete-cluster {name}{cloud.flags}, then create it again")
    else:
        say("hint: correct the cause, then run the same command again")
    raise typer.Exit(1)


def _show_new(spec: ClusterSpec, output: Output) -> None:
    request = create_request(spec)
    if output is Output.JSON:
        print_json({"cluster": spec.cluster_name, "request": request})
        return
    print_result(
        f"+ cluster {spec.cluster_name} (HyperPod)",
        *(
            f"+ {group.name}: {group.count} x {group.instance_type} ({group.role.value})"
            for group in spec.instance_groups
        ),
        f"+ tag {TAG}",
    )


@dataclass
class _Screen:
    """Shows a cluster in the making, one line for each change."""

    cloud: Cloud
    _line: str = ""
    _states: dict[str, str] = field(default_factory=dict)
    _began: float | None = None

    def __call__(self, look: Look) -> None:
        now = self.cloud.place.clock()
        self._began = now if self._began is None else self._began
        passed = f"{now - self._began:6.0f} s"
        if look.line() != self._line:
            self._line = look.line()
            say(f"{passed}  {self._line}")
        if len(look.nodes) > _SHOWN_NODES:
            return
        for node in look.nodes:
            state = node.status + (f": {node.message}" if node.message and node.status == "Failure" else "")
            if self._states.get(node.instance_id) != state:
                self._states[node.instance_id] = state
                say(f"{passed}  {node.group} {node.name}: {state}")


# --- look -------------------------------------------------------------------------------------------------------


def list_clusters(cloud: Cloud, output: Output) -> None:
    """List the account's clusters."""
    rows = [
        {"cluster": c.name, "provider": "sagemaker", "status": c.status, "id": c.id, "created_at": c.created_at}
        for c in cloud.api.clusters()
    ]
    if output is Output.JSON:
        print_json(rows)
    elif rows:
        columns = ("CLUSTER", "PROVIDER", "STATUS", "ID")
        print_result(render.table(columns, [(r["cluster"], r["provider"], r["status"], r["id"]) for r in rows]))
    else:
        say(f"no HyperPod clusters in {cloud.where}")


def describe(cloud: Cloud, asked: str | None, output: Output) -> None:
    """Show one cluster."""
    cluster = cloud.choose(asked)
    roles = cloud.roles(cluster)
    rows = [_node_row(node, roles) for node in cloud.api.nodes(cluster.name)]
    groups = [
        {
            "group": g.name, "role": roles.get(g.name, Role.WORKER).value, "instance_type": g.instance_type,
            "up": g.current, "wanted": g.target, "status": g.status, "partition": g.partition,
        }
        for g in cluster.groups
    ]  # fmt: skip
    if output is Output.JSON:
        print_json(
            {"cluster": cluster.name, "status": cluster.status, "provider": "sagemaker", "arn": cluster.arn,
             "failure": cluster.failure, "groups": groups, "nodes": rows}
        )  # fmt: skip
        return
    recovery = str(cluster.details.get("NodeRecovery", ""))
    facts = [
        ("cluster", cluster.name), ("status", cluster.status), ("failure", cluster.failure),
        ("provider", f"sagemaker, {cloud.api.aws.region_name}"), ("arn", cluster.arn), ("node recovery", recovery),
    ]  # fmt: skip
    width = max(len(label) for label, _ in facts)
    columns = ("GROUP", "ROLE", "TYPE", "UP", "WANTED", "STATUS", "PARTITION")
    table = render.table(columns, [tuple(group[k] for k in (
        "group", "role", "instance_type", "up", "wanted", "status", "partition")) for group in groups])  # fmt: skip
    lines = [f"{label.ljust(width)}  {text}" for label, text in facts if text]
    print_result(*lines, "", table, "", _nodes_table(rows))


def list_nodes(cloud: Cloud, asked: str | None, output: Output) -> None:
    """List a cluster's nodes."""
    cluster = cloud.choose(asked)
    roles = cloud.roles(cluster)
    rows = [_node_row(node, roles) for node in cloud.api.nodes(cluster.name)]
    if output is Output.JSON:
        print_json(rows)
    elif rows:
        print_result(_nodes_table(rows))
    else:
        say(f"cluster {cluster.name} in {cloud.where} has no nodes")


def _node_row(node: Node, roles: Mapping[str, Role]) -> dict[str, Any]:
    return {
        "node": node.name,
        "group": node.group,
        "role": roles.get(node.group, Role.WORKER).value,
        "state": node.status,
        "machine": node.state.value,
        "instance_id": node.instance_id,
        "instance_type": node.instance_type,
        "address": node.address,
        "created_at": node.launched_at,
        "reason": node.message,
    }


def _nodes_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    columns = ("NODE", "GROUP", "ROLE", "STATE", "INSTANCE", "ADDRESS", "REASON")
    keys = ("node", "group", "role", "state", "instance_id", "address", "reason")
    return render.table(columns, [tuple(row[key] for key in keys) for row in rows])


# --- delete -----------------------------------------------------------------------------------------------------


def delete(cloud: Cloud, asked: str | None, *, yes: bool, wait: bool, output: Output) -> None:
    """Delete a cluster with all its instances."""
    name = asked or cloud.place.env.get("HYPERPOD_CLUSTER")
    if not name and yes:
        raise UsageError("--yes needs the name of the cluster", hint="hyperpod delete-cluster NAME --yes")
    found = cloud.api.find(name) if name else cloud.choose(None)
    if found is None:
        say(f"nothing to delete: no cluster {name} in {cloud.where}")
        if output is Output.JSON:
            print_json({"cluster": name, "deleted": False, "kept_data": None})
        return
    count = sum(group.current for group in found.groups)
    question = f"Delete cluster {found.name} with its {count} instances; file systems and buckets stay"
    if not yes and not confirm(cloud.place, question, "--yes deletes without asking"):
        raise InvalidState(f"delete cluster {found.name}", "as it was: not confirmed")
    if found.status != "Deleting":
        cloud.api.delete(found.name)
    if wait:
        Waiter(cloud.api, _Screen(cloud), cloud.place.sleep, cloud.place.clock).until_gone(found.name)
    if output is Output.JSON:
        print_json({"cluster": found.name, "deleted": True, "kept_data": None})
    else:
        print_result(f"deleted {found.name}" if wait else f"{found.name} is being deleted")


# --- nodes ------------------------------------------------------------------------------------------------------


def repair(cloud: Cloud, what: str, names: Sequence[str], cluster: str | None, *, yes: bool, output: Output) -> None:
    """Replace, reboot or delete nodes; each node's outcome is told, and one that failed fails the command."""
    chosen = cloud.choose(cluster)
    nodes = cloud.api.nodes(chosen.name)
    picked = [pick_node(nodes, chosen.name, name) for name in names]
    question = f"{what} {', '.join(node.name for node in picked)} of cluster {chosen.name} now; their jobs end"
    if not yes and not confirm(cloud.place, question, "--yes does it without asking"):
        raise InvalidState(f"{what} {', '.join(names)}", "as it was: not confirmed")
    act = {"replace": cloud.api.replace_nodes, "reboot": cloud.api.reboot_nodes, "delete": cloud.api.delete_nodes}[what]
    by_id = {node.instance_id: node.name for node in picked}
    results = act(chosen.name, list(by_id))
    _show_results(what, by_id, results, output)
    if not all(result.is_done for result in results):
        raise typer.Exit(1)


def _show_results(what: str, names: Mapping[str, str], results: Sequence[NodeResult], output: Output) -> None:
    done = {"replace": "is being replaced", "reboot": "is being restarted", "delete": "is removed"}[what]
    if output is Output.JSON:
        print_json(
            [
                {"node": names[r.node], "instance_id": r.node, "done": r.is_done, "code": r.code, "message": r.message}
                for r in results
            ]
        )
        return
    for result in results:
        if result.is_done:
            print_result(f"{names[result.node]} ({result.node}): {done}")
        else:
            say(f"error: {names[result.node]} ({result.node}): {result.code}: {result.message}")


def pick(cloud: Cloud, cluster: str | None, node: str) -> tuple[Cluster, Node]:
    """Return a cluster and one of its nodes; ``head`` is the head node.

    Raises:
        InvalidState: No node of the head node's group is there.
    """
    chosen = cloud.choose(cluster)
    nodes = cloud.api.nodes(chosen.name)
    if node != "head":
        return chosen, pick_node(nodes, chosen.name, node)
    roles = cloud.roles(chosen)
    head = next((one for one in nodes if roles.get(one.group) is Role.HEAD), None)
    if head is None:
        raise InvalidState(f"reach cluster {chosen.name}", "without a head node", hint="hyperpod list-nodes shows them")
    return chosen, head


def ssh(
    cloud: Cloud,
    node: str,
    argv: Sequence[str],
    user: str,
    cluster: str | None,
    wishes: Sequence[Forward] = (),
    alone: bool = False,
) -> int:
    """Open a shell on a node through Session Manager, or run a command there; return its status."""
    from hyperpod.adapters.aws.session import check_plugin, forward_argv, shell_argv

    check_plugin()
    chosen, picked = pick(cloud, cluster, node)
    aws = cloud.api.aws
    forwards = []
    for wish in wishes:
        if wish.listen_host != "127.0.0.1":
            raise UsageError("Session Manager forwards ports of localhost only", hint="leave the address away")
        is_itself = wish.host in ("localhost", "127.0.0.1", "::1")
        to = picked if is_itself else pick_node(cloud.api.nodes(chosen.name), chosen.name, wish.host)
        forwards.append(forward_argv(session_target(chosen, to), aws, wish.port, wish.listen_port))
    last = forwards.pop() if alone else shell_argv(session_target(chosen, picked), aws, argv, user)
    with cloud.place.hold(forwards):
        return cloud.place.terminal(last)


def run(cloud: Cloud, argv: Sequence[str], user: str, cluster: str | None) -> int:
    """Run a command on the head node through Session Manager, show its output and return its status."""
    chosen, head = pick(cloud, cluster, "head")
    connection = SessionConnection(session_target(chosen, head), cloud.api.aws, cloud.place.processes())
    line = argv if user == "root" else ["runuser", "-u", user, "--", *argv]
    done = connection.run(line, timeout_s=_LONGEST_S, check=False)
    sys.stdout.write(done.stdout)
    return done.code


def logs(
    cloud: Cloud,
    cluster: str | None,
    node: str,
    kinds: Sequence[str],
    since: datetime | None,
    lines: int,
    follow: bool,
) -> None:
    """Show what a node has in CloudWatch; with ``follow`` stay until interrupted."""
    chosen, picked = _pick_written(cloud, cluster, node, kinds)
    tokens: dict[str, str] = {}
    seen = False
    for kind in kinds:
        texts, tokens[kind] = cloud.api.log_lines(chosen, picked, kind, since=since, lines=lines)
        seen = seen or bool(texts)
        _write_lines(texts)
    if not seen:
        where = f"{log_group(chosen)} {log_stream(picked.group, picked.instance_id, kinds[0])}"
        say(f"note: nothing in CloudWatch at {where}")
    try:
        while follow:
            cloud.place.sleep(_LOOK_S)
            for kind in kinds:
                texts, tokens[kind] = cloud.api.log_lines(
                    chosen, picked, kind, since=since, lines=lines, token=tokens[kind]
                )
                _write_lines(texts)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _pick_written(cloud: Cloud, cluster: str | None, node: str, kinds: Sequence[str]) -> tuple[Cluster, Node]:
    """Return a cluster and a node; also one that is gone, by its id, if it has left lines in CloudWatch."""
    try:
        return pick(cloud, cluster, node)
    except NotFound:
        if not node.startswith("i-"):
            raise
        chosen = cloud.choose(cluster)
        for group in chosen.groups:
            gone = Node(node, group.name, "", "", "", _NEVER)
            if any(cloud.api.log_lines(chosen, gone, kind, lines=1)[0] for kind in kinds):
                say(f"note: {node} is gone; what it left in CloudWatch")
                return chosen, gone
        raise


def _write_lines(texts: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{printable(text, keep=chr(9))}\n" for text in texts))
    sys.stdout.flush()


def session(cloud: Cloud, cluster: str | None, user: str) -> tuple[str, Session]:
    """Return a cluster's name and a login on its head node."""
    from hyperpod.adapters.aws.session import ManagedSession

    chosen, head = pick(cloud, cluster, "head")
    connection = SessionConnection(session_target(chosen, head), cloud.api.aws, cloud.place.processes())
    return chosen.name, ManagedSession(connection, user)


_scratches: list[tempfile.TemporaryDirectory[str]] = []


def _scratch() -> Path:
    """Return a folder that is removed when the program ends."""
    _scratches.append(tempfile.TemporaryDirectory(prefix="hyperpod-"))
    return Path(_scratches[-1].name)


def read_request(path: Path) -> Mapping[str, Any]:
    """Read a create file as it is, without judging it; nothing when it cannot be read."""
    from hyperpod.config.document import read_document

    data = read_document(path).data
    return data if isinstance(data, Mapping) else {}


def input_path(text: str) -> Path:
    """Return the file that ``--cli-input-json`` names, as the AWS CLI takes it: ``file://create-cluster.json``.

    Raises:
        UsageError: It is not a file's address.
    """
    if text.lstrip().startswith("{"):
        try:
            json.loads(text)
        except ValueError as error:
            raise UsageError(f"--cli-input-json: not JSON: {error}") from error
        path = _scratch() / "cli-input.json"
        path.write_text(text)
        return path
    if not text.startswith("file://"):
        raise UsageError(f"--cli-input-json {text}: must be file:// and a path", hint=f"file://{text}")
    return Path(text.removeprefix("file://")).expanduser()
