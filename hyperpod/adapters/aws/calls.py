"""Why each call to AWS is made, and which rights the services ask for on our behalf.

Pure data for the reference page (``tools/aws_calls.py``), which finds the calls themselves in the code. A test holds
the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WHY: Final[Mapping[str, str]] = {
    "sts.GetCallerIdentity": "whose credentials these are",
    "sagemaker.CreateCluster": "make a cluster",
    "sagemaker.DescribeCluster": "state and counts of a cluster",
    "sagemaker.DescribeClusterNode": "everything about one node",
    "sagemaker.DescribeTrainingPlan": "whether the training plan is there and active",
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
    "logs.GetLogEvents": "what nodes wrote: `hyperpod logs`, and why a lifecycle script failed",
    "s3.ListObjectsV2": "which scripts are there",
    "s3.GetObject": "fetch scripts and provisioning_parameters.json",
    "s3.PutObject": "send scripts",
    "s3.DeleteObject": "take away scripts that are gone (`--delete` only)",
    "ec2.DescribeSubnets": "zone, VPC and free addresses",
    "ec2.DescribeSecurityGroups": "rules for EFA and FSx",
    "ec2.DescribeInstanceTypes": "network interfaces of an instance type",
    "ec2.DescribeInstanceTypeOfferings": "whether the zone has the instance type",
    "ec2.DescribeImages": "whether the image is there",
    "ec2.DescribeNetworkInterfaces": "addresses, and security groups of file systems",
    "service-quotas.ListServiceQuotas": "quotas for cluster usage",
    "fsx.DescribeFileSystems": "zone, network and mount name of file systems",
    "iam.GetRole": "who may take the role",
    "iam.SimulatePrincipalPolicy": "whether the role may read the scripts",
}
BESIDES: Final[Mapping[str, Mapping[str, str]]] = {
    "Provider sagemaker": {
        "iam:PassRole": "the groups' execution roles are handed to the service",
        "iam:CreateServiceLinkedRole": "the first cluster of an account",
        "sagemaker:AddTags": "a cluster is made with tags",
        "ssm:StartSession": "`hyperpod ssh`, by the session-manager-plugin",
        "ssm:TerminateSession": "the same",
    },
    "Provider ec2": {
        "iam:PassRole": "instances take their instance profile's role",
        "ssm:StartSession": "`hyperpod ssh` where no address of the node answers",
        "ssm:TerminateSession": "the same",
    },
    "hyperpod prepare": {"iam:PassRole": "the instance profile gets its role"},
}
"""Rights without a call of ours, by topic of the page."""
