"""Requests as AWS takes them: the exclusions that the API finds late, and the file with the roles."""

from __future__ import annotations

from typing import Any

import pytest
from spec_texts import LoadText, Mistakes, aws_group, aws_request

from hyperpod.core.node import Role
from hyperpod.core.spec import Provider

PARAMETERS: dict[str, Any] = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "head",
    "worker_groups": [{"instance_group_name": "worker", "partition_name": "dev"}],
    "fsx_dns_name": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    "fsx_mountname": "abcdefgh",
}
WITHOUT_ROLES: dict[str, Any] = {
    "ClusterName": "demo",
    "InstanceGroups": [aws_group("head", None), aws_group("worker", None, InstanceCount=2)],
}
FSX = {"DnsName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com", "MountName": "abc"}
SCRIPTS = "s3://sagemaker-scripts/prefix/"


def worker(**more: Any) -> dict[str, Any]:
    """Return a request whose second group is the worker group with more keys."""
    return aws_request(InstanceGroups=[aws_group("head", "Controller"), aws_group("worker", "Compute", **more)])


EXCLUSIONS: dict[str, tuple[dict[str, Any], str]] = {
    "both scripts": (
        worker(LifeCycleConfig={"SourceS3Uri": SCRIPTS, "OnCreate": "a.sh", "OnInitComplete": "b.sh"}),
        "27: at InstanceGroups[1].LifeCycleConfig.OnInitComplete: OnCreate and OnInitComplete exclude each "
        "other; give one",
    ),
    "a script from nowhere": (
        worker(LifeCycleConfig={"OnInitComplete": "a.sh"}),
        "25: at InstanceGroups[1].LifeCycleConfig.OnInitComplete: OnInitComplete needs SourceS3Uri, "
        "the folder with the script",
    ),
    "a folder without a script": (
        worker(LifeCycleConfig={"SourceS3Uri": SCRIPTS}),
        "25: at InstanceGroups[1].LifeCycleConfig.SourceS3Uri: SourceS3Uri without OnCreate or OnInitComplete "
        "runs nothing; "
        "name a script",
    ),
    "a local folder on AWS": (
        worker(LifeCycleConfig={"SourceS3Uri": "./scripts", "OnCreate": "a.sh"}),
        "25: at InstanceGroups[1].LifeCycleConfig.SourceS3Uri: './scripts' does not match the pattern "
        "(https|s3)://([^/]+)/?(.*)",
    ),
    "two ways to name a type": (
        worker(InstanceRequirements={"InstanceTypes": ["ml.c5.xlarge"]}),
        "24: at InstanceGroups[1].InstanceRequirements: InstanceType and InstanceRequirements exclude each "
        "other; give one",
    ),
    "a type without a value": (
        worker(InstanceType=None),
        "15: at InstanceGroups[1].InstanceType: has no value; give one or take the key out",
    ),
    "a least count without Continuous": (
        worker(MinInstanceCount=1),
        "24: at InstanceGroups[1].MinInstanceCount: MinInstanceCount needs NodeProvisioningMode: Continuous",
    ),
    "a least count above the count": (
        worker(MinInstanceCount=3) | {"NodeProvisioningMode": "Continuous"},
        "24: at InstanceGroups[1].MinInstanceCount: MinInstanceCount 3 is above InstanceCount 1",
    ),
    "Continuous with a strategy": (
        aws_request(NodeProvisioningMode="Continuous", Orchestrator={"Slurm": {"SlurmConfigStrategy": "Merge"}}),
        "29: at Orchestrator.Slurm.SlurmConfigStrategy: excludes NodeProvisioningMode Continuous; take one of "
        "the two out",
    ),
    "two storages in one entry": (
        worker(InstanceStorageConfigs=[{"EbsVolumeConfig": {"VolumeSizeInGB": 5}, "FsxLustreConfig": FSX}])
        | {"VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}},
        "25: at InstanceGroups[1].InstanceStorageConfigs[0]: needs exactly one of EbsVolumeConfig, FsxLustreConfig, "
        "FsxOpenZfsConfig, got 2",
    ),
    "two FSx of one kind": (
        worker(InstanceStorageConfigs=[{"FsxLustreConfig": FSX}, {"FsxLustreConfig": FSX}])
        | {"VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}},
        "32: at InstanceGroups[1].InstanceStorageConfigs[1].FsxLustreConfig: second FsxLustreConfig in this group; "
        "only one of a kind is allowed",
    ),
    "FSx without a VPC": (
        worker(InstanceStorageConfigs=[{"FsxLustreConfig": FSX}]),
        "24: at InstanceGroups[1].InstanceStorageConfigs: FSx file systems need VpcConfig, or OverrideVpcConfig "
        "in the group",
    ),
    "Kubernetes": (
        aws_request(Orchestrator={"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:111122223333:cluster/x"}}),
        "27: at Orchestrator.Eks: EKS clusters are not supported; use 'Slurm: {}' or take Orchestrator out",
    ),
    "Kubernetes labels": (
        worker(KubernetesConfig={"Labels": {"a": "b"}}),
        "24: at InstanceGroups[1].KubernetesConfig: works with EKS only; this is a Slurm cluster",
    ),
    "spot and on demand": (
        worker(CapacityRequirements={"Spot": {}, "OnDemand": {}}),
        "24: at InstanceGroups[1].CapacityRequirements: Spot and OnDemand exclude each other; give one",
    ),
    "spot and a training plan": (
        worker(
            CapacityRequirements={"Spot": {}},
            TrainingPlanArn="arn:aws:sagemaker:us-west-2:111122223333:training-plan/plan",
        ),
        "27: at InstanceGroups[1].TrainingPlanArn: TrainingPlanArn and CapacityRequirements Spot exclude each other",
    ),
    "Karpenter": (
        aws_request(AutoScaling={"Mode": "Enable"}),
        "26: at AutoScaling: works with EKS only; this is a Slurm cluster",
    ),
    "groups as a mapping": (
        {"ClusterName": "demo", "InstanceGroups": {}},
        "3: at InstanceGroups: must be a list, got a mapping",
    ),
    "no groups": (
        {"ClusterName": "demo"},
        "1: at InstanceGroups: is required but missing",
    ),
    "a short role": (
        worker(ExecutionRole="admin"),
        "17: at InstanceGroups[1].ExecutionRole: must have 20 to 2048 characters, got 5",
    ),
    "a tag's character": (
        aws_request(Tags=[{"Key": "größe 1", "Value": ""}, {"Key": "price", "Value": "€"}]),
        "33: at Tags[1].Value: '€' does not match the pattern ([\\p{L}\\p{Z}\\p{N}_.:/=+\\-@]*)",
    ),
    "our block as a list": (
        aws_request(Hyperpod=[1]),
        "26: at Hyperpod: must be a mapping, got a list",
    ),
}


@pytest.mark.parametrize("case", EXCLUSIONS)
def test_an_exclusion_gives_exactly_its_line(case: str, mistakes: Mistakes) -> None:
    request, expected = EXCLUSIONS[case]
    assert mistakes(request) == [f"cluster.json:{expected}"]


def test_a_role_that_is_missing_says_how_to_stay_on_this_machine(mistakes: Mistakes) -> None:
    request = aws_request()
    del request["InstanceGroups"][0]["ExecutionRole"]
    assert mistakes(request) == [
        "cluster.json:4: at InstanceGroups[0].ExecutionRole: is required but missing "
        "(provider sagemaker; for this machine set Hyperpod.Provider: local)"
    ]


def test_a_plain_request_is_for_sagemaker_and_kept_as_written(load_text: LoadText) -> None:
    request = aws_request(NodeRecovery="None", Tags=[{"Key": "team", "Value": "x"}])
    spec = load_text(request).spec
    assert spec.provider is Provider.SAGEMAKER
    assert spec.aws_request == request
    assert (spec.node_recovery, spec.tags) == ("None", {"team": "x"})


def test_roles_come_from_provisioning_parameters_beside_the_file(load_text: LoadText) -> None:
    spec = load_text(WITHOUT_ROLES, parameters=PARAMETERS).spec
    assert [(group.name, group.role, group.partition) for group in spec.instance_groups] == [
        ("head", Role.HEAD, None),
        ("worker", Role.WORKER, "dev"),
    ]
    assert spec.provisioning_parameters == PARAMETERS


def test_parameters_without_roles_go_with_roles_in_the_spec(load_text: LoadText) -> None:
    spec = load_text(aws_request(), parameters={"fsx_mountname": "abc", "our_own_setting": 1}).spec
    assert spec.provisioning_parameters == {"fsx_mountname": "abc", "our_own_setting": 1}


BAD_PARAMETERS: dict[str, tuple[dict[str, Any] | str, list[str]]] = {
    "an unknown group": (
        PARAMETERS | {"controller_group": "heads"},
        [
            "provisioning_parameters.json:4: at controller_group: heads is no instance group of the spec; did "
            "you mean head?"
        ],
    ),
    "a group left out": (
        PARAMETERS | {"worker_groups": []},
        [
            "cluster.json:11: at InstanceGroups[1].InstanceGroupName: group worker has no role in "
            "provisioning_parameters.json; name it there in worker_groups or login_group"
        ],
    ),
    "another workload manager": (
        PARAMETERS | {"workload_manager": "eks"},
        ["provisioning_parameters.json:3: at workload_manager: must be slurm, got 'eks'"],
    ),
    "a misspelt key": (
        PARAMETERS | {"loginn_group": "login"},
        ["provisioning_parameters.json:13: at loginn_group: unknown key; did you mean login_group?"],
    ),
    "no partition": (
        PARAMETERS | {"worker_groups": [{"instance_group_name": "worker"}]},
        ["provisioning_parameters.json:6: at worker_groups[0].partition_name: is required but missing"],
    ),
    "a misspelt partition key": (
        PARAMETERS | {"worker_groups": [{"instance_group_name": "worker", "partition_nam": "dev"}]},
        [
            "provisioning_parameters.json:8: at worker_groups[0].partition_nam: unknown key; did you mean "
            "partition_name?"
        ],
    ),
    "a bad partition": (
        PARAMETERS | {"worker_groups": [{"instance_group_name": "worker", "partition_name": "a b"}]},
        [
            "provisioning_parameters.json:8: at worker_groups[0].partition_name: 'a b': allowed are letters, digits, "
            "'-' and '_', at most 63"
        ],
    ),
    "a worker that is no mapping": (
        PARAMETERS | {"worker_groups": [*PARAMETERS["worker_groups"], 5]},
        ["provisioning_parameters.json:10: at worker_groups[1]: must be a mapping with instance_group_name, got 5"],
    ),
    "a second role": (
        PARAMETERS | {"login_group": "head"},
        ["provisioning_parameters.json:13: at login_group: group head already has the role head; name it once"],
    ),
    "several heads": (
        PARAMETERS | {"slurm_configurations": [{}, {}]},
        [
            "provisioning_parameters.json:13: at slurm_configurations: several head nodes are not supported; "
            "give one controller_group"
        ],
    ),
    "no JSON": (
        '{"version": "1.0.0",\n "controller_group": head}',
        ["provisioning_parameters.json:2: is not valid JSON: Expecting value (column 22)"],
    ),
}


@pytest.mark.parametrize("case", BAD_PARAMETERS)
def test_a_mistake_in_the_parameters_is_named_in_that_file(case: str, mistakes: Mistakes) -> None:
    parameters, expected = BAD_PARAMETERS[case]
    assert mistakes(WITHOUT_ROLES, parameters=parameters) == expected


def test_roles_in_both_files_are_refused(mistakes: Mistakes) -> None:
    assert mistakes(aws_request(), parameters=PARAMETERS) == [
        "cluster.json:9: at InstanceGroups[0].SlurmConfig: roles are given here and in "
        "provisioning_parameters.json too; "
        "take them out of one of the two"
    ]


def test_roles_in_no_file_are_not_guessed_from_names(mistakes: Mistakes) -> None:
    assert mistakes(WITHOUT_ROLES) == [
        "cluster.json:3: at InstanceGroups: no group has a role; give each 'SlurmConfig: {NodeType: Controller}' "
        "(or Login, or Compute with PartitionNames), or lay a provisioning_parameters.json with controller_group and "
        "worker_groups beside the file"
    ]


def test_continuous_refuses_the_legacy_file(mistakes: Mistakes) -> None:
    request = aws_request(NodeProvisioningMode="Continuous")
    assert mistakes(request, parameters={"fsx_mountname": "abc"}) == [
        "cluster.json:26: at NodeProvisioningMode: Continuous excludes provisioning_parameters.json; "
        "give roles in SlurmConfig and remove the file"
    ]


def test_parameters_can_lie_elsewhere(load_text: LoadText, mistakes: Mistakes) -> None:
    assert mistakes(WITHOUT_ROLES, provisioning_parameters="elsewhere.json") == ["elsewhere.json: no such file"]


def test_notes_name_what_is_allowed_but_seldom_meant(load_text: LoadText) -> None:
    request = worker(LifeCycleConfig={"SourceS3Uri": "s3://bucket/x", "OnCreate": "a.sh"}) | {"NodeRecovery": "None"}
    assert load_text(request).notes == (
        "cluster.json:25: at InstanceGroups[1].LifeCycleConfig.SourceS3Uri: the managed policy reads only "
        "buckets named "
        "sagemaker-...; others need rights of their own",
        "cluster.json:30: at NodeRecovery: None makes the service ignore Action:Replace and Action:Reboot; "
        "repairs need Automatic",
    )


def test_a_local_type_is_none_on_aws(mistakes: Mistakes) -> None:
    (line,) = mistakes(worker(InstanceType="local.node"))
    assert line.startswith(
        "cluster.json:15: at InstanceGroups[1].InstanceType: 'local.node' is not a valid value; valid are"
    )


def test_no_type_at_all_is_one_mistake_also_when_it_is_misspelt(mistakes: Mistakes) -> None:
    request = aws_request()
    del request["InstanceGroups"][0]["InstanceType"]
    assert mistakes(request) == [
        "cluster.json:4: at InstanceGroups[0].InstanceType: InstanceType is required, such as ml.c5.xlarge"
    ]
    request["InstanceGroups"][0]["InstanceTyp"] = "ml.c5.xlarge"
    assert mistakes(request) == [
        "cluster.json:11: at InstanceGroups[0].InstanceTyp: unknown key; did you mean InstanceType?"
    ]
