"""``python -m hyperpod.deep PROGRAM JSON``: run one deep test in this process and print its lines.

Programs: ``stress`` (memory, processors, GPUs, disks of this node), ``serve`` and ``measure`` (the network between two
nodes), ``all_reduce`` (one rank of all nodes). The arguments are those of the functions, as one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from hyperpod.deep import collective, compute, dcgm, disk, memory, network
from hyperpod.deep.result import Line, say

_MOST_MEMORY = 256 << 20
_SHARE_OF_MEMORY = 0.1


def stress(seconds: float, folders: list[str], disk_mb: int, matrix: int, dcgm_level: int) -> None:
    """Test this node alone; each part takes about ``seconds``, DCGM's diagnostic what its level takes."""
    with open("/proc/meminfo") as file:
        available = memory.available_bytes(file.read())
    size = min(_MOST_MEMORY, int(available * _SHARE_OF_MEMORY)) // 4096 * 4096
    say(memory.check_patterns(size))
    say(memory.measure_bandwidth(size, seconds))
    say(compute.check_cpus(sorted(os.sched_getaffinity(0)), seconds))
    for line in compute.check_with_torch(seconds, matrix):
        say(line)
    for line in dcgm.check_dcgm(dcgm_level):
        say(line)
    for folder in folders:
        for line in disk.check_disk(folder, disk_mb << 20):
            say(line)


def run(program: str, args: Mapping[str, Any]) -> None:
    """Run one program.

    Raises:
        ValueError, KeyError, TypeError: if it does not exist or its arguments do not fit.
        OSError: if the machine refuses.
    """
    if program == "stress":
        stress(
            float(args["seconds"]),
            [str(f) for f in args["folders"]],
            int(args["disk_mb"]),
            int(args["matrix"]),
            int(args.get("dcgm_level", 1)),
        )
        return
    if program == "all_reduce":
        say(
            collective.all_reduce(
                rank=int(args["rank"]),
                world=int(args["world"]),
                head=str(args["head"]),
                port=int(args["port"]),
                elements=int(args["elements"]),
                timeout_s=float(args["timeout_s"]),
                interface=str(args["interface"]),
            )
        )
        return
    peer, port, token, timeout_s = str(args["peer"]), int(args["port"]), str(args["token"]), float(args["timeout_s"])
    if program == "serve":
        say(network.serve(str(args["address"]), port, peer, token, timeout_s))
    elif program == "measure":
        for line in network.measure(peer, port, token, int(args["size_mb"]) << 20, timeout_s):
            say(line)
    else:
        raise ValueError(f"unknown program {program!r}")


def main(argv: list[str]) -> int:
    """Run the program that is named; 0 when it ran, whatever it found, 2 when it was called wrongly."""
    # The agent is protected from the kernel's search for memory; what it starts for a test must go first.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")
    try:
        run(argv[0], json.loads(argv[1]))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        sys.stderr.write(f"hyperpod.deep: {error!r}\n")
        return 2
    except OSError as error:
        say(Line(argv[0], False, detail=f"{error.strerror or error}"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
