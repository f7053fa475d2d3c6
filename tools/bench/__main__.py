"""``make bench``: recovery and overheads, measured on this machine; raw data in bench-results/.

python -m tools.bench [recovery] [creation] [overhead] [decide] [health-corpus] [aws] [start] [-n 20] [--no-stock]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tools.bench import aws, decide, health_corpus, overhead, recovery, start
from tools.bench.report import publish
from tools.cluster import ROOT, Cluster, spec_named

ALL = ("decide", "health-corpus", "start", "aws", "creation", "overhead", "recovery")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure recovery and overheads on this machine.")
    parser.add_argument("names", nargs="*", choices=[*ALL, []], default=[], help="which; all when none is named")
    parser.add_argument("-n", type=int, default=20, help="repeats of each failure")
    parser.add_argument("--no-stock", action="store_true", help="leave out Slurm alone (it takes 15 minutes)")
    options = parser.parse_args()
    names = options.names or ALL
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "decide" in names:
            publish("decide", decide.run())
        if "health-corpus" in names:
            publish("health-corpus", health_corpus.run())
        if "start" in names:
            publish("start", start.run(options.n))
        if "aws" in names:
            publish("aws", aws.run())
        if "creation" in names:
            publish("creation", [overhead.creation("bench-c", folder, 5)])
        if "overhead" in names:
            cluster = Cluster("bench-o")
            try:
                cluster.create(
                    spec_named(
                        ROOT / "configs" / "laptop.yaml", cluster.name, folder, [("Image: torch ", "Image: base ")]
                    )
                )
                publish("agent", overhead.agent(cluster))
                publish("plugin", overhead.plugin(cluster, rounds=3, jobs=100))
            finally:
                cluster.delete()
        if "recovery" in names:
            publish("recovery", recovery.run("bench-r", folder, options.n, not options.no_stock))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
