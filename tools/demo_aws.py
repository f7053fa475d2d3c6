"""``make demo-aws``: the same story on EC2 without an account: a simulated one, whose instances are nodes here.

An EC2 and S3 by moto listen here; every instance that they name is a podman node which boots by its user data, fetches
all it needs from S3, and dies when it is terminated. Creates a cluster by ``hyperpod create-cluster``, trains once
undisturbed and once with an instance terminated behind hyperpod's back, and compares the losses. No cloud is reached.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.bodies.cluster import BodyCluster, account
from tests.bodies.site import furnish, write_spec
from tools.cluster import Failed
from tools.demo import console, run


def main() -> int:
    parser = argparse.ArgumentParser(description="An EC2 instance is terminated under a training job; it trains on.")
    parser.add_argument("--cluster", default="demo-aws", metavar="NAME", help="its name (demo-aws)")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    said: set[str] = set()

    def progress(what: str, _share: float) -> None:
        if what not in said:
            said.add(what)
            console.print(what, style="dim")

    try:
        with account(options.cluster, "torch", progress) as bridge, tempfile.TemporaryDirectory() as folder:
            console.print(f"an account at {bridge.endpoint}; its network is {bridge.subnet}", style="bold")
            cluster = BodyCluster(options.cluster, bridge)
            spec = write_spec(furnish(bridge), options.cluster, Path(folder), workers=4)
            console.print(spec.read_text(), style="dim", markup=False)
            started = time.monotonic()
            cluster.create(spec, show=True, timeout_s=900)
            console.print(f"cluster ready after {time.monotonic() - started:.0f} s", style="bold")
            cluster.wait("the controller to answer", cluster.is_settled, 60)
            cluster.hyperpod("list-nodes", "--cluster", cluster.name, "--provider", "ec2", show=True)
            try:
                status = run(cluster, options.steps, -1, cluster.terminate)
                cluster.hyperpod("list-nodes", "--cluster", cluster.name, "--provider", "ec2", show=True)
            finally:
                cluster.delete()
            left = cluster.remains()
            console.print(f"left in the account: {left or 'nothing'}", style="bold")
            return status or bool(left)
    except Failed as error:
        console.print(str(error), style="red", markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
