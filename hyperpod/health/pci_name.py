"""How PCI devices are called. Pure."""

from __future__ import annotations


def device_of(pci: str) -> str:
    """Return the form in which devices are named everywhere, the kernel's own: ``0000:9b:00.0``.

    NVIDIA's lines leave out the function, or the domain, or write either with more digits.
    """
    *domain, bus, slot = pci.strip(" .").lower().split(":")
    slot, _, function = slot.partition(".")
    return f"{domain[-1][-4:] if domain else '0000'}:{bus}:{slot}.{function[-1:] or '0'}"
