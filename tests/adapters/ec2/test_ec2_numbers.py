"""Numbers and limits of large clusters: calls of AWS inside its published rates, little time of our own.

EC2 counts calls by buckets for each account and region: RunInstances 5 at once and 2 a second, its machines 1,000 at
once and 2 a second; describe calls 100 at once and 20 a second; changes 50 at once and 5 a second. S3 takes 3,500
writes and 5,500 reads a second for each prefix.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from hyperpod.adapters.aws import tags
from hyperpod.ports.provider import NodeLaunch, Role
from tests.adapters.ec2.test_ec2_provider import make_provider
from tests.fakes.aws import AccountAws, Site

BORN = datetime(2025, 1, 1, tzinfo=UTC)


def described(count: int, slots: str, *, first: int = 0) -> list[dict[str, Any]]:
    own = tags.tag_list({tags.CLUSTER: "demo", tags.GROUP: "worker", tags.SLOTS: slots, tags.ROLE: "worker"})
    return [
        {
            "InstanceId": f"i-{first + index:017x}", "AmiLaunchIndex": index, "State": {"Name": "running"},
            "PrivateIpAddress": f"10.{(first + index) >> 16}.{(first + index) >> 8 & 255}.{(first + index) & 255}",
            "LaunchTime": BORN, "InstanceType": "m5.large", "Tags": own,
        }
        for index in range(count)
    ]  # fmt: skip


def page(start: int, size: int, token: str) -> dict[str, Any]:
    machines = described(size, f"{start + 1}-{start + size}", first=start)
    return {"Reservations": [{"Instances": machines}], "NextToken": token}


def test_a_thousand_machines_need_few_calls(aws: AccountAws, site: Site) -> None:
    provider = make_provider(aws, site)
    sizes = [f"{start}-{start + 199}" for start in range(1, 1001, 200)]
    aws.answers["RunInstances"] = [
        {"Instances": described(200, slots, first=200 * number)} for number, slots in enumerate(sizes)
    ]
    specs = [NodeLaunch("demo", f"worker-{index}", "worker", Role.WORKER) for index in range(1, 1001)]
    aws.calls.clear()

    made = provider.launch(specs)

    assert len({instance.node for instance in made}) == 1000
    by_name = {name: aws.operations().count(name) for name in set(aws.operations())}
    assert by_name["RunInstances"] == 5
    assert [p["MinCount"] for operation, p in aws.calls if operation == "RunInstances"] == [200] * 5
    assert "CreateTags" not in by_name, "one call for each machine would take minutes"
    assert sum(by_name.values()) < 40


def test_six_thousand_nodes_are_listed_in_seconds(aws: AccountAws, site: Site) -> None:
    provider = make_provider(aws, site)
    # As the service pages: a thousand machines a page.
    pages = [
        page(start, size, token)
        for start, size, token in [(n * 1000, 1000, f"t{n}") for n in range(6)] + [(6000, 758, "")]
    ]
    aws.answers["DescribeInstances"] = pages
    began = time.process_time()

    shown = provider.observe("demo")

    assert len({instance.node for instance in shown}) == 6758
    assert time.process_time() - began < 5
    assert aws.operations().count("DescribeInstances") == 7
