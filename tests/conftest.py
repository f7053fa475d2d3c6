"""One cluster for all tests on real nodes. Each leaves it as it found it: no jobs, every node at work."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.lab import HERE, Lab
from tools.cluster import spec_named

KEEP = os.environ.get("E2E_KEEP", "")
"""With E2E_KEEP=1 the cluster stays, and is used again by the next run of the suite."""

PREFIX = os.environ.get("E2E_PREFIX", "e2e")
"""What the clusters' names begin with; another one lets a second suite run on the machine."""


def make(name: str, spec: str) -> Iterator[Lab]:
    """Make a cluster, and delete it at the end."""
    lab = Lab(name)
    if not KEEP:
        lab.delete()
    with tempfile.TemporaryDirectory() as folder:
        lab.create(spec_named(HERE / spec, name, Path(folder)))
    lab.install()
    yield lab
    if not KEEP:
        lab.delete()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Lab]:
    """The cluster of the whole run: a head node, three workers and a spare."""
    yield from make(f"{PREFIX}-shared", "shared.yaml")


@pytest.fixture(scope="session")
def small_cluster() -> Iterator[Lab]:
    """A second cluster beside it, where every job is armed: a head node and a worker."""
    yield from make(f"{PREFIX}-small", "small.yaml")


@pytest.fixture
def lab(shared_cluster: Lab) -> Iterator[Lab]:
    """The shared cluster with every node at work; whatever a test breaks is mended after it."""
    shared_cluster.clean_up()
    shared_cluster.begin()
    yield shared_cluster
    shared_cluster.clean_up()


# Tests against moto take minutes together: it makes an account's worth of objects for each of them.
SLOW_CLOUD = (
    "/adapters/aws/",
    "/adapters/ec2/",
    "test_ec2",
    "test_sagemaker",
    "test_prepare",
    "test_provider_contract",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs against moto, so that the quick round can leave it out."""
    for item in items:
        if any(part in str(item.path) for part in SLOW_CLOUD):
            item.add_marker(pytest.mark.aws)
