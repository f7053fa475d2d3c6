"""The agent's configuration file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hyperpod.agent.settings import Peer, parse_settings
from hyperpod.core.node import Role
from hyperpod.errors import ConfigError

GOOD: dict[str, Any] = {
    "cluster": "demo",
    "node": "worker-1",
    "group": "worker",
    "role": "worker",
    "head_address": "10.0.0.2",
}


def parse(**changes: Any) -> Any:
    return parse_settings(json.dumps({**GOOD, **changes}), "/etc/hyperpod/agent.json")


def test_what_is_needed_is_enough() -> None:
    settings = parse()
    assert (settings.node, settings.role, settings.controller_port) == ("worker-1", Role.WORKER, 6830)
    assert settings.expected_cpus is None


def test_everything_is_read() -> None:
    settings = parse(
        peers=[
            {"node": "head-1", "address": "10.0.0.2", "role": "head"},
            {"node": "worker-1", "address": "10.0.0.3", "role": "worker"},
            {"node": "worker-2", "address": "10.0.0.4"},
        ],
        shared_mounts=["/fsx"],
        cpus=2,
        memory_mb=1000,
        head_node="head-1",
        lease_s=5,
        controller_port=7000,
        expected={"gpus": 8},
    )
    assert settings.expected == {"gpus": 8}
    assert settings.peers == (Peer("worker-2", "10.0.0.4"),)
    assert (settings.shared_mounts, settings.lease_s, settings.controller_port) == (("/fsx",), 5.0, 7000)
    assert (settings.expected_cpus, settings.expected_memory_mib) == (2, 1000)


def test_a_key_that_is_not_known_is_noted_and_does_not_stop_the_agent() -> None:
    settings = parse(heartbeat_interval=1, something_new=2)
    assert settings.ignored == ("heartbeat_interval (did you mean heartbeat_interval_s?)", "something_new")


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_a_missing_key_is_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"{missing}: is missing"):
        parse(**{missing: None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"role": "slave"}, "role: must be one of head, login, worker"),
        ({"lease_s": 0.1}, "lease_s: must be a number from 2 to 3600"),
        ({"lease_s": "10"}, "lease_s: must be a number"),
        ({"controller_port": 0}, "controller_port: must be a number from 1 to 65535"),
        ({"controller_port": True}, "controller_port: must be a number"),
        ({"peers": ["worker-2"]}, "peers: must be a list of objects with node and address"),
        ({"peers": 3}, "peers: must be a list"),
        ({"shared_mounts": "/fsx"}, "shared_mounts: must be a list of texts"),
        ({"health": []}, None),
        ({"health": [1]}, "health: must be an object"),
        ({"expected": [8]}, "expected: must be an object"),
        ({"expected": {"gpus": "8"}}, "expected.gpus: must be a number"),
        ({"cpus": 0}, "cpus: must be a number from 1"),
        ({"memory_mb": "many"}, "memory_mb: must be a number"),
        ({"kmsg_path": 3}, "kmsg_path: must be a text"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(changes: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert parse(**changes).health == {}
        return
    with pytest.raises(ConfigError, match=message):
        parse(**changes)


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_file_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.json"):
        parse_settings(text, "/etc/hyperpod/agent.json")
