"""Surroundings of the AWS adapters: credentials that are good for nothing, no metadata service, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hyperpod.adapters.aws.client import Aws
from tests.aws_server.guard import forbid_the_network
from tests.aws_server.server import ContractServer

DUMMY = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLEEXAMPLE00",
    "AWS_SECRET_ACCESS_KEY": "example-secret-example-secret-example-00",
    "AWS_SESSION_TOKEN": "example-session-token",
    "AWS_REGION": "us-west-2",
    "AWS_DEFAULT_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


@pytest.fixture(autouse=True)
def _no_real_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test can reach an account or a metadata service."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    forbid_the_network(monkeypatch)
    for name, value in DUMMY.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def waits() -> list[float]:
    """The seconds that the code under test wanted to sleep."""
    return []


@pytest.fixture
def aws(waits: list[float]) -> Aws:
    """An account in a region, without waiting."""
    return Aws(region="us-west-2", sleep=waits.append)


@pytest.fixture
def stubbed(aws: Aws) -> Iterator[Callable[[str], Any]]:
    """Return a Stubber for a service's client; no answer may be left over at the end."""
    from botocore.stub import Stubber

    made: list[Any] = []

    def stub(service: str) -> Any:
        stubber = Stubber(aws.client(service))
        stubber.activate()
        made.append(stubber)
        return stubber

    yield stub
    for stubber in made:
        stubber.assert_no_pending_responses()


@pytest.fixture
def server() -> ContractServer:
    """HyperPod's operations, in this process."""
    return ContractServer()


@pytest.fixture
def served(server: ContractServer, waits: list[float]) -> Aws:
    """An account whose SageMaker is the contract server."""
    return Aws(region="us-west-2", session=server.session(), sleep=waits.append)
