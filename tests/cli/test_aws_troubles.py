"""What a user gets when AWS refuses in mid-create: one clear line, a hint, the exit status; the next run converges.

The same table for both ways to AWS: HyperPod on the contract server, our own instances on an account in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError
from botocore.stub import Stubber
from moto import mock_aws
from surroundings import Fakes, Result

from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.ec2 import find_provider
from hyperpod.adapters.aws.pace import Pace
from tests.aws_server.guard import forbid_the_network
from tests.aws_server.server import ContractServer
from tests.aws_server.specs import request, write_spec
from tests.fakes.aws import AccountAws, dummy_environment, make_site

ROLE = "arn:aws:iam::123456789012:role/hyperpod-main-node"
FOR_EVER = 10**6


class Trouble:
    """Stands between the client and AWS: makes calls of an operation fail, before or after they took effect.

    A launch with a ClientToken that was used already is answered as EC2 does it, with the machines of the first one:
    moto would make more.
    """

    def __init__(self, aws: Aws) -> None:
        self._real = aws._once
        self._plans: dict[tuple[str, str], tuple[BaseException, int]] = {}
        self._launches: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        aws._once = self._once  # type: ignore[method-assign]

    def plan(self, operation: str, error: BaseException, *, when: str = "before", times: int = FOR_EVER) -> None:
        self._plans[operation, when] = (error, times)

    def end(self) -> None:
        self._plans.clear()

    def _once(self, method: Any, client: Any, service: str, operation: str, what: str, params: Any) -> dict[str, Any]:
        def troubled(**kwargs: Any) -> dict[str, Any]:
            self._strike(operation, "before")
            token = str(kwargs.get("ClientToken", ""))
            if operation == "RunInstances" and token in self._launches:
                first, answer = self._launches[token]
                assert first == kwargs, "the same token with another request is an error of EC2"
            else:
                answer = method(**kwargs)
                self._launches[token] = (kwargs, answer)
            self._strike(operation, "after")
            return answer

        return self._real(troubled, client, service, operation, what, params)

    def _strike(self, operation: str, when: str) -> None:
        error, times = self._plans.get((operation, when), (None, 0))
        if error is not None and times > 0:
            self._plans[operation, when] = (error, times - 1)
            raise error


@dataclass
class Way:
    """One way to AWS: how a cluster of three nodes is made, what makes it, and what there is afterwards."""

    name: str
    create: Callable[..., Result]
    trouble: Trouble
    makes: str
    count: Callable[[], int]
    untagged: Callable[[], list[str]]
    codes: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def refusal(code: str, message: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


def sagemaker_way(fakes: Fakes, tmp_path: Path) -> Way:
    server = ContractServer()
    server.state.looks_to_run = 1
    account = Aws(session=server.session(), sleep=lambda _: None)
    sts = Stubber(account.client("sts"))
    for _ in range(20):
        sts.add_response("get_caller_identity", {"Account": "111122223333"})
    sts.activate()
    fakes.place.make_aws = lambda region, profile: account
    fakes.place.is_root = False

    def untagged() -> list[str]:
        return [c.name for c in server.state.clusters.values() if not c.request.get("Tags")]

    def count() -> int:
        return sum(len(cluster.nodes) for cluster in server.state.clusters.values())

    path = write_spec(tmp_path, request())
    codes = {
        "expired": ("ExpiredTokenException", "The security token included in the request is expired"),
        "not switched on": ("UnrecognizedClientException", "The security token included in the request is invalid."),
        "elsewhere": ("ValidationException", "The subnet ID 'subnet-0123456789abcdef0' does not exist"),
        "denied": (
            "AccessDeniedException",
            "User: arn:aws:iam::1:user/ann is not authorized to perform: sagemaker:CreateCluster on resource: r",
        ),
        "taken": ("ResourceInUse", "Cluster with name ml already exists."),
        "busy": ("ConflictException", "Cluster ml is in Deleting status"),
        "quota": ("ResourceLimitExceeded", "The account-level service limit 'ml.g5 for cluster usage' is 0 Instances"),
        "throttled": ("ThrottlingException", "Rate exceeded"),
    }
    return Way(
        "sagemaker", lambda *argv: fakes.run("create-cluster", str(path), *argv), Trouble(account), "CreateCluster",
        count, untagged, codes,
    )  # fmt: skip


def ec2_way(fakes: Fakes, tmp_path: Path) -> Way:
    aws = AccountAws()
    aws.pace = Pace(lambda: 0.0)
    real = fakes.place.sleep

    def bear(seconds: float) -> None:
        real(seconds)
        folder = find_provider(aws, "demo").folder
        for entry in list(folder.entries("instances/")):
            identity = entry.name.removeprefix("instances/").removesuffix(".json")
            folder.write_json(f"births/{identity}.ok", {"status": "ok"})

    fakes.place.sleep = bear
    fakes.place.make_aws = lambda region, profile: aws
    site = make_site(aws)
    scripts = {"SourceS3Uri": f"s3://{site.bucket}/lifecycle-scripts/", "OnCreate": "on_create.sh"}
    group = {"InstanceType": "ml.m5.xlarge", "ExecutionRole": ROLE, "LifeCycleConfig": scripts}
    compute = {"NodeType": "Compute", "PartitionNames": ["train"]}
    data = {
        "ClusterName": "demo",
        "InstanceGroups": [
            {"InstanceGroupName": "head", "InstanceCount": 1, "SlurmConfig": {"NodeType": "Controller"}, **group},
            {"InstanceGroupName": "worker", "InstanceCount": 2, "SlurmConfig": compute, **group},
        ],
        "VpcConfig": {"SecurityGroupIds": [site.security_group], "Subnets": [site.subnet]},
        "Hyperpod": {"Provider": "ec2", "Ec2": {"Image": "ami-12c6146b"}},
    }
    path = tmp_path / "ec2.json"
    path.write_text(json.dumps(data))
    ec2 = aws.client("ec2")

    def live() -> list[dict[str, Any]]:
        found = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
        return [i for i in found if i["State"]["Name"] not in ("terminated", "shutting-down")]

    def untagged() -> list[str]:
        left = [(i["InstanceId"], i.get("Tags", [])) for i in live()]
        # moto gives volumes and interfaces no tags at launch; what was asked for counts.
        for operation, params in aws.calls:
            if operation == "RunInstances":
                given = {s["ResourceType"]: s["Tags"] for s in params["TagSpecifications"]}
                left += [(kind, given.get(kind, [])) for kind in ("instance", "volume", "network-interface")]
        templates = ec2.describe_launch_templates()["LaunchTemplates"]
        left += [(t["LaunchTemplateName"], t.get("Tags", [])) for t in templates]
        return [name for name, tags in left if not any(t["Key"] == "hyperpod:cluster" for t in tags)]

    codes = {
        "expired": ("RequestExpired", "Request has expired."),
        "not switched on": ("AuthFailure", "AWS was not able to validate the provided access credentials"),
        "elsewhere": ("InvalidSubnetID.NotFound", "The subnet ID 'subnet-0123456789abcdef0' does not exist"),
        "denied": (
            "UnauthorizedOperation",
            "You are not authorized to perform this operation. User: arn:aws:iam::1:user/ann is not authorized to "
            "perform: ec2:RunInstances on resource: r because no identity-based policy allows the ec2:RunInstances "
            "action. Encoded authorization failure message: 4f3RxQqbIwYFZ",
        ),
        "taken": ("InvalidLaunchTemplateName.AlreadyExistsException", "Launch template name already in use."),
        "busy": ("IncorrectState", "The capacity reservation is in state pending"),
        "quota": ("VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit of 0"),
        "throttled": ("RequestLimitExceeded", "Request limit exceeded."),
    }
    return Way(
        "ec2", lambda *argv: fakes.run("create-cluster", str(path), *argv), Trouble(aws), "RunInstances",
        lambda: len(live()), untagged, codes,
    )  # fmt: skip


@pytest.fixture(params=["sagemaker", "ec2"])
def way(request: pytest.FixtureRequest, fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    dummy_environment(monkeypatch)
    if request.param == "sagemaker":
        forbid_the_network(monkeypatch)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "example-token")
        yield sagemaker_way(fakes, tmp_path)
        return
    monkeypatch.setattr("hyperpod.provisioning.ec2_cluster.send_software", lambda folder: "abc")
    with mock_aws():
        yield ec2_way(fakes, tmp_path)


def complaint(result: Result) -> tuple[str, str]:
    """The error's line and the hint's; there must be exactly one of each, and no traceback."""
    assert result.out == ""
    assert "Traceback" not in result.err
    lines = result.err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    hints = [line for line in lines if line.startswith("hint: ")]
    assert (len(errors), len(hints)) == (1, 1), result.err
    assert lines[-2:] == [errors[0], hints[0]]
    assert len(errors[0]) < 300
    return errors[0], hints[0]


def converges(way: Way) -> None:
    """The trouble is over: the same command makes the very cluster, nothing twice and nothing without a tag."""
    way.trouble.end()
    again = way.create()
    assert again.code == 0, again.err
    assert way.count() == 3
    assert way.untagged() == []


@pytest.mark.parametrize(
    ("trouble", "status", "words", "advice"),
    [
        ("expired", 1, "the AWS credentials have expired", "aws sso login"),
        ("not switched on", 1, "does not accept the credentials", "a region that must be switched on first"),
        ("elsewhere", 3, "does not exist", "another region"),
        ("denied", 1, "no right to do {makes}", "allow {makes} to the caller"),
        ("taken", 4, "already", "choose another name|hyperpod describe-cluster ml"),
        ("busy", 4, "not in a state for it", "wait until it is done"),
        ("quota", 1, "a quota of the account is reached", "ask for more"),
        ("throttled", 75, "AWS asks to slow down", "run the same command again"),
    ],
)
def test_a_refusal_is_one_line_with_a_hint_and_the_next_run_converges(
    way: Way, trouble: str, status: int, words: str, advice: str
) -> None:
    code, message = way.codes[trouble]
    operation = "CreateLaunchTemplate" if (way.name, trouble) == ("ec2", "taken") else way.makes
    way.trouble.plan(operation, refusal(code, message, operation))

    result = way.create()

    assert result.code == status, result.err
    error, hint = complaint(result)
    right = f"{'sagemaker' if way.name == 'sagemaker' else 'ec2'}:{way.makes}"
    assert words.format(makes=right) in error
    assert any(part.format(makes=right) in hint for part in advice.split("|"))
    assert "4f3RxQqbIwYFZ" not in result.err
    assert way.untagged() == []
    converges(way)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, FOR_EVER], ids=["once", "for ever"])
def test_a_network_cut_in_mid_create_makes_nothing_twice(way: Way, when: str, times: int) -> None:
    way.trouble.plan(way.makes, ConnectionClosedError(endpoint_url="https://aws.example"), when=when, times=times)

    result = way.create()

    if result.code != 0:
        assert result.code == 75
        error, hint = complaint(result)
        assert "broke in" in error
        assert "goes on" in hint
    assert way.untagged() == []
    converges(way)


def test_a_region_that_does_not_exist_cannot_be_reached(way: Way) -> None:
    first = "DescribeCluster" if way.name == "sagemaker" else "DescribeLaunchTemplates"
    way.trouble.plan(first, EndpointConnectionError(endpoint_url="https://api.us-wets-2.amazonaws.com"))

    result = way.create()

    assert result.code == 75
    error, hint = complaint(result)
    assert "cannot be reached" in error
    assert "is the region's name right" in hint
    converges(way)


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_in_mid_create_is_one_line_and_the_next_run_converges(way: Way, when: str) -> None:
    way.trouble.plan(way.makes, KeyboardInterrupt(), when=when, times=1)

    result = way.create()

    assert result.code == 130
    assert result.err.splitlines()[-1] == "interrupted: nothing is lost, it is safe to run the same command again"
    assert way.untagged() == []
    converges(way)


def test_debug_shows_requests_and_neither_debug_nor_an_error_shows_a_secret(
    way: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "VERY-SECRET-ACCESS-KEY", "AWS_SESSION_TOKEN": "VERY-SECRET-SESSION",
    }  # fmt: skip
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    caplog.set_level("DEBUG")
    way.trouble.plan(way.makes, refusal(*way.codes["quota"], way.makes))

    failed = way.create("--debug")
    way.trouble.end()
    made = way.create("--debug")

    assert (failed.code, made.code) == (1, 0)
    shown = failed.err + failed.out + made.err + made.out + caplog.text
    assert f"operation={way.makes}" in shown
    assert "request={" in shown
    private = ["PRIVATE KEY", "example-secret", "X-Amz-Security-Token", "Authorization:", *secrets.values()]
    assert [word for word in private if word in shown] == []
