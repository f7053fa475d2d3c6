"""The folder of a cluster: closed to others, and damage in it is told, not guessed around."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hyperpod.adapters.local.home import ClusterHome, read_json, write_file
from hyperpod.adapters.local.secrets import ClusterSecrets
from hyperpod.errors import StoreError
from tests.fakes.process import FakeProcesses


@pytest.fixture
def home(tmp_path: Path) -> ClusterHome:
    made = ClusterHome(tmp_path, "demo")
    made.create()
    return made


def test_no_other_user_of_the_machine_reaches_a_clusters_files_or_locks(home: ClusterHome) -> None:
    assert home.path.stat().st_mode & 0o077 == 0
    assert home.secrets.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "7", "[" * 100_000, "\udcff"])
def test_a_damaged_file_is_named_with_a_way_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "slots.json"
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(StoreError, match=r"slots\.json is damaged") as caught:
        read_json(path)

    assert "delete-cluster" in caught.value.hint


def test_a_folder_in_the_place_of_a_file_is_damage_too(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="damaged"):
        read_json(tmp_path)


def test_a_full_disk_says_which_file_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space left") as caught:
        write_file(tmp_path / "spec.json", "x")

    assert caught.value.filename == str(tmp_path / "spec.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", [None, b"", b"short"])
def test_a_lost_munge_key_is_taken_from_a_node_not_made_anew(home: ClusterHome, left: bytes | None) -> None:
    write_file(home.config("worker-1") / "munge.key", b"k" * 1024)
    write_file(home.config("head-1") / "munge.key", b"")
    if left is not None:
        (home.secrets / "munge.key").write_bytes(left)

    path = ClusterSecrets(home, FakeProcesses()).munge_key

    assert path.read_bytes() == b"k" * 1024
    assert path.stat().st_mode & 0o777 == 0o400


def test_a_lost_host_key_is_taken_from_its_node(home: ClusterHome) -> None:
    write_file(home.config("worker-1") / "ssh_host_ed25519_key", "private")
    write_file(home.config("worker-1") / "ssh_host_ed25519_key.pub", "public")

    path = ClusterSecrets(home, FakeProcesses()).host_key("worker-1")

    assert (path.read_text(), Path(f"{path}.pub").read_text()) == ("private", "public")
    assert path.stat().st_mode & 0o077 == 0
