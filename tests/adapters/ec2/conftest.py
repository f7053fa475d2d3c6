"""An account in memory (moto). Credentials are good for nothing, there is no metadata service, nothing really waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto import mock_aws

from tests.fakes.aws import AccountAws, Site, dummy_environment, make_site


@pytest.fixture(autouse=True)
def _no_real_account(monkeypatch: pytest.MonkeyPatch) -> None:
    dummy_environment(monkeypatch)


@pytest.fixture
def aws() -> Iterator[AccountAws]:
    """An empty account."""
    with mock_aws():
        yield AccountAws()


@pytest.fixture
def site(aws: AccountAws) -> Site:
    """Network, bucket and instance profile in that account."""
    return make_site(aws)
