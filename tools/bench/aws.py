"""What a large group on EC2 costs: calls by operation against EC2's token buckets, memory and time of our own.

Against moto in a process of its own, so that only our program is measured. Each size runs in a process of its own, too.

AWS_ENDPOINT_URL=... python -m tools.bench.aws SIZE     (one size, for the benchmark itself; prints JSON)
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.bench.report import Measure, console
from tools.cluster import ROOT

SIZES = (100, 1000)
REGION = "us-west-2"
AMI = "ami-12c6146b"
TYPE = "c5.large"

# EC2's published buckets for each account and region (API request throttling): size and refill a second. Machines of
# RunInstances count in a bucket of their own. S3's limit holds for each prefix.
BUCKETS: Mapping[str, tuple[float, float]] = {
    "RunInstances": (5, 2),
    "machines of RunInstances": (1000, 2),
    "EC2 describe calls": (100, 20),
    "EC2 changes": (50, 5),
    "S3 writes": (3500, 3500),
    "S3 reads": (5500, 5500),
}
_S3_WRITES = ("PutObject", "DeleteObjects")


def bucket_of(service: str, operation: str) -> str:
    """Return the bucket that a call is counted in."""
    if service == "s3":
        return "S3 writes" if operation in _S3_WRITES else "S3 reads"
    if operation == "RunInstances":
        return operation
    return "EC2 describe calls" if operation.startswith("Describe") else "EC2 changes"


def least_left(bucket: str, calls: Sequence[tuple[float, float]]) -> float:
    """Return the fewest tokens left in a bucket during calls of (time, tokens); below 0 EC2 would have throttled."""
    size, refill = BUCKETS[bucket]
    left, least, before = size, size, calls[0][0] if calls else 0.0
    for at, tokens in sorted(calls):
        left = min(size, left + (at - before) * refill) - tokens
        least, before = min(least, left), at
    return least


def peak_rate(times: Sequence[float]) -> int:
    """Return the most calls within any one second."""
    ordered = sorted(times)
    return max((sum(1 for t in ordered if at <= t < at + 1) for at in ordered), default=0)


@contextmanager
def moto() -> Iterator[str]:
    """Run moto's server on a loopback port in a process of its own; yields its endpoint."""
    program = (
        "import sys,time; from moto.server import ThreadedMotoServer as S; s=S('127.0.0.1',0,verbose=False); s.start();"
        "print(s.get_host_and_port()[1],flush=True); time.sleep(3600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


def environment(endpoint: str) -> dict[str, str]:
    """Return an environment that reaches the endpoint and nothing else."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return kept | {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "PYTHONPATH": str(ROOT),
    }


def run() -> list[Measure]:
    """Measure the creation and the listing of groups of several sizes."""
    measures: list[Measure] = []
    for size in SIZES:
        with moto() as endpoint:
            done = subprocess.run(
                [sys.executable, "-m", "tools.bench.aws", str(size)],
                env=environment(endpoint), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        result = json.loads(done.stdout.splitlines()[-1])
        console.print(f"{size} machines: {result['calls']}")
        raw = [result]
        where = f"group of {size:,}"
        measures += [
            Measure(f"{where}: calls in all", "calls", [result["total"]], raw=raw),
            Measure(f"{where}: create-cluster, moto's time included", "s", [result["create_s"]]),
            Measure(f"{where}: our own CPU time", "s", [result["create_cpu_s"]]),
            Measure(f"{where}: traced memory at the peak", "MiB", [result["traced_mib"]]),
            Measure(f"{where}: resident at the peak", "MiB", [result["resident_mib"]]),
            Measure(f"{where}: listing it, our own CPU time", "s", [result["list_cpu_s"]]),
        ]
        for bucket, (limit, refill) in BUCKETS.items():
            note = f"peak {result['peaks'][bucket]} calls in a second; bucket {limit:g}, refill {refill:g} a second"
            measures.append(
                Measure(f"{where}: {bucket}, tokens left", "", [result["left"][bucket]], goal="≥ 0", note=note)
            )
    return measures


def one(size: int) -> dict[str, Any]:
    """Create and list one cluster with a group of ``size``; returns figures."""
    from hyperpod.adapters.aws.client import Aws
    from hyperpod.adapters.aws.model import validate_create_cluster
    from hyperpod.config.load import load_spec
    from hyperpod.provisioning.ec2_cluster import create_cluster, open_provider

    seen: list[tuple[float, str, str, float]] = []

    class Counting(Aws):
        """Writes every call down."""

        def _once(
            self, method: Any, client: Any, service: str, operation: str, what: str, params: Mapping[str, Any]
        ) -> dict[str, Any]:
            seen.append((time.monotonic(), service, operation, float(params.get("MaxCount", 0))))
            return super()._once(method, client, service, operation, what, params)

    aws = Counting(region=REGION)
    network = _network(aws)
    with tempfile.TemporaryDirectory() as folder:
        spec_file = Path(folder) / "spec.json"
        spec_file.write_text(json.dumps(_request(size, network)))
        spec = load_spec(spec_file, validate=validate_create_cluster).spec
    provider = open_provider(aws, spec, software="abc")
    seen.clear()
    tracemalloc.start()
    began, cpu = time.monotonic(), time.process_time()
    create_cluster(spec, provider, wait=False)
    create_s, create_cpu_s = time.monotonic() - began, time.process_time() - cpu
    traced = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    calls = list(seen)
    cpu = time.process_time()
    listed = provider.observe(spec.cluster_name)
    list_cpu_s = time.process_time() - cpu
    assert len({i.node for i in listed}) == size + 1, len(listed)
    by_bucket: dict[str, list[tuple[float, float]]] = {bucket: [] for bucket in BUCKETS}
    counts: dict[str, int] = {}
    for at, service, operation, machines in calls:
        counts[f"{service}.{operation}"] = counts.get(f"{service}.{operation}", 0) + 1
        by_bucket[bucket_of(service, operation)].append((at, 1))
        if operation == "RunInstances":
            by_bucket["machines of RunInstances"].append((at, machines))
    return {
        "size": size,
        "calls": dict(sorted(counts.items())),
        "total": len(calls),
        "peaks": {bucket: peak_rate([at for at, _ in made]) for bucket, made in by_bucket.items()},
        "left": {bucket: least_left(bucket, made) for bucket, made in by_bucket.items()},
        "create_s": create_s,
        "create_cpu_s": create_cpu_s,
        "list_cpu_s": list_cpu_s,
        "traced_mib": traced,
        "resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _network(aws: Any) -> tuple[str, str]:
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/17")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
    aws.client("s3").create_bucket(Bucket="sagemaker-bench", CreateBucketConfiguration={"LocationConstraint": REGION})
    for profile in ("hyperpod-main-node", "hyperpod-main-head"):
        aws.client("iam").create_instance_profile(InstanceProfileName=profile)
    return subnet, group


def _request(size: int, network: tuple[str, str]) -> dict[str, Any]:
    subnet, group = network
    scripts = {"SourceS3Uri": "s3://sagemaker-bench/lifecycle-scripts/", "OnCreate": "on_create.sh"}
    common = {"ExecutionRole": "arn:aws:iam::123456789012:role/nodes", "LifeCycleConfig": scripts}
    kind = f"ml.{TYPE}"
    return {
        "ClusterName": "bench",
        "InstanceGroups": [
            {"InstanceGroupName": "head", "InstanceType": kind, "InstanceCount": 1,
             "SlurmConfig": {"NodeType": "Controller"}, **common},
            {"InstanceGroupName": "worker", "InstanceType": kind, "InstanceCount": size,
             "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["train"]}, **common},
        ],
        "VpcConfig": {"SecurityGroupIds": [group], "Subnets": [subnet]},
        "Hyperpod": {"Provider": "ec2", "Ec2": {"Image": AMI}},
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(json.dumps(one(int(sys.argv[1]))) + "\n")
