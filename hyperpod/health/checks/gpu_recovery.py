"""The driver itself asks for no recovery of a GPU: the cheapest hard fact about GPUs that there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Severity
from hyperpod.core.node import Role
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, unknown
from hyperpod.health.xid import RECOVERY_ACTIONS
from hyperpod.ports.gpu import GpuError, NoLibrary

NAME = "gpu_recovery"

_CODES = {
    1: "GpuResetNeeded",
    2: "NodeRebootNeeded",
    3: "PeerDrainNeeded",
    4: "DrainAndResetNeeded",
    5: "ImexRecoveryNeeded",
    6: "BusResetNeeded",
    7: "SystemRebootNeeded",
}


@dataclass
class GpuRecoveryCheck:
    """Asks NVML for the recovery action of each GPU."""

    about: ClassVar[About] = About(
        title="No GPU asks for a reset, a reboot or a drain",
        reads="NVML's recovery action of each GPU, which drivers from 570 on tell.",
        means="The driver has decided that the GPU cannot go on as it is. An older driver, or an older nvidia-ml-py "
        "that does not know the value, says nothing: that is healthy here.",
        does="FATAL at once, with what the driver asks for; a GPU's reset is done by a reboot. A value that is not "
        "known drains the node, the mildest answer to a driver that asks for something. The finding closes when the "
        "driver says none again.",
        codes={
            "GpuResetNeeded": "The GPU must be reset.",
            "NodeRebootNeeded": "The node must reboot.",
            "PeerDrainNeeded": "Traffic between GPUs must end.",
            "DrainAndResetNeeded": "Work must leave the GPU, then it must be reset.",
            "ImexRecoveryNeeded": "The NVLink domain over several nodes must be recovered.",
            "BusResetNeeded": "The GPU's bus must be reset.",
            "SystemRebootNeeded": "The whole system must reboot.",
            "RecoveryNeeded": "The driver asks for something that we do not know.",
            "GpusUnreadable": "NVML did not answer.",
        },
        source="NVML, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; used by NVIDIA's resiliency extension before each restart.",
    )
    interval_s: float = setting(30.0, "Seconds between two looks; the kernel logs a change at once (Xid 154).")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = True
    is_basic: bool = True
    roles: frozenset[Role] = WORKERS
    is_job_start: ClassVar[bool] = True

    def run(self, ports: Ports) -> Result:
        """Report every GPU whose driver asks for something."""
        try:
            actions = ports.gpus.recovery_actions()
        except NoLibrary:
            return Result()
        except GpuError as error:
            return Result((unknown(NAME, "GpusUnreadable", f"the GPUs cannot be asked: {error}"),))
        findings = []
        for address, value in sorted(actions.items()):
            if value == 0:
                continue
            word, _, action = RECOVERY_ACTIONS.get(value, (f"action {value}", Severity.FATAL, Action.DRAIN))
            text = f"the driver asks for a recovery of GPU {address}: {word}"
            code = _CODES.get(value, "RecoveryNeeded")
            findings.append(fatal(NAME, code, text, action=action, device=address, is_hard=True))
        return Result(tuple(findings))
