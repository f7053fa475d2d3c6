"""slurm.conf as text: what repair and resume rely on is in it, and the same layout gives the same file."""

from __future__ import annotations

from dataclasses import replace

from hyperpod.adapters.slurm.conf import (
    SlurmLayout,
    SlurmNode,
    SlurmPartition,
    render_cgroup_conf,
    render_plugstack_conf,
    render_slurm_conf,
)

LAYOUT = SlurmLayout(
    cluster="demo",
    head_name="head-1",
    head_address="10.89.1.10",
    nodes=tuple(SlurmNode(f"worker-{i}", f"10.89.1.{10 + i}", 2, 1024) for i in (1, 2, 3)),
    partitions=(SlurmPartition("dev", ("worker-1", "worker-2"), is_default=True), SlurmPartition("big", ())),
    spares=("worker-3",),
)


def values(text: str) -> dict[str, str]:
    """Return the plain parameters of a slurm.conf; nodes and partitions are left out."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "NodeName", "PartitionName"))]
    return dict(line.split("=", 1) for line in lines)


def lines(text: str, start: str) -> list[str]:
    """Return the lines which begin with a word."""
    return [line for line in text.splitlines() if line.startswith(start)]


def test_every_node_has_its_address_so_that_no_resolver_can_block_slurmctld() -> None:
    assert lines(render_slurm_conf(LAYOUT), "NodeName")[0] == (
        "NodeName=worker-1 NodeAddr=10.89.1.11 Port=6818 CPUs=2 RealMemory=1024 State=UNKNOWN"
    )


def test_the_head_node_is_in_no_partition_and_runs_no_slurmd() -> None:
    text = render_slurm_conf(LAYOUT)

    assert values(text)["SlurmctldHost"] == "head-1(10.89.1.10)"
    assert not any("head-1" in line for line in lines(text, "NodeName") + lines(text, "PartitionName"))


def test_spares_wait_in_a_hidden_partition_of_root() -> None:
    spare = lines(render_slurm_conf(LAYOUT), "PartitionName=hyperpod-spare")

    assert spare == ["PartitionName=hyperpod-spare Nodes=worker-3 Default=NO Hidden=YES RootOnly=YES State=UP"]
    assert "worker-3" not in lines(render_slurm_conf(LAYOUT), "PartitionName=dev")[0]


def test_without_spares_there_is_no_spare_partition() -> None:
    assert "hyperpod-spare" not in render_slurm_conf(replace(LAYOUT, spares=()))


def test_a_partition_without_nodes_names_none_at_all() -> None:
    assert lines(render_slurm_conf(LAYOUT), "PartitionName=big") == [
        "PartitionName=big Default=NO MaxTime=INFINITE State=UP"
    ]


def test_exactly_one_partition_is_the_default() -> None:
    assert sum("Default=YES" in line for line in lines(render_slurm_conf(LAYOUT), "PartitionName")) == 1


def test_a_node_that_was_down_does_not_come_back_by_itself() -> None:
    assert values(render_slurm_conf(LAYOUT))["ReturnToService"] == "0"


def test_a_requeued_jobs_log_is_continued_and_ended_jobs_are_remembered() -> None:
    found = values(render_slurm_conf(LAYOUT))

    assert (found["JobFileAppend"], found["JobRequeue"], found["MinJobAge"]) == ("1", "1", "3600")


def test_no_parameter_is_given_twice() -> None:
    text = render_slurm_conf(replace(LAYOUT, parameters={"KillWait": "30", "DebugFlags": "Power"}))
    names = [line.partition("=")[0].lower() for line in text.splitlines() if "=" in line and not line.startswith("#")]
    single = [name for name in names if name not in ("nodename", "partitionname")]

    assert len(single) == len(set(single))


def test_a_parameter_of_the_specification_wins_whatever_its_case() -> None:
    found = values(render_slurm_conf(replace(LAYOUT, parameters={"killwait": "30", "DebugFlags": "Power"})))

    assert (found["KillWait"], found["DebugFlags"]) == ("30", "Power")


def test_the_order_of_parameters_does_not_matter() -> None:
    one = replace(LAYOUT, parameters={"A": "1", "B": "2"})
    other = replace(LAYOUT, parameters={"B": "2", "A": "1"})

    assert render_slurm_conf(one) == render_slurm_conf(other)


def test_a_default_time_is_rounded_up_to_minutes() -> None:
    assert "DefaultTime=2 " in lines(render_slurm_conf(replace(LAYOUT, default_time_s=61)), "PartitionName=dev")[0]


def test_no_file_includes_others_by_a_pattern() -> None:
    texts = (render_slurm_conf(LAYOUT), render_cgroup_conf(), render_plugstack_conf())

    assert not any("include" in text.lower() for text in texts)


def test_a_plugin_that_does_not_load_never_stops_a_job() -> None:
    assert render_plugstack_conf() == "optional /usr/lib/x86_64-linux-gnu/slurm-wlm/hyperpod.so\n"


def test_the_plugin_is_told_when_jobs_that_say_nothing_are_armed() -> None:
    line = render_plugstack_conf(default_on=True)
    assert line == "optional /usr/lib/x86_64-linux-gnu/slurm-wlm/hyperpod.so default=on\n"
