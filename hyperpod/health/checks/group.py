"""The node is like the others of its group. Judged by the controller, which alone sees them all (``core.majority``)."""

from __future__ import annotations

from hyperpod.core.majority import CHECK, DIFFERS, FEWER, Limits
from hyperpod.health.check import About

__all__ = ["ABOUT", "NAME", "Limits"]

NAME = CHECK

ABOUT = About(
    title="The node has what the others of its group have",
    reads="What the nodes' own checks have counted: GPUs, links, EFA interfaces, Neuron devices, memory, local "
    "disks, versions of drivers, speeds. It is compared on the head node.",
    means="Machines of a group are equal, so what most of them count is what there should be. Without a majority "
    "nothing is said. More than most_broken nodes that differ in one thing are a matter of the site: an upgrade that "
    "is under way, a setting that was changed.",
    does="FATAL, drain, when a node has fewer GPUs, links, interfaces, devices, disks or less memory than its group "
    "for settle_s. More of them, another version, and everything that several nodes differ in are WARN.",
    codes={
        FEWER: "The node has fewer of something than most of its group.",
        DIFFERS: "Something of the node differs from most of its group (WARN).",
    },
    source="Our own judgement; the instance types' tables are a hint only, and clusters outside of AWS have none.",
)
