"""Writes the daemons' configuration on a HyperPod node: ``python3 -m hyperpod.adapters.aws.node_setup``.

Run by ``lifecycle_scripts/aws/on_init_complete.sh``. Reads the files of the service and, where they were sent along,
the policies of the specification. Standard library only. Running it again changes nothing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hyperpod.adapters.aws.resource_config import DEFAULT_PATH, Member, Membership, read_membership
from hyperpod.adapters.nodeconfig import peers_of
from hyperpod.core.instance_hardware import expected_of
from hyperpod.core.node import Role
from hyperpod.errors import HyperpodError

CONTROLLER_PORT: Final = 6830
METRICS_PORT: Final = 9630


def agent_config(
    membership: Membership, own: Member, policies: Mapping[str, Any], mounts: Sequence[str]
) -> dict[str, Any]:
    """Return what this node's agent is told."""
    resume: Mapping[str, Any] = policies.get("resume") or {}
    config: dict[str, Any] = {
        "cluster": membership.cluster,
        "node": own.name,
        "group": own.group,
        "role": own.role.value,
        "instance_id": own.instance_id,
        "address": own.address,
        "head_node": membership.head.name,
        "head_address": membership.head.address,
        "controller_port": CONTROLLER_PORT,
        "shared_mounts": list(mounts),
        "peers": [
            {"node": other.name, "address": other.address, "role": other.role.value}
            for other in peers_of(membership.members, membership.members.index(own), lambda m: m.role is Role.WORKER)
        ],
        "health": _health(policies, own.group),
        "expected": expected_of(own.instance_type),
    }
    config |= {key: resume[key] for key in ("heartbeat_interval_s", "lease_s") if key in resume}
    return config


def _health(policies: Mapping[str, Any], group: str) -> Mapping[str, Any]:
    """Return the policy of the checks: the group's own, if the specification was sent along."""
    for entry in policies.get("groups") or ():
        if entry.get("name") == group and "health" in entry:
            return dict(entry["health"])
    return dict(policies.get("health") or {})


def controller_config(
    membership: Membership, policies: Mapping[str, Any], slurm: Path, state_dir: str, *, use_api: bool
) -> dict[str, Any]:
    """Return what the controller on the head node is told."""
    partitions = {member.group: member.partition for member in membership.members if member.role is Role.WORKER}
    groups = policies.get("groups") or [
        {"name": group, "role": Role.WORKER.value, "partition": partition or None, "spares": 0}
        for group, partition in partitions.items()
    ]
    return {
        "cluster": membership.cluster,
        "port": CONTROLLER_PORT,
        "metrics_port": METRICS_PORT,
        "state_dir": "/var/lib/hyperpod",
        "slurm_state_dir": state_dir,
        "slurm_conf_path": str(slurm / "etc" / "slurm.conf"),
        "provider": {
            "kind": "hyperpod",
            "cluster": membership.cluster,
            "region": membership.region,
            "api": use_api,
        },
        "policies": {**policies, "groups": groups},
        "nodes": [
            {
                "node": member.name,
                "group": member.group,
                "role": member.role.value,
                "address": member.address,
                "partition": member.partition or None,
                "spare": False,
            }
            for member in membership.members
        ],
    }


def state_save_location(slurm_conf: str) -> str:
    """Return where slurmctld keeps its state, by slurm.conf; its default when it does not say."""
    for line in slurm_conf.splitlines():
        key, equals, value = line.partition("#")[0].partition("=")
        if equals and key.strip().lower() == "statesavelocation":
            return value.strip()
    return "/var/spool/slurmctld"


def write_if_changed(path: Path, data: Mapping[str, Any]) -> bool:
    """Write a file whole; False when it says so already."""
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    if path.is_file() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(path)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Write the configuration and print what this node is, as assignments for the shell."""
    parser = argparse.ArgumentParser(prog="hyperpod-node-setup", description="Configure hyperpod on a HyperPod node.")
    parser.add_argument("--resource-config", type=Path, default=Path(DEFAULT_PATH))
    parser.add_argument("--parameters", type=Path, default=None, help="provisioning_parameters.json, if there is one")
    parser.add_argument("--policies", type=Path, default=None, help="policies of the specification, if sent along")
    parser.add_argument("--address", action="append", default=[], help="an address of this machine; may be repeated")
    parser.add_argument("--slurm", type=Path, default=Path("/opt/slurm"))
    parser.add_argument("--root", default="", help="another root tree, in which Slurm is")
    parser.add_argument("--out", type=Path, default=Path("/etc/hyperpod"))
    parser.add_argument("--mount", action="append", default=[], help="a folder that all nodes share")
    parser.add_argument("--no-api", action="store_true", help="never ask the HyperPod API, only Slurm")
    options = parser.parse_args(argv)
    try:
        membership = read_membership(options.resource_config, options.parameters)
        own = membership.find(options.address)
        policies = json.loads(options.policies.read_text()) if options.policies and options.policies.is_file() else {}
        changed = []
        if write_if_changed(options.out / "agent.json", agent_config(membership, own, policies, options.mount)):
            changed.append("agent")
        if own.role is Role.HEAD:
            conf = Path(f"{options.root}{options.slurm}") / "etc" / "slurm.conf"
            state_dir = state_save_location(conf.read_text() if conf.is_file() else "")
            config = controller_config(membership, policies, options.slurm, state_dir, use_api=not options.no_api)
            if write_if_changed(options.out / "controller.json", config):
                changed.append("controller")
    except HyperpodError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    values = {"HP_ROLE": own.role.value, "HP_NODE": own.name, "HP_GROUP": own.group, "HP_CHANGED": " ".join(changed)}
    sys.stdout.write("".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
