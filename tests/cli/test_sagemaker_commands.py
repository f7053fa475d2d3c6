"""Commands about HyperPod clusters, against the contract server: what is shown, asked and returned."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws
from surroundings import Fakes, Result

from hyperpod.adapters.aws import session
from hyperpod.adapters.aws.client import Aws
from hyperpod.errors import UsageError
from hyperpod.ports.process import Completed
from tests.aws_server.guard import forbid_the_network
from tests.aws_server.server import ContractServer
from tests.aws_server.specs import request, write_spec

FLAGS = ("--provider", "sagemaker")
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_real_account(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_the_network(monkeypatch)
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLEEXAMPLE00",
        "AWS_SECRET_ACCESS_KEY": "example-secret",
        "AWS_SESSION_TOKEN": "example-token",
        "AWS_REGION": "us-west-2",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def server() -> ContractServer:
    made = ContractServer()
    made.state.looks_to_run = 1
    return made


@pytest.fixture
def aws(server: ContractServer, fakes: Fakes) -> Aws:
    account = Aws(session=server.session(), sleep=lambda _: None)
    sts = Stubber(account.client("sts"))
    for _ in range(5):
        sts.add_response("get_caller_identity", {"Account": "111122223333"})
    sts.activate()
    fakes.place.make_aws = lambda region, profile: account
    fakes.place.is_root = False
    return account


@pytest.fixture
def run(fakes: Fakes, aws: Aws) -> Run:
    return fakes.run


@pytest.fixture
def create(run: Run, tmp_path: Path) -> Callable[..., Result]:
    """Make cluster ``ml`` from a file."""

    def make(*argv: str, **more: Any) -> Result:
        return run("create-cluster", str(write_spec(tmp_path, request(**more))), *argv)

    return make


def test_a_file_of_the_aws_cli_makes_a_hyperpod_cluster(create: Callable[..., Result], server: ContractServer) -> None:
    result = create()
    assert (result.code, len(server.made("CreateCluster"))) == (0, 1)
    lines = result.out.splitlines()
    assert lines[0].split() == ["NODE", "GROUP", "ROLE", "STATE", "INSTANCE", "ADDRESS", "REASON"]
    assert [line.split()[1:4] for line in lines[1:]] == [
        ["controller", "head", "Running"], ["worker", "worker", "Running"], ["worker", "worker", "Running"],
    ]  # fmt: skip
    assert "InService: controller 1 of 1, worker 2 of 2" in result.err
    assert "next: hyperpod ssh controller-1 --cluster ml --provider sagemaker" in result.err


def test_progress_is_told_instance_by_instance(create: Callable[..., Result], server: ContractServer) -> None:
    server.state.looks_to_run = 3
    result = create()
    assert "Creating: controller 0 of 1, worker 0 of 2" in result.err
    assert result.err.count("Pending") == 3
    assert result.err.count("Running") == 3


def test_cli_input_json_is_taken_as_the_aws_cli_takes_it(run: Run, tmp_path: Path, server: ContractServer) -> None:
    path = write_spec(tmp_path, request())
    assert run("create-cluster", "--cli-input-json", f"file://{path}").code == 0
    assert (
        run("create-cluster", "--cli-input-json", str(path)).err.splitlines()[0].endswith("must be file:// and a path")
    )
    assert run("create-cluster", str(path), "--cli-input-json", f"file://{path}").code == 2
    other = json.dumps(request("other"))
    assert run("create-cluster", "--cli-input-json", other, "--no-wait").code == 0
    assert [made["ClusterName"] for made in server.made("CreateCluster")] == ["ml", "other"]


def test_creating_again_changes_nothing(create: Callable[..., Result], server: ContractServer) -> None:
    create()
    result = create()
    assert result.code == 0
    assert "cluster ml is as the specification says" in result.err
    assert server.made("UpdateCluster") == []


def test_an_interrupted_create_goes_on_waiting(create: Callable[..., Result], server: ContractServer) -> None:
    server.state.looks_to_run = 2
    assert create("--no-wait").code == 0
    assert server.state.clusters["ml"].status == "Creating"
    assert create().code == 0
    assert len(server.made("CreateCluster")) == 1


def test_a_changed_file_is_shown_and_needs_consent(create: Callable[..., Result], server: ContractServer) -> None:
    create()
    result = create(workers=4)
    assert (result.code, server.made("UpdateCluster")) == (2, [])
    assert "~ worker.InstanceCount: 2 -> 4" in result.err
    assert create("--yes", workers=4).code == 0
    assert server.state.clusters["ml"].targets["worker"] == 4


def test_a_dry_run_asks_for_nothing(create: Callable[..., Result], server: ContractServer) -> None:
    result = create("--dry-run")
    assert "+ worker: 2 x ml.g5.8xlarge (worker)" in result.out
    shown = create("--dry-run", "-o", "json").json["request"]
    assert shown["ClusterName"] == "ml"
    assert server.made("CreateCluster") == []


def test_a_failed_script_is_shown_with_its_last_lines(
    create: Callable[..., Result], server: ContractServer, aws: Aws
) -> None:
    server.state.failing_groups = {"worker"}
    logs = Stubber(aws.client("logs"))
    for _ in range(2):
        logs.add_response("get_log_events", {"events": [{"message": "E: no space left"}]})
    logs.activate()
    result = create()
    assert (result.code, result.out) == (1, "")
    assert "    E: no space left" in result.err
    assert "Lifecycle scripts did not run successfully" in result.err
    assert "hint: correct the cause, hyperpod delete-cluster ml --provider sagemaker" in result.err


def test_machines_that_never_come_end_with_try_again(create: Callable[..., Result], server: ContractServer) -> None:
    server.state.missing_groups = {"worker"}
    result = create()
    assert result.code in (75, 130)


@pytest.mark.parametrize(
    ("code", "message", "status", "words"),
    [
        ("ResourceLimitExceeded", "limit 'ml.g5.8xlarge for cluster usage' is 0", 1, "for cluster usage"),
        ("AccessDeniedException", "is not authorized to perform: iam:PassRole on resource: r", 1, "iam:PassRole"),
        ("ThrottlingException", "Rate exceeded", 75, "slow down"),
        ("ExpiredTokenException", "expired", 1, "credentials have expired"),
        ("ResourceInUse", "exists", 4, "exists already"),
    ],
)
def test_what_the_service_refuses_is_one_line_and_a_hint(
    create: Callable[..., Result], server: ContractServer, code: str, message: str, status: int, words: str
) -> None:
    server.plan("CreateCluster", code, message, times=99)
    result = create()
    assert (result.code, result.out) == (status, "")
    first, second = [line for line in result.err.splitlines() if not line.startswith("WARNING")]
    assert first.startswith("error: ")
    assert words in first
    assert second.startswith("hint: ")


@mock_aws
def test_roles_are_read_from_where_the_scripts_lie(run: Run, tmp_path: Path, server: ContractServer) -> None:
    s3 = boto3.client("s3", region_name="us-east-1")
    s3.create_bucket(Bucket="sagemaker-scripts")
    parameters = {
        "controller_group": "controller", "worker_groups": [{"instance_group_name": "worker", "partition_name": "dev"}],
    }  # fmt: skip
    s3.put_object(
        Bucket="sagemaker-scripts", Key="lifecycle/provisioning_parameters.json", Body=json.dumps(parameters).encode()
    )
    data = request()
    for group in data["InstanceGroups"]:
        del group["SlurmConfig"]
    result = run("create-cluster", str(write_spec(tmp_path, data)))
    assert result.code == 0
    assert "roles of the groups are read from s3://sagemaker-scripts/lifecycle/" in result.err


def test_a_local_file_does_not_touch_the_account(fakes: Fakes, spec: Path, aws: Aws) -> None:
    fakes.place.is_root = True
    assert fakes.run("create-cluster", str(spec)).code == 0
    assert aws.counts == {}


def test_clusters_are_listed_and_described(run: Run, create: Callable[..., Result], server: ContractServer) -> None:
    result = run("list-clusters", *FLAGS)
    assert (result.code, result.err) == (0, "no HyperPod clusters in account 111122223333 in us-west-2\n")
    create()
    assert run("list-clusters", *FLAGS).out.splitlines()[1].split()[:3] == ["ml", "sagemaker", "InService"]
    shown = run("describe-cluster", "ml", *FLAGS)
    assert shown.code == 0
    assert "InService" in shown.out
    assert "arn:aws:sagemaker" in shown.out
    data = run("describe-cluster", *FLAGS, "-o", "json").json
    assert [group["up"] for group in data["groups"]] == [1, 2]
    rows = run("list-nodes", *FLAGS, "-c", "ml", "-o", "json").json
    assert [row["role"] for row in rows] == ["head", "worker", "worker"]


def test_the_environment_chooses_provider_and_cluster(run: Run, create: Callable[..., Result], fakes: Fakes) -> None:
    create()
    fakes.place.env = {**fakes.place.env, "HYPERPOD_PROVIDER": "sagemaker", "HYPERPOD_CLUSTER": "ml"}
    assert len(run("list-nodes", "-o", "json").json) == 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("list-nodes", "--provider", "azure"), "there is no provider 'azure'"),
        (("list-nodes", "--region", "us-west-2"), "add --provider sagemaker"),
    ],
)
def test_a_wrong_provider_is_a_mistake_of_usage(run: Run, argv: tuple[str, ...], words: str) -> None:
    result = run(*argv)
    assert result.code == 2
    assert words in result.err


def test_a_cluster_that_is_not_there_ends_with_3(run: Run) -> None:
    result = run("describe-cluster", "nowhere", *FLAGS)
    assert result.code == 3
    assert "us-west-2" in result.err


def test_a_group_is_resized(run: Run, create: Callable[..., Result], server: ContractServer) -> None:
    create()
    result = run("update-cluster", *FLAGS, "-c", "ml", "--group", "worker", "--count", "3")
    assert result.code == 0
    assert "~ worker.InstanceCount: 2 -> 3" in result.err
    assert len(server.state.clusters["ml"].nodes) == 4
    assert run("update-cluster", *FLAGS, "-c", "ml", "--group", "x", "--count", "3").code == 3


def test_a_change_of_a_busy_cluster_is_refused_by_state(
    run: Run, create: Callable[..., Result], server: ContractServer
) -> None:
    create()
    server.plan("UpdateCluster", "ConflictException", "Cluster ml is in Updating status")
    result = run("update-cluster", *FLAGS, "-c", "ml", "--group", "worker", "--count", "3")
    assert result.code == 4


def test_updating_by_file_needs_the_cluster(run: Run, tmp_path: Path) -> None:
    assert run("update-cluster", str(write_spec(tmp_path, request()))).code == 3


def test_a_node_is_replaced_by_any_of_its_names(
    run: Run, create: Callable[..., Result], server: ContractServer
) -> None:
    create()
    node, other = server.state.clusters["ml"].nodes[1:]
    refused = run("replace-node", "worker-1", *FLAGS)
    assert (refused.code, server.made("BatchReplaceClusterNodes")) == (2, [])
    result = run("replace-node", "worker-1", *FLAGS, "--yes")
    assert result.code == 0
    assert f"({node.instance_id}): is being replaced" in result.out
    done = run("reboot-node", other.instance_id, *FLAGS, "--yes", "-o", "json").json
    assert [row["done"] for row in done] == [True]


def test_a_node_that_is_refused_fails_the_command(run: Run, create: Callable[..., Result]) -> None:
    create()
    result = run("replace-node", "controller-1", *FLAGS, "--yes")
    assert result.code == 1
    assert "InvalidInstanceStatus" in result.err


def test_a_cluster_is_deleted_and_a_repetition_is_done(
    run: Run, create: Callable[..., Result], server: ContractServer
) -> None:
    create()
    assert run("delete-cluster", *FLAGS, "--yes").code == 2
    assert run("delete-cluster", "ml", *FLAGS).code == 2
    result = run("delete-cluster", "ml", *FLAGS, "--yes")
    assert (result.code, result.out) == (0, "deleted ml\n")
    assert server.state.clusters == {}
    again = run("delete-cluster", "ml", *FLAGS, "--yes", "-o", "json")
    assert (again.code, again.json["deleted"]) == (0, False)


def test_a_shell_goes_through_session_manager(
    run: Run, create: Callable[..., Result], fakes: Fakes, server: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    create()
    monkeypatch.setattr(session, "check_plugin", lambda: None)
    assert run("ssh", "controller-1", *FLAGS, "-c", "ml", "--", "sinfo", "-N").code == 7
    head = server.state.clusters["ml"].nodes[0]
    cluster_id = server.state.clusters["ml"].arn.rpartition("/")[2]
    (argv,) = fakes.terminal
    assert argv[4] == f"sagemaker-cluster:{cluster_id}_controller-{head.instance_id}"
    assert json.loads(argv[-1]) == {"command": ["sinfo -N"]}


def test_ports_are_forwarded_by_sessions_of_their_own(
    run: Run, create: Callable[..., Result], fakes: Fakes, server: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    create()
    monkeypatch.setattr(session, "check_plugin", lambda: None)
    held: list[list[str]] = []

    @contextlib.contextmanager
    def hold(argvs: Sequence[Sequence[str]]) -> Iterator[None]:
        held.extend(list(argv) for argv in argvs)
        yield

    fakes.place.hold = hold
    assert run("ssh", "ml", "-N", "-L", "8888:worker-1:80", "-L", "9999:localhost:90", *FLAGS).code == 7
    head, worker = server.state.clusters["ml"].nodes[:2]
    both = [*held, *fakes.terminal]
    assert [argv[4].rpartition("-i-")[2] for argv in both] == [
        node.instance_id.removeprefix("i-") for node in (worker, head)
    ]
    assert [argv[argv.index("--document-name") + 1] for argv in both] == ["AWS-StartPortForwardingSession"] * 2
    assert json.loads(held[0][-1]) == {"portNumber": ["80"], "localPortNumber": ["8888"]}
    refused = run("ssh", "ml", "-N", "-L", "*:8888:worker-1:80", *FLAGS)
    assert (refused.code, refused.err.splitlines()[0]) == (
        2, "error: Session Manager forwards ports of localhost only",
    )  # fmt: skip


class Sessions:
    """Runs what Session Manager would run, here, with the service's banners around its output."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lines: list[str] = []

    def run(self, argv: Sequence[str], **_: object) -> Completed:
        (line,) = json.loads(argv[-1])["command"]
        self.lines.append(line)
        done = subprocess.run(
            ["sh", "-c", line.replace("runuser -l ubuntu -c", "sh -c")],
            capture_output=True, text=True, env={"HOME": str(self.home), "PATH": f"{self.home}/bin:/usr/bin:/bin"},
        )  # fmt: skip
        text = done.stdout.replace("\n", "\r\n")
        return Completed(f"\r\nStarting session with SessionId: x\r\n{text}\r\nExiting session\r\n", "", 0)


@pytest.fixture
def sessions(fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    monkeypatch.setattr(session, "check_plugin", lambda: None)
    made = Sessions(tmp_path / "far")
    (made.home / "bin").mkdir(parents=True)
    sbatch = made.home / "bin" / "sbatch"
    sbatch.write_text('#!/bin/sh\necho "$@" >"$HOME/sbatch"\necho 42\n')
    sbatch.chmod(0o755)
    fakes.place.processes = lambda: cast(Any, made)
    return made


def test_a_command_on_the_head_node_has_its_own_status(
    run: Run, create: Callable[..., Result], sessions: Sessions
) -> None:
    create()
    result = run("run", "ml", *FLAGS, "--", "sh", "-c", "echo 'a  b'; exit 5")
    assert (result.code, result.out) == (5, "a  b\n")


def test_a_script_is_submitted_by_session_manager(
    run: Run, create: Callable[..., Result], sessions: Sessions, tmp_path: Path
) -> None:
    create()
    script = tmp_path / "train.sh"
    script.write_bytes(b"#!/bin/sh\n# \xc3\xbc $HOME 'quoted'\n")
    result = run("submit", "ml", str(script), *FLAGS, "--", "--auto-resume")
    assert (result.code, result.out) == (0, "job 42\n"), result.err
    copied = sessions.home / "hyperpod-jobs/train-1/train.sh"
    assert copied.read_bytes() == script.read_bytes()
    assert (sessions.home / "sbatch").read_text() == f"--parsable --auto-resume {copied}\n"
    script.write_bytes(b"#!/bin/sh\n" + b"#" * 70_000)
    assert "too many for Session Manager" in run("submit", "ml", str(script), *FLAGS).err


def test_logs_are_those_in_cloudwatch(
    run: Run, create: Callable[..., Result], fakes: Fakes, server: ContractServer
) -> None:
    create()
    with mock_aws():
        _check_logs(run, fakes, server)


def _check_logs(run: Run, fakes: Fakes, server: ContractServer) -> None:
    cluster = server.state.clusters["ml"]
    node = cluster.nodes[1]
    group = f"/aws/sagemaker/Clusters/ml/{cluster.arn.rpartition('/')[2]}"
    aws = fakes.place.aws("us-west-2", None)
    now = int(time.time() * 1000)
    aws.call("logs", "CreateLogGroup", logGroupName=group)
    for stream, texts in (("LifecycleConfig", ["one", "two\x1b[31m"]), ("SagemakerHealthMonitoringAgent", ["ok"])):
        name = f"{stream}/{node.group}/{node.instance_id}"
        aws.call("logs", "CreateLogStream", logGroupName=group, logStreamName=name)
        events = [{"timestamp": now + n, "message": text} for n, text in enumerate(texts)]
        aws.call("logs", "PutLogEvents", logGroupName=group, logStreamName=name, logEvents=events)

    assert run("logs", "ml", "worker-1", *FLAGS).out == "one\ntwo\\x1b[31m\nok\n"
    assert run("logs", "ml", "worker-1", "--source", "lifecycle", "-n", "1", *FLAGS).out == "two\\x1b[31m\n"
    nothing = run("logs", "ml", *FLAGS)
    assert (nothing.code, nothing.out) == (0, "")
    assert f"note: nothing in CloudWatch at {group} LifecycleConfig/controller/" in nothing.err
    assert run("logs", "ml", "--unit", "slurmd", *FLAGS).code == 2

    gone = "i-0123456789abcdef0"
    aws.call("logs", "CreateLogStream", logGroupName=group, logStreamName=f"LifecycleConfig/{node.group}/{gone}")
    aws.call("logs", "PutLogEvents", logGroupName=group, logStreamName=f"LifecycleConfig/{node.group}/{gone}",
             logEvents=[{"timestamp": now, "message": "its last words"}])  # fmt: skip
    left = run("logs", "ml", gone, *FLAGS)
    assert (left.code, left.out) == (0, "its last words\n")
    assert f"{gone} is gone" in left.err
    assert run("logs", "ml", "i-0123456789abcdef1", *FLAGS).code == 3


def test_without_the_plugin_a_shell_is_one_clear_line(
    run: Run, create: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise UsageError("session-manager-plugin is not installed", hint="https://docs.aws.amazon.com/")

    monkeypatch.setattr(session, "check_plugin", missing)
    result = run("ssh", "controller-1", *FLAGS, "-c", "ml")
    assert (result.code, result.err.splitlines()[0]) == (2, "error: session-manager-plugin is not installed")


def test_debug_shows_requests_and_no_credentials(run: Run) -> None:
    result = run("list-clusters", *FLAGS, "--debug")
    assert result.code == 0
    for secret in ("example-secret", "example-token"):
        assert secret not in result.err


def test_the_head_node_is_found_by_itself(
    run: Run, create: Callable[..., Result], fakes: Fakes, server: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    create()
    monkeypatch.setattr(session, "check_plugin", lambda: None)
    run("ssh", "head", *FLAGS)
    assert fakes.terminal[0][4].endswith(f"_controller-{server.state.clusters['ml'].nodes[0].instance_id}")


def test_plain_ssh_reaches_nodes_through_session_manager(
    run: Run, create: Callable[..., Result], server: ContractServer, tmp_path: Path
) -> None:
    create()
    result = run("ssh-config", "ml", *FLAGS)
    head, worker = server.state.clusters["ml"].nodes[:2]
    first, second, _ = result.out.split("\n\n")
    cluster_id = server.state.clusters["ml"].arn.rpartition("/")[2]
    address = head.summary()["PrivateDnsHostname"].partition(".")[0]
    assert first.splitlines()[0] == f"Host ml-controller-1 ml-{address} ml"
    assert f"--target sagemaker-cluster:{cluster_id}_controller-{head.instance_id} --region us-west-2" in first
    assert "ml-worker-1" in second
    assert f"HostKeyAlias ml-{worker.instance_id}" in second
    config = tmp_path / "config"
    config.write_text(result.out)
    if shutil.which("ssh"):
        shown = subprocess.run(
            ["ssh", "-G", "-F", str(config), "ml"], capture_output=True, text=True, check=True
        ).stdout
        assert "\nuser ubuntu\n" in shown
        assert "portNumber=%p" in shown or "portNumber=22" in shown
    assert run("ssh-config", "ml", *FLAGS, "-o", "json").json[0]["User"] == "ubuntu"


def test_nodes_are_deleted(run: Run, create: Callable[..., Result], server: ContractServer) -> None:
    create()
    assert run("delete-node", "worker-1", "worker-2", "-c", "ml").code == 2
    result = run("delete-node", "worker-1", "worker-2", "-c", "ml", "--yes")
    assert (result.code, result.out.count("is removed")) == (0, 2)
    assert server.state.clusters["ml"].targets["worker"] == 0


def test_software_is_updated_by_consent(run: Run, create: Callable[..., Result], server: ContractServer) -> None:
    create()
    assert run("update-software", "-c", "ml").code == 2
    assert run("update-software", "-c", "ml", "--group", "worker", "--yes").out == "ml: worker is being updated\n"
    assert server.made("UpdateClusterSoftware")[0]["InstanceGroups"] == [{"InstanceGroupName": "worker"}]


def test_deep_checks_are_started(run: Run, create: Callable[..., Result], server: ContractServer) -> None:
    create()
    assert run("deep-health-check", "-c", "ml").code == 2
    assert run("deep-health-check", "-c", "ml", "--node", "worker-2", "-o", "json").code == 0
    (part,) = server.state.health_checks[0]["DeepHealthCheckConfigurations"]
    assert part["InstanceIds"] == [server.state.clusters["ml"].nodes[2].instance_id]
    wrong = run("deep-health-check", "-c", "ml", "--group", "controller", "--node", "worker-2")
    assert "is in group worker" in wrong.err


def test_the_services_events_are_shown(run: Run, create: Callable[..., Result], server: ContractServer) -> None:
    create(NodeProvisioningMode="Continuous")
    assert "no events" in run("service-events", "-c", "ml").err
    server.state.events.append(
        {
            "EventId": "00000000-0000-0000-0000-000000000000", "ClusterArn": server.state.clusters["ml"].arn,
            "ClusterName": "ml", "ResourceType": "Instance", "EventTime": "2026-01-01T00:00:00Z",
            "Description": "replaced", "EventLevel": "Info",
        }
    )  # fmt: skip
    assert "replaced" in run("service-events", "-c", "ml").out
    assert run("service-events", "-c", "ml", "-o", "json").json[0]["text"] == "replaced"


@pytest.mark.parametrize(("status", "words"), [("Failed", "delete-cluster ml"), ("Deleting", "wait until it is gone")])
def test_a_cluster_that_failed_is_not_created_over(
    create: Callable[..., Result], server: ContractServer, status: str, words: str
) -> None:
    create()
    server.state.clusters["ml"].status = status
    result = create()
    assert result.code == 4
    assert words in result.err


def test_files_that_make_no_sense_are_told_without_a_call(run: Run, tmp_path: Path, aws: Aws) -> None:
    for groups in ("x", [1], [{"LifeCycleConfig": "x"}]):
        assert (
            run("create-cluster", str(write_spec(tmp_path, {"ClusterName": "a", "InstanceGroups": groups}))).code == 2
        )
    assert aws.counts == {}


def test_the_environments_provider_is_stronger_than_the_files(fakes: Fakes, tmp_path: Path, aws: Aws) -> None:
    fakes.place.env = {**fakes.place.env, "HYPERPOD_PROVIDER": "ec2"}
    data = request()
    for group in data["InstanceGroups"]:
        del group["SlurmConfig"]
    fakes.run("create-cluster", str(write_spec(tmp_path, data)))
    assert aws.counts == {}
