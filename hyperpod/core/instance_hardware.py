"""What machines of an EC2 instance type have: accelerators, EFA interfaces, local disks. Data only.

Names are those of ``health.check.Result.inventory``. The figures are hints, from AWS's public pages and memory: a type
that is not here, or a figure that is left out, is not known, and the group's own majority decides. Left out on purpose
is what depends on settings: the Neuron cores of Trainium2 (logical cores), processors (ThreadsPerCore).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Hardware:
    """One instance type. None: not known, or depends on settings.

    Attributes:
        vcpus, memory_mib: As the type is sold; the system sees a little less memory.
        gpus: NVIDIA GPUs.
        efa: EFA interfaces that it may have; a machine has those that were asked for.
        neuron_devices, neuron_cores: Trainium or Inferentia devices and their cores.
        nvme_disks: Local disks that are lost when it stops.
    """

    vcpus: int
    memory_mib: int
    gpus: int | None = 0
    efa: int | None = 0
    neuron_devices: int | None = 0
    neuron_cores: int | None = 0
    nvme_disks: int | None = 0


_GIB = 1024


def _gpu(vcpus: int, gib: int, gpus: int, efa: int | None, disks: int) -> Hardware:
    return Hardware(vcpus, gib * _GIB, gpus=gpus, efa=efa, nvme_disks=disks)


def _neuron(vcpus: int, gib: int, devices: int, cores: int | None, efa: int | None, disks: int) -> Hardware:
    return Hardware(vcpus, gib * _GIB, efa=efa, neuron_devices=devices, neuron_cores=cores, nvme_disks=disks)


def _cpu(vcpus: int, gib: int, efa: int, disks: int = 0) -> Hardware:
    return Hardware(vcpus, gib * _GIB, efa=efa, nvme_disks=disks)


HARDWARE: Final[Mapping[str, Hardware]] = {
    "p3.16xlarge": _gpu(64, 488, 8, 0, 0),
    "p3dn.24xlarge": _gpu(96, 768, 8, 1, 2),
    "p4d.24xlarge": _gpu(96, 1152, 8, 4, 8),
    "p4de.24xlarge": _gpu(96, 1152, 8, 4, 8),
    "p5.4xlarge": _gpu(16, 256, 1, 1, 1),
    "p5.48xlarge": _gpu(192, 2048, 8, 32, 8),
    "p5e.48xlarge": _gpu(192, 2048, 8, 32, 8),
    "p5en.48xlarge": _gpu(192, 2048, 8, 16, 8),
    "p6-b200.48xlarge": _gpu(192, 2048, 8, 8, 8),
    "p6-b300.48xlarge": _gpu(192, 4096, 8, None, 8),
    "p6e-gb200.36xlarge": _gpu(144, 960, 4, None, 3),
    "g4dn.8xlarge": _gpu(32, 128, 1, 1, 1),
    "g4dn.12xlarge": _gpu(48, 192, 4, 1, 1),
    "g4dn.16xlarge": _gpu(64, 256, 1, 1, 1),
    "g4dn.metal": _gpu(96, 384, 8, 1, 2),
    "g5.xlarge": _gpu(4, 16, 1, 0, 1),
    "g5.2xlarge": _gpu(8, 32, 1, 0, 1),
    "g5.4xlarge": _gpu(16, 64, 1, 0, 1),
    "g5.8xlarge": _gpu(32, 128, 1, 1, 1),
    "g5.12xlarge": _gpu(48, 192, 4, 1, 1),
    "g5.16xlarge": _gpu(64, 256, 1, 1, 1),
    "g5.24xlarge": _gpu(96, 384, 4, 1, 1),
    "g5.48xlarge": _gpu(192, 768, 8, 1, 2),
    "g6.xlarge": _gpu(4, 16, 1, 0, 1),
    "g6.2xlarge": _gpu(8, 32, 1, 0, 1),
    "g6.4xlarge": _gpu(16, 64, 1, 0, 1),
    "g6.8xlarge": _gpu(32, 128, 1, 1, 2),
    "g6.12xlarge": _gpu(48, 192, 4, 1, 4),
    "g6.16xlarge": _gpu(64, 256, 1, 1, 2),
    "g6.24xlarge": _gpu(96, 384, 4, 1, 4),
    "g6.48xlarge": _gpu(192, 768, 8, 1, 8),
    "g6e.xlarge": _gpu(4, 32, 1, 0, 1),
    "g6e.2xlarge": _gpu(8, 64, 1, 0, 1),
    "g6e.4xlarge": _gpu(16, 128, 1, 0, 1),
    "g6e.8xlarge": _gpu(32, 256, 1, 1, 2),
    "g6e.12xlarge": _gpu(48, 384, 4, 1, 2),
    "g6e.16xlarge": _gpu(64, 512, 1, 1, 2),
    "g6e.24xlarge": _gpu(96, 768, 4, 2, 2),
    "g6e.48xlarge": _gpu(192, 1536, 8, 4, 4),
    "trn1.2xlarge": _neuron(8, 32, 1, 2, 0, 1),
    "trn1.32xlarge": _neuron(128, 512, 16, 32, 8, 4),
    "trn1n.32xlarge": _neuron(128, 512, 16, 32, 16, 4),
    "trn2.3xlarge": _neuron(12, 128, 1, None, 1, 1),
    "trn2.48xlarge": _neuron(192, 2048, 16, None, 16, 4),
    "trn2u.48xlarge": _neuron(192, 2048, 16, None, 16, 4),
    "inf1.xlarge": _neuron(4, 8, 1, 4, 0, 0),
    "inf1.2xlarge": _neuron(8, 16, 1, 4, 0, 0),
    "inf1.6xlarge": _neuron(24, 48, 4, 16, 0, 0),
    "inf1.24xlarge": _neuron(96, 192, 16, 64, 1, 0),
    "inf2.xlarge": _neuron(4, 16, 1, 2, 0, 0),
    "inf2.8xlarge": _neuron(32, 128, 1, 2, 0, 0),
    "inf2.24xlarge": _neuron(96, 384, 6, 12, None, 0),
    "inf2.48xlarge": _neuron(192, 768, 12, 24, None, 0),
    "c5n.9xlarge": _cpu(36, 96, 1),
    "c5n.18xlarge": _cpu(72, 192, 1),
    "hpc6a.48xlarge": _cpu(96, 384, 1),
    "hpc6id.32xlarge": _cpu(64, 1024, 2, 4),
    "hpc7a.12xlarge": _cpu(24, 768, 2),
    "hpc7a.24xlarge": _cpu(48, 768, 2),
    "hpc7a.48xlarge": _cpu(96, 768, 2),
    "hpc7a.96xlarge": _cpu(192, 768, 2),
    "hpc7g.4xlarge": _cpu(16, 128, 1),
    "hpc7g.8xlarge": _cpu(32, 128, 1),
    "hpc7g.16xlarge": _cpu(64, 128, 1),
}
"""By EC2's name, without ``ml.``."""

_COUNTS: Final = ("gpus", "neuron_devices", "neuron_cores", "nvme_disks")


def expected_of(instance_type: str, *, efa: int | None = None) -> dict[str, int]:
    """Return what a machine of this type should have, for the agent's configuration; empty when it is not known.

    Nothing is expected of a kind that the type lacks: a check finds no hardware there and says nothing.

    Args:
        instance_type: With or without ``ml.``.
        efa: Interfaces that were asked for; None: not known, which a machine of the service alone can tell.
    """
    hardware = HARDWARE.get(instance_type.removeprefix("ml."))
    found = {} if hardware is None else {name: getattr(hardware, name) for name in _COUNTS}
    return {name: count for name, count in (found | {"efa": efa}).items() if count}
