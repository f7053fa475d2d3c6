"""The argument lists given to Slurm's tools."""

from __future__ import annotations

import pytest

from hyperpod.adapters.slurm import commands
from hyperpod.errors import UsageError


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (commands.show_nodes(), "scontrol --all show nodes --json"),
        (commands.show_nodes(json=False), "scontrol --all -o show nodes"),
        (commands.show_node("worker-1"), "scontrol show node worker-1 --json"),
        (commands.show_jobs(), "squeue --json --all --states=all"),
        (commands.show_jobs(json=False), "scontrol --all -o show jobs"),
        (commands.show_job(7), "squeue --json --all --states=all --jobs=7"),
        (commands.show_job(7, json=False), "scontrol --all -o show job 7"),
        (commands.show_partitions(), "scontrol --all show partitions --json"),
        (commands.set_node_state("worker-1", "resume"), "scontrol update nodename=worker-1 state=resume"),
        (
            commands.set_node_address("worker-1", "10.0.0.9"),
            "scontrol update nodename=worker-1 nodeaddr=10.0.0.9 nodehostname=worker-1",
        ),
        (commands.set_partition_nodes("dev", ["a-1", "a-2"]), "scontrol update partitionname=dev nodes=a-1,a-2"),
        (commands.set_partition_nodes("dev", []), "scontrol update partitionname=dev nodes="),
        (commands.set_job(7, "starttime", "now"), "scontrol update jobid=7 starttime=now"),
        (commands.requeue(7), "scontrol requeue 7"),
        (commands.release(7), "scontrol release 7"),
        (commands.kill_step(7, 0), "scancel --state=RUNNING --signal=KILL 7.0"),
        (commands.kill_step(7, -5), "scancel --state=RUNNING --signal=KILL --batch 7"),
        (commands.kill_step(7, -6), "scancel --state=RUNNING --signal=KILL 7.interactive"),
    ],
)
def test_builds_the_argument_list(argv: list[str], expected: str) -> None:
    assert argv == expected.split(" ")


def test_a_reason_is_one_argument_whatever_is_in_it() -> None:
    argv = commands.set_node_state("worker-1", "drain", "disk full; rm -rf / 'x'")
    assert argv == ["scontrol", "update", "nodename=worker-1", "state=drain", "reason=disk full; rm -rf / 'x'"]


def test_refuses_to_kill_a_step_without_a_name() -> None:
    with pytest.raises(UsageError, match="step -2 of job 7"):
        commands.kill_step(7, -2)
