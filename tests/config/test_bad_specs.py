"""Tables of wrong specs with the exact line that a person sees."""

from __future__ import annotations

import pytest
from spec_texts import LOCAL, LoadText, Mistakes

from hyperpod.health import registry

# (what is replaced, by what, the lines expected)
WRONG_IN_ONE_PLACE: dict[str, tuple[str, str, list[str]]] = {
    "a misspelt key of a group": (
        "    InstanceCount: 4",
        "    InstanceCont: 4",
        ["cluster.yaml:7: at InstanceGroups[1].InstanceCont: unknown key; did you mean InstanceCount?"],
    ),
    "a key of nobody": (
        "ClusterName: demo",
        "ClusterName: demo\nZzz: 1",
        [
            "cluster.yaml:2: at Zzz: unknown key; valid keys: Hyperpod, AutoScaling, ClusterName, ClusterRole, "
            "InstanceGroups, NodeProvisioningMode, NodeRecovery, Orchestrator, RestrictedInstanceGroups, "
            "RestrictedInstanceGroupsConfig, Tags, TieredStorageConfig, VpcConfig"
        ],
    ),
    "a key of the block at the top": (
        "ClusterName: demo",
        "ClusterName: demo\nspares: 1",
        ["cluster.yaml:2: at spares: unknown key; did you mean Hyperpod.Spares?"],
    ),
    "the block misspelt": (
        "Hyperpod:",
        "HyperPod:",
        ["cluster.yaml:9: at HyperPod: unknown key; did you mean Hyperpod?"],
    ),
    "an underscore in the name": (
        "ClusterName: demo",
        "ClusterName: my_demo",
        ["cluster.yaml:1: at ClusterName: 'my_demo': allowed are letters, digits and '-' between them"],
    ),
    "a name too long": (
        "ClusterName: demo",
        f"ClusterName: {'x' * 64}",
        ["cluster.yaml:1: at ClusterName: must have 1 to 63 characters, got 64"],
    ),
    "a number as a name": (
        "ClusterName: demo",
        "ClusterName: 17",
        ["cluster.yaml:1: at ClusterName: must be text, got 17; put it in quotes"],
    ),
    "no name": (
        "ClusterName: demo\n",
        "",
        ["cluster.yaml:1: at ClusterName: is required but missing"],
    ),
    "a count as text": (
        "    InstanceCount: 4",
        '    InstanceCount: "4"',
        ["cluster.yaml:7: at InstanceGroups[1].InstanceCount: must be a whole number, got '4'"],
    ),
    "a count below zero": (
        "    InstanceCount: 4",
        "    InstanceCount: -1",
        [
            "cluster.yaml:2: at InstanceGroups: no workers; at least one worker group needs InstanceCount 1 or more",
            "cluster.yaml:7: at InstanceGroups[1].InstanceCount: must be 0 to 6758, got -1",
        ],
    ),
    "a count above the service's limit": (
        "    InstanceCount: 4",
        "    InstanceCount: 7000",
        ["cluster.yaml:7: at InstanceGroups[1].InstanceCount: must be 0 to 6758, got 7000"],
    ),
    "no workers": (
        "    InstanceCount: 4\n    SlurmConfig: {NodeType: Compute, PartitionNames: [dev]}\n"
        "Hyperpod:\n  Provider: local\n  Spares: 1",
        "    InstanceCount: 0\n    SlurmConfig: {NodeType: Compute, PartitionNames: [dev]}\n"
        "Hyperpod:\n  Provider: local",
        ["cluster.yaml:2: at InstanceGroups: no workers; at least one worker group needs InstanceCount 1 or more"],
    ),
    "an instance type that is not one": (
        "    InstanceCount: 4",
        "    InstanceCount: 4\n    InstanceType: ml.c5.xlarg",
        [
            "cluster.yaml:8: at InstanceGroups[1].InstanceType: 'ml.c5.xlarg' is not a valid value; "
            "did you mean ml.c5.xlarge?"
        ],
    ),
    "a role in lower case": (
        "NodeType: Compute",
        "NodeType: compute",
        [
            "cluster.yaml:8: at InstanceGroups[1].SlurmConfig.NodeType: must be one of Controller, Login, Compute, "
            "got 'compute'; did you mean Compute?"
        ],
    ),
    "two head node groups": (
        "NodeType: Compute, PartitionNames: [dev]",
        "NodeType: Controller",
        [
            "cluster.yaml:2: at InstanceGroups: no workers; at least one worker group needs InstanceCount 1 or more",
            "cluster.yaml:6: at InstanceGroups[1]: second head node group worker; head is one, and only one is allowed",
        ],
    ),
    "no head node": (
        "NodeType: Controller",
        "NodeType: Login",
        ["cluster.yaml:2: at InstanceGroups: no head node group; exactly one group needs that role"],
    ),
    "two head nodes in the group": (
        "    InstanceCount: 1",
        "    InstanceCount: 2",
        ["cluster.yaml:4: at InstanceGroups[0].InstanceCount: the head node group head needs InstanceCount 1, got 2"],
    ),
    "a head node in a partition": (
        "{NodeType: Controller}",
        "{NodeType: Controller, PartitionNames: [dev]}",
        [
            "cluster.yaml:5: at InstanceGroups[0].SlurmConfig: head group head cannot be in a partition, got dev; "
            "only workers can"
        ],
    ),
    "a login group in a partition": (
        "  - InstanceGroupName: worker",
        "  - InstanceGroupName: login\n    InstanceCount: 1\n"
        "    SlurmConfig: {NodeType: Login, PartitionNames: [dev]}\n  - InstanceGroupName: worker",
        [
            "cluster.yaml:8: at InstanceGroups[1].SlurmConfig: login group login cannot be in a partition, got dev; "
            "only workers can"
        ],
    ),
    "workers in no partition": (
        ", PartitionNames: [dev]",
        "",
        ["cluster.yaml:8: at InstanceGroups[1].SlurmConfig: worker group worker needs the name of a partition"],
    ),
    "a reserved partition": (
        "[dev]",
        "[hyperpod-spare]",
        ["cluster.yaml:8: at InstanceGroups[1].SlurmConfig: partition name hyperpod-spare is reserved; choose another"],
    ),
    "a name twice": (
        "InstanceGroupName: worker",
        "InstanceGroupName: head",
        [
            "cluster.yaml:6: at InstanceGroups[1].InstanceGroupName: head is already the name of another group; "
            "every group needs its own"
        ],
    ),
    "names that differ in case": (
        "InstanceGroupName: worker",
        "InstanceGroupName: HEAD",
        [
            "cluster.yaml:6: at InstanceGroups[1].InstanceGroupName: HEAD differs from head only in case; "
            "every group needs its own"
        ],
    ),
    "one group without a role": (
        "    SlurmConfig: {NodeType: Controller}\n",
        "",
        [
            "cluster.yaml:3: at InstanceGroups[0]: has no SlurmConfig while other groups have one; "
            "give every group its NodeType"
        ],
    ),
    "as many spares as nodes": (
        "Spares: 1",
        "Spares: 4",
        [
            "cluster.yaml:11: at Hyperpod.Spares.worker: group worker has 4 instances, so at most 3 can be spares, "
            "got 4; at least one must work"
        ],
    ),
    "spares below zero": (
        "Spares: 1",
        "Spares: {worker: -1}",
        ["cluster.yaml:11: at Hyperpod.Spares.worker: must be at least 0, got -1"],
    ),
    "spares of an unknown group": (
        "Spares: 1",
        "Spares: {workers: 1}",
        ["cluster.yaml:11: at Hyperpod.Spares.workers: no instance group workers; did you mean worker?"],
    ),
    "spares of the head node": (
        "Spares: 1",
        "Spares: {head: 1}",
        ["cluster.yaml:11: at Hyperpod.Spares.head: head group head cannot have spares; only worker groups can"],
    ),
    "a bare number of spares with two worker groups": (
        "Hyperpod:",
        "  - InstanceGroupName: more\n    InstanceCount: 1\n"
        "    SlurmConfig: {NodeType: Compute, PartitionNames: [dev]}\nHyperpod:",
        [
            "cluster.yaml:14: at Hyperpod.Spares: a bare number needs exactly one worker group, there are 2 "
            "(worker, more); write 'GROUP: 1'"
        ],
    ),
    "a provider that is not one": (
        "Provider: local",
        "Provider: locl",
        [
            "cluster.yaml:10: at Hyperpod.Provider: must be one of local, ec2, sagemaker, got 'locl'; "
            "did you mean local?"
        ],
    ),
    "a default partition of nobody": (
        "Spares: 1",
        "Slurm: {DefaultPartition: prod}",
        [
            "cluster.yaml:11: at Hyperpod.Slurm.DefaultPartition: no worker group is in partition prod; "
            "partitions are dev"
        ],
    ),
    "Slurm's own parameter": (
        "Spares: 1",
        "Slurm: {Parameters: {SlurmctldHost: x}}",
        ["cluster.yaml:11: at Hyperpod.Slurm.Parameters: SlurmctldHost is set by hyperpod and cannot be given here"],
    ),
    "a parameter with a second line": (
        "Spares: 1",
        'Slurm: {Parameters: {Foo: "a\\nb"}}',
        ["cluster.yaml:11: at Hyperpod.Slurm.Parameters: the value of Foo must be one line of text without '#'"],
    ),
    "a duration without sense": (
        "Spares: 1",
        "Resume: {Lease: 10 parsecs}",
        ["cluster.yaml:11: at Hyperpod.Resume.Lease: must be a duration such as 90, 90s, 5m or 1h, got '10 parsecs'"],
    ),
    "a duration below zero": (
        "Spares: 1",
        "Resume: {Lease: -1}",
        ["cluster.yaml:11: at Hyperpod.Resume.Lease: must be a duration such as 90, 90s, 5m or 1h, got -1"],
    ),
    "a duration below the least": (
        "Spares: 1",
        "Health: {Checks: {disk: {Interval: 100ms}}}",
        ["cluster.yaml:11: at Hyperpod.Health.Checks.disk.Interval: must be at least 1 s, got 0.1 s"],
    ),
    "a default time below a minute": (
        "Spares: 1",
        "Slurm: {JobDefaultTime: 59}",
        ["cluster.yaml:11: at Hyperpod.Slurm.JobDefaultTime: must be at least 60 s, got 59 s"],
    ),
    "a duration above the most": (
        "Spares: 1",
        "Resume: {StepKillGrace: 1h}",
        ["cluster.yaml:11: at Hyperpod.Resume.StepKillGrace: must be at most 600 s, got 3600 s"],
    ),
    "a duration of years": (
        "Spares: 1",
        "Repair: {BreakerWindow: 1000d}",
        ["cluster.yaml:11: at Hyperpod.Repair.BreakerWindow: must be a duration of at most a year, got '1000d'"],
    ),
    "a number above the most": (
        "Spares: 1",
        "Repair: {MaxUnhealthyPercentage: 101}",
        ["cluster.yaml:11: at Hyperpod.Repair.MaxUnhealthyPercentage: must be at most 100, got 101"],
    ),
    "a text that is a number": (
        "Spares: 1",
        "SharedStorage: 5",
        ["cluster.yaml:11: at Hyperpod.SharedStorage: must be text, got 5"],
    ),
    "no name of a parameter": (
        "Spares: 1",
        "Slurm: {Parameters: {'Foo Bar': 1}}",
        ["cluster.yaml:11: at Hyperpod.Slurm.Parameters: 'Foo Bar' is not the name of a slurm.conf parameter"],
    ),
    "a parameter that is a list": (
        "Spares: 1",
        "Slurm: {Parameters: {Foo: [1]}}",
        ["cluster.yaml:11: at Hyperpod.Slurm.Parameters.Foo: must be text, got a list"],
    ),
    "a parameter twice for Slurm": (
        "Spares: 1",
        "Slurm: {Parameters: {Foo: 1, FOO: 2}}",
        ["cluster.yaml:11: at Hyperpod.Slurm.Parameters: Foo and FOO are the same parameter for Slurm"],
    ),
    "a broken template": (
        "Spares: 1",
        "Resume: {CheckpointDir: '/fsx/{user'}",
        [
            "cluster.yaml:11: at Hyperpod.Resume.CheckpointDir: expected '}' before end of string; "
            "allowed fields are {job_id}, {job_name}, {user}"
        ],
    ),
    "a subnet too large": (
        "Spares: 1",
        "Local: {Subnet: 10.0.0.0/8}",
        ["cluster.yaml:11: at Hyperpod.Local.Subnet: must have a prefix length from 16 to 29, got 10.0.0.0/8"],
    ),
    "a lease shorter than the silence that counts": (
        "Spares: 1",
        "Resume: {Lease: 2s}",
        ["cluster.yaml:11: at Hyperpod.Resume: Lease (2 s) must be at least HeartbeatInterval x HeartbeatMisses (3 s)"],
    ),
    "a switch as a number": (
        "Spares: 1",
        "Resume: {Default: 1}",
        ["cluster.yaml:11: at Hyperpod.Resume.Default: must be on or off, got 1"],
    ),
    "a switch as a word": (
        "Spares: 1",
        "Resume: {Default: perhaps}",
        ["cluster.yaml:11: at Hyperpod.Resume.Default: must be on or off, got 'perhaps'"],
    ),
    "a number as a switch": (
        "Spares: 1",
        "Resume: {MaxAttempts: on}",
        ["cluster.yaml:11: at Hyperpod.Resume.MaxAttempts: must be a number, got on"],
    ),
    "half a number": (
        "Spares: 1",
        "Resume: {MaxAttempts: 2.5}",
        ["cluster.yaml:11: at Hyperpod.Resume.MaxAttempts: must be a whole number, got 2.5"],
    ),
    "a policy word that is none": (
        "Spares: 1",
        "Resume: {OnTimeLimit: stopp}",
        ["cluster.yaml:11: at Hyperpod.Resume.OnTimeLimit: must be stop or resume, got 'stopp'; did you mean stop?"],
    ),
    "a misspelt key in the block": (
        "Spares: 1",
        "Repair: {BreakerNode: 2}",
        ["cluster.yaml:11: at Hyperpod.Repair.BreakerNode: unknown key; did you mean BreakerNodes?"],
    ),
    "Python's spelling of a key": (
        "Spares: 1",
        "Repair: {breaker_nodes: 2}",
        ["cluster.yaml:11: at Hyperpod.Repair.breaker_nodes: unknown key; did you mean BreakerNodes?"],
    ),
    "a section that is a list": (
        "Spares: 1",
        "Repair: [1]",
        ["cluster.yaml:11: at Hyperpod.Repair: must be a mapping, got a list"],
    ),
    "a checkpoint folder with an unknown field": (
        "Spares: 1",
        "Resume: {CheckpointDir: '/fsx/{jobid}'}",
        [
            "cluster.yaml:11: at Hyperpod.Resume.CheckpointDir: unknown field {jobid}; "
            "allowed are {job_id}, {job_name}, {user}"
        ],
    ),
    "a checkpoint folder that is relative": (
        "Spares: 1",
        "Resume: {CheckpointDir: ckpt}",
        ["cluster.yaml:11: at Hyperpod.Resume.CheckpointDir: must be an absolute path without '..', got 'ckpt'"],
    ),
    "a subnet that is none": (
        "Spares: 1",
        "Local: {Subnet: 10.0.0.1/24}",
        [
            "cluster.yaml:11: at Hyperpod.Local.Subnet: must be an IPv4 network such as 10.89.40.0/24, "
            "got '10.0.0.1/24' (10.0.0.1/24 has host bits set)"
        ],
    ),
    "podman's own subnet": (
        "Spares: 1",
        "Local: {Subnet: 10.88.5.0/24}",
        [
            "cluster.yaml:11: at Hyperpod.Local.Subnet: 10.88.5.0/24 overlaps 10.88.0.0/16 (podman's default network); "
            "choose another such as 10.89.40.0/24"
        ],
    ),
    "a public subnet": (
        "Spares: 1",
        "Local: {Subnet: 8.8.8.0/24}",
        [
            "cluster.yaml:11: at Hyperpod.Local.Subnet: must be a private network (10.0.0.0/8, 172.16.0.0/12 or "
            "192.168.0.0/16), got 8.8.8.0/24"
        ],
    ),
    "a shared folder that is missing": (
        "Spares: 1",
        "SharedStorage: /nowhere/fsx",
        [
            "cluster.yaml:11: at Hyperpod.SharedStorage: folder /nowhere/fsx does not exist; "
            "make it first: mkdir -p /nowhere/fsx"
        ],
    ),
    "a shared folder of the system": (
        "Spares: 1",
        "SharedStorage: /etc",
        ["cluster.yaml:11: at Hyperpod.SharedStorage: /etc belongs to this machine's system; give a folder of its own"],
    ),
    "a key twice": (
        "  Spares: 1",
        "  Spares: 1\n  Spares: 2",
        ["cluster.yaml:12: at Hyperpod.Spares: key given twice, first on line 11"],
    ),
}


@pytest.mark.parametrize("case", WRONG_IN_ONE_PLACE)
def test_one_mistake_gives_exactly_its_line(case: str, mistakes: Mistakes) -> None:
    old, new, expected = WRONG_IN_ONE_PLACE[case]
    assert LOCAL.count(old) >= 1
    assert mistakes(LOCAL.replace(old, new, 1)) == expected


def test_all_mistakes_are_shown_at_once_in_the_order_of_the_file(mistakes: Mistakes) -> None:
    text = LOCAL.replace("demo", "my_demo").replace("InstanceCount: 4", "InstanceCont: 4").replace("local", "locl")
    assert [line.split(": ")[0] for line in mistakes(text)] == ["cluster.yaml:1", "cluster.yaml:7", "cluster.yaml:10"]


def test_more_than_fifty_mistakes_are_cut(mistakes: Mistakes) -> None:
    lines = mistakes("".join(f"Zzz{number}: 1\n" for number in range(60)))
    assert len(lines) == 51
    assert lines[-1] == "cluster.yaml: and 12 more mistakes"


def test_a_subnet_too_small_for_the_nodes_is_named_with_its_room(mistakes: Mistakes) -> None:
    text = LOCAL.replace("InstanceCount: 4", "InstanceCount: 5") + "  Local: {Subnet: 10.1.2.8/29}\n"
    assert mistakes(text) == [
        "cluster.yaml:12: at Hyperpod.Local.Subnet: 10.1.2.8/29 has room for 5 nodes, the spec has 6; "
        "give a larger network"
    ]


def test_a_group_name_that_makes_host_names_too_long_is_refused(mistakes: Mistakes) -> None:
    text = LOCAL.replace("InstanceGroupName: worker", f"InstanceGroupName: {'w' * 63}")
    assert mistakes(text) == [
        "cluster.yaml:6: at InstanceGroups[1].InstanceGroupName: node names such as wwwwwwwwwwww…-4 would be longer "
        "than a host name may be (63)"
    ]


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ("{dsk: {Mode: off}}", ".dsk: there is no such check; did you mean disk?"),
        (
            "{disk: {Settings: {fatal_percnt: 1}}}",
            ".disk.Settings.fatal_percnt: there is no such setting; did you mean fatal_percent?",
        ),
        (
            "{group: {Settings: {min_node: 4}}}",
            ".group.Settings.min_node: there is no such setting; did you mean min_nodes?",
        ),
        ("{disk: {Mod: off}}", ".disk.Mod: unknown key; did you mean Mode?"),
        ("{disk: {ObserveOnly: on}}", ".disk.ObserveOnly: unknown key; write Mode: observe"),
        ("{disk: {Enabled: off}}", ".disk.Enabled: unknown key; write Mode: off or Mode: act"),
        ("{disk: {Mode: obsrve}}", ".disk.Mode: must be one of act, observe, off, got 'obsrve'; did you mean observe?"),
        ("{disk: {Mode: on}}", ".disk.Mode: must be one of act, observe, off, got true"),
        ("{disk: {Damping: [3, 2]}}", ".disk.Damping: must be [n, m] with 1 <= n <= m <= 100, got [3, 2]"),
        (
            "{disk: {Overrides: {DiskFul: warn}}}",
            ".disk.Overrides.DiskFul: there is no such code; did you mean DiskFull?",
        ),
        (
            "{kernel_log: {Overrides: {Xid94: deadly}}}",
            ".kernel_log.Overrides.Xid94: must be one of ok, warn, fatal, got 'deadly'",
        ),
        (
            "{disk: {Settings: {damping: [1, 1]}}}",
            ".disk.Settings: damping is given as Damping beside Settings",
        ),
        ("{disk: 5}", ".disk: must be a mapping, got 5"),
        ("{DISK: {Mode: off}}", ".DISK: there is no such check; did you mean disk?"),
        ("{disk: {Mode: off}, Disk: {Mode: act}}", ".Disk: there is no such check; did you mean disk?"),
        ("{coffee: {}}", ".coffee: there is no such check; 'hyperpod checks list' has all"),
        (
            "{default: {Mode: observe}}",
            ".default: there is no such check; the mode of checks that name none is Hyperpod.Health.Default",
        ),
        (
            "{user.fans.sh: {Mode: off}}",
            ".user.fans.sh: a check of the site is named user.NAME, without its file's .sh or .py: letters, digits, "
            "'-' and '_'",
        ),
        (
            "{user.fans: {Settings: {timeout: 5}}}",
            ".user.fans.Settings.timeout: there is no such setting; known: interval_s, deadline_s, damping",
        ),
        (
            "{disk: {Settings: {Warn_Percent: 3}}}",
            ".disk.Settings.Warn_Percent: there is no such setting; did you mean warn_percent?",
        ),
        (
            "{disk: {Settings: {warn_percent: 15%}}}",
            ".disk.Settings.warn_percent: must be a number from 0 to 100, in percent, got '15%'",
        ),
        (
            "{disk: {Settings: {warn_percent: -3}}}",
            ".disk.Settings.warn_percent: must not be negative, got -3",
        ),
        (
            "{disk: {Mode: off, Settings: {paths: /}}}",
            ".disk.Settings.paths: must be a list, got '/'",
        ),
        (
            "{disk: {Settings: {warn_percent: 1, fatal_percent: 5}}}",
            ".disk.Settings.warn_percent: must be at least fatal_percent (5), or it is FATAL before it is WARN; got 1",
        ),
        (
            "{munge: {Settings: {warn_offset_s: 300, fatal_offset_s: 30}}}",
            ".munge.Settings.warn_offset_s: must be at most fatal_offset_s (30), or it is FATAL before it is WARN; "
            "got 300",
        ),
        ("{disk: {Settings: [warn_percent]}}", ".disk.Settings: must be a mapping, got a list"),
        (
            "{disk: {Interval: 5 parsecs}}",
            ".disk.Interval: must be a duration such as 90, 90s, 5m or 1h, got '5 parsecs'",
        ),
        ("{disk: {Settings: {deadline_s: 1m}}}", ".disk.Settings.deadline_s: must be a number of seconds, got '1m'"),
        ("{disk: {Settings: {deadline_s: 0}}}", ".disk.Settings.deadline_s: must be from 0.1 to 600 seconds, got 0"),
        (
            "{kernel_log: {Settings: {forget_s: 1h}}}",
            ".kernel_log.Settings.forget_s: must be a number of seconds, got '1h'",
        ),
        ("{kernel_log: {Settings: {limit: .nan}}}", ".kernel_log.Settings.limit: must be a number, got nan"),
        (
            "{kernel_log: {Overrides: {xid79: warn}}}",
            ".kernel_log.Overrides.xid79: there is no such code; did you mean Xid79?",
        ),
        (
            "{kernel_log: {Overrides: {79: warn}}}",
            ".kernel_log.Overrides.79: there is no such code; did you mean Xid79?",
        ),
        (
            "{kernel_log: {Overrides: {SXID-12: warn}}}",
            ".kernel_log.Overrides.SXID-12: there is no such code; did you mean SXid12?",
        ),
        (
            "{kernel_log: {Overrides: {Coffee: warn}}}",
            ".kernel_log.Overrides.Coffee: there is no such code; 'hyperpod checks describe kernel_log' has all",
        ),
        ("{kernel_log: {Overrides: {Xid79: off}}}", ".kernel_log.Overrides.Xid79: must be text, got false"),
        ("{disk: {Damping: 2}}", ".disk.Damping: must be [n, m] with 1 <= n <= m <= 100, got 2"),
        ("{disk: {Damping: [2]}}", ".disk.Damping: must be [n, m] with 1 <= n <= m <= 100, got [2]"),
        ("{disk: {Damping: [1.5, 2]}}", ".disk.Damping: must be [n, m] with 1 <= n <= m <= 100, got [1.5, 2]"),
        (
            "{group: {Settings: {majority: 60}}}",
            ".group.Settings.majority: must be above 0.5 and at most 1, got 60",
        ),
        (
            "{group: {Interval: 5m}}",
            ".group.Interval: there is no such setting; known: min_nodes, majority, most_broken, settle_s, "
            "memory_percent, ignore",
        ),
        (
            "{ec2_spot: {Interval: 5s}}",
            ".ec2_spot.Interval: there is no such setting; it has a Mode only",
        ),
        (
            "{ec2_spot: {Overrides: {SpotInterruption: warn}}}",
            ".ec2_spot.Overrides.SpotInterruption: its codes keep their severity; set its mode instead",
        ),
        (
            "{deep: {Settings: {seconds: 5}}}",
            ".deep.Settings.seconds: there is no such setting; they are in Hyperpod.Health.Deep",
        ),
        (
            "{lease: {Mode: off}}",
            ".lease.Mode: its mode stays act: it drains nothing, and tells what the fencing has killed, which policy "
            "cannot switch off",
        ),
    ],
)
def test_a_bad_setting_of_a_health_check_is_named(checks: str, expected: str, mistakes: Mistakes) -> None:
    text = LOCAL + f"  Health: {{Checks: {checks}}}\n"
    assert mistakes(text, health=registry.complaints) == [f"cluster.yaml:12: at Hyperpod.Health.Checks{expected}"]


SEVERAL = """\
  Health:
    Default: wrn
    Checks:
      dsk: {Mode: off}
      disk: {Mode: obsrve, Settings: {warn_precent: 3, fatal_percent: lots}}
      load: {Damping: [3, 2], Overrides: {LoadHihg: warn}}
    Groups:
      worker: {Default: x, Checks: {lod: {}, disk: {Settings: {paths: /}}}}
      wrker: {}
  Resume: {MaxAttempts: many}
"""


def test_one_mistake_in_the_policy_hides_no_other(mistakes: Mistakes) -> None:
    health, mode = "at Hyperpod.Health", "must be one of act, observe, off"
    assert mistakes(LOCAL + SEVERAL, health=registry.complaints) == [
        f"cluster.yaml:13: {health}.Default: {mode}, got 'wrn'",
        f"cluster.yaml:15: {health}.Checks.dsk: there is no such check; did you mean disk?",
        f"cluster.yaml:16: {health}.Checks.disk.Mode: {mode}, got 'obsrve'; did you mean observe?",
        f"cluster.yaml:16: {health}.Checks.disk.Settings.warn_precent: there is no such setting; did you mean "
        "warn_percent?",
        f"cluster.yaml:16: {health}.Checks.disk.Settings.fatal_percent: must be a number from 0 to 100, in percent, "
        "got 'lots'",
        f"cluster.yaml:17: {health}.Checks.load.Damping: must be [n, m] with 1 <= n <= m <= 100, got [3, 2]",
        f"cluster.yaml:17: {health}.Checks.load.Overrides.LoadHihg: there is no such code; did you mean LoadHigh?",
        f"cluster.yaml:19: {health}.Groups.worker.Default: {mode}, got 'x'",
        f"cluster.yaml:19: {health}.Groups.worker.Checks.lod: there is no such check; did you mean load?",
        f"cluster.yaml:19: {health}.Groups.worker.Checks.disk.Settings.paths: must be a list, got '/'",
        f"cluster.yaml:20: {health}.Groups.wrker: no instance group wrker; did you mean worker?",
        "cluster.yaml:21: at Hyperpod.Resume.MaxAttempts: must be a whole number, got 'many'",
    ]


def test_what_the_cluster_says_wrongly_of_a_check_is_not_said_again_at_its_groups(mistakes: Mistakes) -> None:
    wrong = "disk: {Overrides: {DiskFul: warn}}"
    text = LOCAL + f"  Health: {{Checks: {{{wrong}}}, Groups: {{worker: {{Checks: {{disk: {{Mode: off}}}}}}}}}}\n"
    assert len(mistakes(text, health=registry.complaints)) == 1


def test_every_check_in_the_list_may_be_named(load_text: LoadText) -> None:
    names = ", ".join(f"{name}: {{Mode: act}}" for name in registry.names())
    text = LOCAL + f"  Health: {{Default: observe, Checks: {{{names}}}, Groups: {{worker: {{Checks: {{{names}}}}}}}}}\n"
    assert set(load_text(text, health=registry.complaints).spec.hyperpod.health.checks) == set(registry.names())


NHC = """\
  Health:
    Checks:
      nhc:
        Settings:
          lines:
            - "* || check_fs_free / 5%"
            - "{worker-[9-1]} || check_fs_free / 5%"
            - "* || check_fs_fre / 5%"
    Groups:
      worker:
        Checks:
          nhc:
            Settings:
              lines: ["* || check_hw_cpuinfo two"]
"""


def test_a_bad_line_of_an_nhc_conf_is_named_with_its_own_line(mistakes: Mistakes) -> None:
    lines = mistakes(LOCAL + NHC, health=registry.complaints)
    at = "at Hyperpod.Health.Checks.nhc.Settings.lines"
    assert len(lines) == 3
    assert lines[0].startswith(f"cluster.yaml:18: {at}[1]: worker-[9-1]: the range ends before it begins; hosts are *,")
    assert lines[1] == f"cluster.yaml:19: {at}[2]: there is no check check_fs_fre; did you mean check_fs_free?"
    assert lines[2] == (
        "cluster.yaml:25: at Hyperpod.Health.Groups.worker.Checks.nhc.Settings.lines[0]: 'two' is no whole number; "
        "check_hw_cpuinfo takes [SOCKETS] [CORES] [THREADS]"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ('{lines: "* || check_hw_eth e"}', ".lines: must be a list, got '* || check_hw_eth e'"),
        ("{lines: [5]}", ".lines: must be a list of texts, got [5]"),
        ("{file: nhc.conf}", ".file: must be the absolute path of a file on the nodes, got 'nhc.conf'"),
    ],
)
def test_what_is_no_list_of_lines_and_no_file_is_named(settings: str, expected: str, mistakes: Mistakes) -> None:
    text = LOCAL + f"  Health: {{Checks: {{nhc: {{Settings: {settings}}}}}}}\n"
    (line,) = mistakes(text, health=registry.complaints)
    assert line == f"cluster.yaml:12: at Hyperpod.Health.Checks.nhc.Settings{expected}"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{worker: {Checks: {dsk: {Mode: off}}}}", ".worker.Checks.dsk: there is no such check; did you mean disk?"),
        ("{worker: {Defualt: off}}", ".worker.Defualt: unknown key; did you mean Default?"),
        ("{workr: {Default: observe}}", ".workr: no instance group workr; did you mean worker?"),
        (
            "{worker: {Default: observe}, Worker: {Default: off}}",
            ".Worker: no instance group Worker; did you mean worker?",
        ),
        ("{worker: {Default: warn}}", ".worker.Default: must be one of act, observe, off, got 'warn'"),
        ("{worker: {Checks: {disk: {Modus: off}}}}", ".worker.Checks.disk.Modus: unknown key; did you mean Mode?"),
        (
            "{worker: {Checks: {lease: {Mode: observe}}}}",
            ".worker.Checks.lease.Mode: its mode stays act: it drains nothing, and tells what the fencing has killed, "
            "which policy cannot switch off",
        ),
        ("[worker]", ": must be a mapping, got a list"),
    ],
)
def test_a_bad_health_policy_of_a_group_is_named(groups: str, expected: str, mistakes: Mistakes) -> None:
    text = LOCAL + f"  Health: {{Groups: {groups}}}\n"
    assert mistakes(text, health=registry.complaints) == [f"cluster.yaml:12: at Hyperpod.Health.Groups{expected}"]
