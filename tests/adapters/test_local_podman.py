"""podman's words: its lists as values, its errors as ours."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from hyperpod.adapters.local.podman import Podman, parse_containers, translate, ulimits
from hyperpod.errors import (
    AccessDenied,
    AlreadyExists,
    CommandError,
    CommandTimeout,
    HyperpodError,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    UnexpectedOutput,
)
from hyperpod.ports.process import Completed
from tests.fakes.process import FakeProcesses

ROW = {
    "Id": "c0ffee", "Names": ["hyperpod.demo.worker-1"], "State": "running", "Pid": 77, "ExitCode": 0,
    "Created": 1_700_000_000, "Labels": {"hyperpod.node": "worker-1"},
}  # fmt: skip


def test_reads_a_list_of_containers() -> None:
    (box,) = parse_containers(json.dumps([ROW]))

    assert (box.id, box.name, box.state, box.pid) == ("c0ffee", "hyperpod.demo.worker-1", "running", 77)
    assert box.created_at == datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.mark.parametrize("text", ["", "null", "[]"])
def test_no_containers_is_an_empty_list(text: str) -> None:
    assert parse_containers(text) == ()


def test_missing_labels_and_dates_as_text_are_understood() -> None:
    (box,) = parse_containers(json.dumps([ROW | {"Labels": None, "Created": "2026-01-02T03:04:05Z"}]))

    assert (dict(box.labels), box.created_at) == ({}, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


@pytest.mark.parametrize("text", ["nonsense", '[{"Id": 1}]', "[1]", '{"a": 1}'])
def test_anything_else_is_an_error_and_never_an_empty_list(text: str) -> None:
    with pytest.raises(UnexpectedOutput):
        parse_containers(text)


@pytest.mark.parametrize(
    ("stderr", "code", "kind"),
    [
        ("Error: no container with name or ID x found: no such container", 1, NotFound),
        ('Error: the container name "x" is already in use by y', 125, AlreadyExists),
        ("Error: subnet 10.88.0.0/24 is already used on the host or by another config", 125, AlreadyExists),
        ("Error: write /var/lib/x: no space left on device", 125, NoCapacity),
        ("Error: fork: cannot allocate memory", 125, NoCapacity),
        ("Error: runc: error setting rlimit type 7: operation not permitted", 126, ProviderError),
        ("Error: permission denied", 125, AccessDenied),
        ("Error: netavark: No such file or directory (os error 2)", 126, ProviderError),
        ("Error: something new", 125, ProviderError),
    ],
)
def test_errors_become_ours_with_a_next_step(stderr: str, code: int, kind: type[HyperpodError]) -> None:
    error = translate(CommandError(["podman", "run"], code, stderr))

    assert type(error) is kind
    assert error.hint or kind in (NotFound, AlreadyExists)


def test_podman_not_installed_says_so() -> None:
    error = CommandError(["podman"], 127, "[Errno 2] No such file or directory: 'podman'")
    processes = FakeProcesses({("podman",): error})

    with pytest.raises(ProviderError) as caught:
        Podman(processes).run("ps")

    assert (caught.value.message, caught.value.hint) == ("podman is not installed", "hyperpod doctor --fix")


def test_a_podman_that_hangs_leaves_the_state_unknown() -> None:
    processes = FakeProcesses({("podman",): CommandTimeout(["podman"], 60)})

    with pytest.raises(ProviderUnavailable):
        Podman(processes).containers("a=b")


def test_a_command_that_fails_in_a_container_is_no_failure_of_podman() -> None:
    podman = Podman(FakeProcesses({("podman",): Completed("", "ls: no such file", 2)}))

    with pytest.raises(CommandError) as caught:
        podman.exec("c1", ["ls", "/x"], timeout_s=5)

    assert (caught.value.argv, caught.value.code) == (("ls", "/x"), 2)
    assert podman.exec("c1", ["ls", "/x"], timeout_s=5, check=False).code == 2


def test_a_container_that_is_gone_is_a_failure_of_podman_also_without_check() -> None:
    podman = Podman(FakeProcesses({("podman",): Completed("", "Error: no such container", 125)}))

    with pytest.raises(NotFound):
        podman.exec("c1", ["true"], timeout_s=5, check=False)


def test_limits_never_exceed_those_of_this_machine() -> None:
    options = ulimits()
    soft, hard = options[1].removeprefix("nofile=").split(":")

    assert options[0] == options[2] == "--ulimit"
    assert soft == hard
    assert int(hard) > 0


@pytest.mark.parametrize("text", ["[" * 100_000, "garbage", "[1", "[{}]", "5"])
def test_a_podman_that_talks_nonsense_is_said_to(text: str) -> None:
    with pytest.raises(UnexpectedOutput, match="podman ps"):
        parse_containers(text)
