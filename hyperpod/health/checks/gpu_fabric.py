"""The GPUs have joined their NVSwitch fabric, and it is well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hyperpod.core.finding import Action, Finding
from hyperpod.core.node import Role
from hyperpod.health.check import TWO_OF_THREE, WORKERS, About, Damping, Ports, Result, fatal, setting, warn
from hyperpod.health.gpu import UNREADABLE, look, title
from hyperpod.ports.gpu import GpuView

NAME = "gpu_fabric"

_COMPLETED = 3
_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}

_TWO_BITS = {
    0: "bandwidth is degraded",
    2: "a route is being recovered",
    4: "a route is unhealthy",
    6: "access timeouts",
}
"""Shift in the health mask by what value 1 says; 0 is "not supported", 2 "no"."""

_CONFIGURATION = {
    2: "wrong system id",
    3: "wrong chassis number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware",
    7: "invalid location",
    8: "invalid state of the GPU",
}


@dataclass
class GpuFabricCheck:
    """Reads state, status, identity and health mask of the fabric."""

    about: ClassVar[About] = About(
        title="GPUs have joined their NVLink fabric",
        reads="NVML's fabric state, status, cluster UUID, clique and health mask, of parts that have a fabric.",
        means="State must be completed and status success: completed with a bad status is a GPU that is left out. The "
        "mask has fields of two bits of which only the value 1 is bad (0x80 is healthy); its configuration field is "
        "bad from 2 on. A zero UUID is normal on a machine whose fabric ends at its own NVSwitches (H100, H200); it "
        "is a fault only where the GPU's neighbours have one. A single H100 given to a virtual machine has no fabric.",
        does="FATAL at once, five minutes after the boot; before that the fabric may still form and only the first job "
        "waits. REPLACE: on AWS the fault outlives a reboot. What may pass (recovery, timeouts, bandwidth) is WARN.",
        codes={
            "FabricNotJoined": "The GPU has not joined the fabric.",
            "FabricStatus": "The GPU has joined with a bad status.",
            "FabricIdentity": "The GPU has no cluster UUID or clique, its neighbours have.",
            "FabricRoute": "A route of the fabric is unhealthy.",
            "FabricConfiguration": "The fabric is configured wrongly.",
            "FabricHealth": "The health mask names something that may pass.",
            **UNREADABLE,
        },
        source="NVML, nvmlGpuFabricInfo; azhpc-images 506; practice of other monitors.",
    )
    grace_s: float = setting(300.0, "Seconds after the boot in which the fabric may still form.")
    interval_s: float = setting(120.0, "Seconds between two looks; it shares the look of other checks.")
    deadline_s: float = 8.0
    name: str = NAME
    damping: Damping = TWO_OF_THREE
    is_quick: bool = False
    is_basic: bool = True
    roles: frozenset[Role] = WORKERS

    def run(self, ports: Ports) -> Result:
        """Judge each GPU that has a fabric."""
        seen = look(ports, NAME, "fabric_state")
        gpus = [gpu for gpu in seen.gpus if gpu.fabric_state]
        is_young = ports.facts.uptime_s < self.grace_s
        findings = [finding for gpu in gpus for finding in _judge(gpu, gpus)]
        ids = sorted({f"{gpu.fabric_uuid or '0'}/{gpu.fabric_clique}" for gpu in gpus})
        inventory = {"gpu_fabric": ", ".join(ids)} if ids else {}
        hard = [finding for finding in findings if finding.is_hard]
        if hard and is_young:
            return Result(seen.blind, not_ready=hard[0].message, inventory=inventory)
        return Result((*seen.blind, *findings), inventory=inventory)


def _judge(gpu: GpuView, gpus: Sequence[GpuView]) -> list[Finding]:
    if gpu.fabric_state != _COMPLETED:
        state = _STATES.get(gpu.fabric_state or 0, str(gpu.fabric_state))
        return [_bad(gpu, "FabricNotJoined", f"has not joined the NVLink fabric: {state}")]
    if gpu.fabric_status:
        return [_bad(gpu, "FabricStatus", f"has joined the NVLink fabric with status {gpu.fabric_status}, not success")]
    out = []
    if not gpu.fabric_uuid and any(other.fabric_uuid for other in gpus):
        out.append(_bad(gpu, "FabricIdentity", "has no cluster UUID, its neighbours have"))
    elif gpu.fabric_uuid and not gpu.fabric_clique and any(other.fabric_clique for other in gpus):
        out.append(_bad(gpu, "FabricIdentity", "has no clique, its neighbours have"))
    return out + _judge_mask(gpu)


def _judge_mask(gpu: GpuView) -> list[Finding]:
    mask = gpu.fabric_health or 0
    out = []
    passing = []
    for shift, text in _TWO_BITS.items():
        if mask >> shift & 3 != 1:
            continue
        if shift == 4:
            out.append(_bad(gpu, "FabricRoute", f"{text} in the NVLink fabric (mask {mask:#x})"))
        else:
            passing.append(text)
    configuration = mask >> 8 & 0xF
    if configuration >= 2:
        text = _CONFIGURATION.get(configuration, f"code {configuration}")
        out.append(_bad(gpu, "FabricConfiguration", f"the NVLink fabric is configured wrongly: {text}"))
    # Later drivers have two more fields, where 1 is good and 2 is not.
    if mask >> 12 & 3 == 2:
        passing.append("no partition is assigned")
    if mask >> 14 & 3 == 2:
        passing.append("the fabric manager is disconnected")
    if passing:
        text = f"{title(gpu)}: NVLink fabric: {', '.join(passing)} (mask {mask:#x})"
        out.append(warn(NAME, "FabricHealth", text, device=gpu.bus_id))
    return out


def _bad(gpu: GpuView, code: str, text: str) -> Finding:
    return fatal(NAME, code, f"{title(gpu)}: {text}", action=Action.REPLACE, device=gpu.bus_id, is_hard=True)
