"""What every node of a local cluster sees is what nodes everywhere see."""

from hyperpod.adapters.nodeconfig import render_hosts, render_known_hosts, resource_config

__all__ = ["render_hosts", "render_known_hosts", "resource_config"]
