"""Accounts for tests: an environment that reaches nothing, and the things in an account that a cluster needs."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import pytest

from hyperpod.adapters.aws.client import Aws

REGION = "us-west-2"
_CLIENTS: dict[tuple[str, str], Any] = {}


def dummy_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set credentials that are good for nothing, and switch the metadata service off."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    values = {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@dataclass(frozen=True)
class Site:
    """What an account holds before a cluster is made in it."""

    vpc: str
    subnet: str
    security_group: str
    bucket: str
    profile: str


def make_site(aws: Aws, cidr: str = "10.1.0.0/16") -> Site:
    """Make network, bucket and instance profile in an empty account."""
    ec2, s3, iam = aws.client("ec2"), aws.client("s3"), aws.client("iam")
    vpc = ec2.create_vpc(CidrBlock=cidr)["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=cidr.replace("/16", "/20"))["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
    s3.create_bucket(Bucket="sagemaker-test", CreateBucketConfiguration={"LocationConstraint": REGION})
    iam.create_instance_profile(InstanceProfileName="nodes")
    return Site(vpc, subnet, group, "sagemaker-test", "nodes")


def decode_user_data(template: dict[str, Any]) -> str:
    """Return the script in a launch template's content."""
    return base64.b64decode(template["UserData"]).decode()


class AccountAws(Aws):
    """An account in memory that can be made to fail, and knows some calls which moto lacks.

    Requests to those are checked against the library's own model. ``fail_next`` makes the next call of an operation
    fail with a code of AWS, before or after it took effect; ``kill_next`` stands in for kill -9 of the caller there.
    ``calls`` records the operations in order, ``told`` with their services.
    """

    def __init__(self) -> None:
        # Reading the library's models is most of the time of a test, so its clients are made once.
        super().__init__(region=REGION, sleep=lambda _seconds: None, max_tries=3, _clients=_CLIENTS)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        self.answers: dict[str, list[dict[str, Any]]] = {
            "DescribePlacementGroups": [{"PlacementGroups": []}], "CreatePlacementGroup": [{}],
            "DeletePlacementGroup": [{}],
        }  # fmt: skip
        self._plans: list[tuple[str, str, BaseException]] = []

    def fail_next(self, operation: str, code: str, *, when: str = "before", message: str = "refused") -> None:
        """Make the next call of an operation fail with this code."""
        from botocore.exceptions import ClientError

        error = ClientError({"Error": {"Code": code, "Message": message}}, operation)
        self._plans.append((operation, when, error))

    def end_failures(self) -> None:
        """Let everything work again."""
        self._plans.clear()

    def kill_next(self, operation: str, *, when: str) -> None:
        """End the caller at the next call of an operation."""
        self._plans.append((operation, when, KeyboardInterrupt()))

    def operations(self) -> list[str]:
        """Return the operations that were called, in order."""
        return [operation for operation, _ in self.calls]

    @property
    def asked(self) -> set[str]:
        """The operations that were called, as ``service.Operation``."""
        return {f"{service}.{operation}" for service, operation, _ in self.told}

    def _once(self, method: Any, client: Any, service: str, operation: str, what: str, params: Any) -> dict[str, Any]:
        self.calls.append((operation, dict(params)))
        self.told.append((service, operation, dict(params)))

        def planned(**kwargs: Any) -> dict[str, Any]:
            self._maybe_fail(operation, "before")
            answer: dict[str, Any] = self._answer(client, operation, kwargs) or method(**kwargs)
            self._maybe_fail(operation, "after")
            return answer

        return super()._once(planned, client, service, operation, what, params)

    def _maybe_fail(self, operation: str, when: str) -> None:
        for plan in self._plans:
            if plan[:2] == (operation, when):
                self._plans.remove(plan)
                raise plan[2]

    def _answer(self, client: Any, operation: str, params: dict[str, Any]) -> dict[str, Any] | None:
        from botocore.validate import validate_parameters

        if operation not in self.answers:
            return None
        validate_parameters(params, client.meta.service_model.operation_model(operation).input_shape)
        queue = self.answers[operation]
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        return {"ResponseMetadata": {}, **answer}
