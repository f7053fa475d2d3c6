"""Commands on machines by Systems Manager."""

from __future__ import annotations

import subprocess

import pytest

from hyperpod.adapters.aws.commands import SsmConnection, command_line
from hyperpod.errors import CommandError, CommandTimeout, ProviderUnavailable
from tests.adapters.test_local_provider import Clock
from tests.fakes.aws import AccountAws

INSTANCE = "i-00000000000000abc"


@pytest.fixture
def connection(aws: AccountAws) -> SsmConnection:
    clock = Clock()
    aws.answers["SendCommand"] = [{"Command": {"CommandId": "0" * 36}}]
    return SsmConnection(aws, INSTANCE, sleep=clock.sleep, monotonic=clock.monotonic)


def test_a_command_is_waited_for_and_its_output_comes_back(aws: AccountAws, connection: SsmConnection) -> None:
    aws.answers["GetCommandInvocation"] = [
        {"Status": "InProgress"},
        {"Status": "Success", "StandardOutputContent": "worker-1\n", "ResponseCode": 0},
    ]
    aws.fail_next("GetCommandInvocation", "InvocationDoesNotExist", message="not found")

    assert connection.run(["hostname"], timeout_s=30).stdout == "worker-1\n"
    sent = next(p for operation, p in aws.calls if operation == "SendCommand")
    assert sent["Parameters"]["commands"] == ["hostname </dev/null"]


def test_a_failed_command_is_an_error_unless_it_may_fail(aws: AccountAws, connection: SsmConnection) -> None:
    aws.answers["GetCommandInvocation"] = [
        {"Status": "Failed", "StandardErrorContent": "no such node", "ResponseCode": 3}
    ]

    with pytest.raises(CommandError, match="no such node"):
        connection.run(["scontrol"], timeout_s=30)
    assert connection.run(["scontrol"], timeout_s=30, check=False).code == 3


def test_a_machine_without_the_agent_is_named_so(aws: AccountAws, connection: SsmConnection) -> None:
    aws.fail_next("SendCommand", "InvalidInstanceId", message="Instances not in a valid state for account")

    with pytest.raises(ProviderUnavailable, match="not known to Systems Manager"):
        connection.run(["true"], timeout_s=5)


def test_a_command_that_never_ends_is_given_up(aws: AccountAws, connection: SsmConnection) -> None:
    aws.answers["GetCommandInvocation"] = [{"Status": "InProgress"}]

    with pytest.raises(CommandTimeout):
        connection.run(["sleep", "99"], timeout_s=5)


def test_arguments_and_input_survive_the_shell() -> None:
    odd = "a b'c\"$(false)\n"
    line = command_line(["printf", "%s", odd], None)
    assert subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout == odd
    line = command_line(["cat"], odd)
    assert subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout == odd


def test_a_shell_opens_by_the_session_manager(connection: SsmConnection) -> None:
    argv = connection.shell_argv(["squeue", "--me"], user="ubuntu")

    assert argv[:5] == ["aws", "ssm", "start-session", "--target", INSTANCE]
    assert argv[-1] == "command=sudo --login --user=ubuntu squeue --me"
