"""Every call that is made to AWS, with why it is made: what the reference page and the policies are written from.

Pure data. A test compares it with the code, so a call that is not listed here does not pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hyperpod.adapters.aws.errors import right_of

SAGEMAKER: Final[Mapping[str, str]] = {
    "sagemaker.CreateCluster": "make a cluster",
    "sagemaker.DescribeCluster": "state and counts of a cluster",
    "sagemaker.DescribeClusterNode": "address of one node",
    "sagemaker.ListClusters": "the clusters of the account and region",
    "sagemaker.ListClusterNodes": "the nodes of a cluster",
    "sagemaker.ListClusterEvents": "what the service did (clusters with continuous provisioning)",
    "sagemaker.UpdateCluster": "change counts and groups",
    "sagemaker.UpdateClusterSoftware": "bring the nodes to a new image",
    "sagemaker.DeleteCluster": "delete a cluster",
    "sagemaker.BatchReplaceClusterNodes": "give nodes other machines",
    "sagemaker.BatchRebootClusterNodes": "restart nodes",
    "sagemaker.BatchDeleteClusterNodes": "remove nodes",
    "sagemaker.StartClusterHealthCheck": "deep health checks on demand",
    "logs.GetLogEvents": "last lines of a failed lifecycle script",
}
SCRIPTS: Final[Mapping[str, str]] = {
    "s3.ListObjectsV2": "which lifecycle scripts are there",
    "s3.GetObject": "fetch lifecycle scripts",
    "s3.PutObject": "send lifecycle scripts",
    "s3.DeleteObject": "take scripts away that were deleted (only with --delete)",
}
PREFLIGHT: Final[Mapping[str, str]] = {
    "sts.GetCallerIdentity": "whose credentials these are",
    "ec2.DescribeSubnets": "zone and free addresses",
    "ec2.DescribeSecurityGroups": "rules for EFA and FSx",
    "ec2.DescribeInstanceTypes": "network interfaces of an instance type",
    "ec2.DescribeInstanceTypeOfferings": "whether the zone has the instance type",
    "ec2.DescribeImages": "whether the image is there",
    "ec2.DescribeNetworkInterfaces": "security groups of the file system",
    "service-quotas.ListServiceQuotas": "quotas for cluster usage",
    "fsx.DescribeFileSystems": "zone and network of the file system",
    "s3.ListObjectsV2": "whether the scripts are there",
    "s3.GetObject": "provisioning_parameters.json and the head of the scripts",
    "iam.GetRole": "who may take the execution role",
    "iam.SimulatePrincipalPolicy": "whether the role may read the scripts",
    "sagemaker.DescribeTrainingPlan": "whether the training plan is there and active",
}
TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    "Provider sagemaker": SAGEMAKER,
    "hyperpod scripts": SCRIPTS,
    "hyperpod validate --online": PREFLIGHT,
}
BESIDES: Final[Mapping[str, str]] = {
    "iam:PassRole": "CreateCluster and UpdateCluster hand the groups' execution roles on",
    "iam:CreateServiceLinkedRole": "the first cluster of an account",
    "sagemaker:AddTags": "CreateCluster with tags",
    "ssm:StartSession": "hyperpod ssh, by the session-manager-plugin",
    "ssm:TerminateSession": "the same",
}
"""Rights without a call of ours: the services ask for them on our behalf."""


def known_calls() -> frozenset[str]:
    """Return every call, as ``service.Operation``."""
    return frozenset(call for calls in TOPICS.values() for call in calls)


def rights() -> tuple[str, ...]:
    """Return every right that some call needs, sorted."""
    found = {right_of(*call.split(".", 1)) for call in known_calls()}
    return tuple(sorted(found | set(BESIDES)))
