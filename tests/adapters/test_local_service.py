"""The service that the head node asks: what it answers, to whom, and that one process serves a cluster."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperpod.adapters.local import service
from hyperpod.adapters.local.client import ProviderClient
from hyperpod.adapters.local.provider import LocalProvider
from hyperpod.adapters.local.service import ensure_service, is_served, reply_to, serve, stop_service
from hyperpod.errors import InvalidState, NotFound
from tests.adapters.test_local_provider import make_provider, ready
from tests.fakes.podman import FakePodman
from tests.fakes.process import FakeProcesses


@pytest.fixture
def provider(tmp_path: Path) -> LocalProvider:
    return make_provider(tmp_path, FakePodman())


def ask(provider: LocalProvider, **request: Any) -> dict[str, Any]:
    return reply_to(provider, "demo", json.dumps(request).encode())


def test_shows_every_machine_of_its_cluster_only(provider: LocalProvider) -> None:
    ids = ready(provider)
    ready(provider, "other")

    reply = ask(provider, op="observe")

    assert reply["ok"]
    assert {row["node"]: row["id"] for row in reply["instances"]} == ids


def test_cuts_power_reboots_and_starts_again(provider: LocalProvider) -> None:
    ids = ready(provider)

    for op, status in (("power_off", "stopped"), ("power_on", "running"), ("reboot", "running")):
        assert ask(provider, op=op, instance_id=ids["worker-1"]) == {"ok": True}
        states = {row["node"]: row["status"] for row in ask(provider, op="observe")["instances"]}
        assert states["worker-1"] == status


def test_replaces_once_however_often_it_is_asked(provider: LocalProvider) -> None:
    ids = ready(provider)
    request = {"op": "replace", "node": "worker-1", "instance_id": ids["worker-1"], "token": "t"}

    first, again = ask(provider, **request), ask(provider, **request)

    assert first["instance"]["id"] == again["instance"]["id"] != ids["worker-1"]


def test_tells_how_a_birth_went(provider: LocalProvider) -> None:
    ids = ready(provider)

    assert ask(provider, op="birth", instance_id=ids["worker-1"])["birth"]["status"] == "ok"


def test_refuses_machines_of_another_cluster(provider: LocalProvider) -> None:
    ready(provider)
    foreign = ready(provider, "other")

    reply = ask(provider, op="power_off", instance_id=foreign["worker-1"])
    swapped = ask(provider, op="replace", node="worker-1", instance_id=foreign["worker-1"], token="t")

    assert (reply["ok"], reply["error"]) == (False, "NotFound")
    assert (swapped["ok"], swapped["error"]) == (False, "NotFound")


def test_a_node_without_a_known_machine_gets_one_in_its_own_cluster(provider: LocalProvider) -> None:
    foreign = ready(provider, "another")  # the first by name
    ids = ready(provider)
    provider.terminate(ids["worker-1"])

    reply = ask(provider, op="replace", node="worker-1", instance_id="", token="t")

    assert reply["ok"]
    assert {i.node: i.id for i in provider.observe("demo")}["worker-1"] == reply["instance"]["id"]
    assert {i.node: i.id for i in provider.observe("another")} == foreign
    with pytest.raises(NotFound, match="no instance"):
        provider.replace("worker-1", "", "t")


@pytest.mark.parametrize("line", [b"garbage\n", b"[]\n", b"{}\n", b'{"op": "format"}\n', b'{"op": "replace"}\n'])
def test_bad_requests_get_a_sentence(provider: LocalProvider, line: bytes) -> None:
    ready(provider)

    reply = reply_to(provider, "demo", line)

    assert not reply["ok"]
    assert reply["message"]


def test_a_provider_that_fails_says_when_to_come_again(tmp_path: Path) -> None:
    podman = FakePodman()
    provider = make_provider(tmp_path, podman)
    ready(provider)
    podman.break_next("ps", "Error: no space left on device")

    reply = reply_to(provider, "demo", b'{"op": "observe"}\n')

    assert (reply["ok"], reply["error"]) == (False, "NoCapacity")
    assert reply["retry_after_s"] > 0


@pytest.fixture
def running(provider: LocalProvider) -> Iterator[None]:
    """Serve a cluster in a thread until the test ends."""
    ready(provider)
    home = provider.cluster("demo")
    stop = threading.Event()
    thread = threading.Thread(target=serve, args=(provider, "demo"), kwargs={"stop": stop})
    thread.start()
    while not (home.socket.exists() and is_served(home)) and thread.is_alive():
        thread.join(0.001)
    yield
    stop.set()
    thread.join(10)


def test_the_head_nodes_client_gets_answers_over_the_socket(provider: LocalProvider, running: None) -> None:
    client = ProviderClient(str(provider.cluster("demo").socket))

    machines = {instance.node: instance for instance in client.observe("demo")}
    client.power_off(machines["worker-1"].id)
    fresh = client.replace("worker-1", machines["worker-1"].id, "t")

    assert list(machines) == ["head-1", "worker-1", "worker-2"]
    assert fresh.id != machines["worker-1"].id


def test_the_clients_errors_are_the_providers(provider: LocalProvider, running: None) -> None:
    with pytest.raises(NotFound, match="no instance"):
        ProviderClient(str(provider.cluster("demo").socket)).power_off("i-" + "0" * 17)


def test_a_second_service_is_refused(provider: LocalProvider, running: None) -> None:
    with pytest.raises(InvalidState, match="another process"):
        serve(provider, "demo")


def test_only_root_is_answered(provider: LocalProvider, running: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "peer_uid", lambda _connection: 1000)

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(provider.cluster("demo").socket))
        reply = json.loads(connection.makefile().readline())

    assert (reply["ok"], reply["error"]) == (False, "AccessDenied")


def test_the_socket_is_closed_to_others(provider: LocalProvider, running: None) -> None:
    assert provider.cluster("demo").socket.stat().st_mode & 0o077 == 0


def test_a_running_service_is_not_started_again(provider: LocalProvider, running: None) -> None:
    processes = FakeProcesses()

    ensure_service(provider, "demo", processes=processes)  # type: ignore[arg-type]

    assert processes.detached == []


def test_a_service_that_does_not_come_up_names_its_log(provider: LocalProvider) -> None:
    ready(provider)
    processes = FakeProcesses()

    with pytest.raises(InvalidState) as caught:
        ensure_service(provider, "demo", processes=processes, sleep=lambda _s: None)  # type: ignore[arg-type]

    assert processes.detached[0][-2:] == [str(provider.home), "demo"]
    assert "provider.log" in caught.value.hint


def test_stopping_what_does_not_run_is_done(provider: LocalProvider) -> None:
    ready(provider)

    stop_service(provider.cluster("demo"), sleep=lambda _s: None)

    assert not is_served(provider.cluster("demo"))


def test_a_damaged_list_of_slots_is_an_error_with_a_way_out(provider: LocalProvider) -> None:
    ready(provider)
    provider.cluster("demo").slots.write_text("{")

    reply = ask(provider, op="observe")

    assert (reply["ok"], reply["error"]) == (False, "StoreError")
    assert "delete-cluster" in reply["hint"]


@pytest.mark.parametrize("instance_id", ["", "..", "../../other/instances/i-0", "i-" + "g" * 17, "i-0"])
def test_what_is_no_instance_id_never_becomes_part_of_a_path(provider: LocalProvider, instance_id: str) -> None:
    ready(provider)

    reply = ask(provider, op="power_off", instance_id=instance_id)

    assert (reply["ok"], reply["error"]) == (False, "UsageError")


@pytest.mark.parametrize("text", ["-1", "0", "1", "", "abc", "99999999999999999999"])
def test_a_damaged_pid_file_ends_nobody(
    provider: LocalProvider, running: None, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(service.os, "kill", lambda pid, _signal: killed.append(pid))
    home = provider.cluster("demo")
    home.pid_file.write_text(text)

    with pytest.raises(InvalidState, match="process id"):
        stop_service(home, sleep=lambda _s: None)

    assert killed == []


def test_a_request_that_is_nested_too_deeply_is_refused(provider: LocalProvider) -> None:
    assert reply_to(provider, "demo", b"[" * 60_000 + b"\n")["error"] == "UsageError"
