"""Lifecycle scripts to S3 and back, on moto."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from hyperpod import errors
from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.scripts import (
    Prefix,
    Script,
    ScriptStore,
    check_scripts,
    mend,
    parse_prefix,
    read_folder,
)
from hyperpod.adapters.process import Processes

PLACE = Prefix("sagemaker-scripts", "base/")


@pytest.fixture
def s3() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=PLACE.bucket)
        yield client


@pytest.fixture
def store(s3: Any) -> ScriptStore:
    return ScriptStore(Aws(region="us-east-1", sleep=lambda _: None))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "scripts"
    (made / "lib").mkdir(parents=True)
    (made / "on_create.sh").write_text("#!/bin/bash\necho hello\n")
    (made / "on_create.sh").chmod(0o755)
    (made / "lib" / "common.sh").write_text("answer=42\n")
    (made / "config.json").write_text("{}")
    (made / "__pycache__").mkdir()
    (made / "__pycache__" / "x.pyc").write_bytes(b"x")
    return made


def troubles(folder: Path, *entries: str) -> list[str]:
    return [str(trouble) for trouble in check_scripts(read_folder(folder), Processes(), entries)]


def test_only_what_changed_is_sent(store: ScriptStore, folder: Path, s3: Any) -> None:
    first = store.sync(read_folder(folder), PLACE)
    assert first.sent == ("config.json", "lib/common.sh", "on_create.sh")
    (folder / "config.json").write_text('{"a": 1}')
    second = store.sync(read_folder(folder), PLACE)
    assert (second.sent, second.equal) == (("config.json",), ("lib/common.sh", "on_create.sh"))
    assert s3.get_object(Bucket=PLACE.bucket, Key="base/config.json")["Body"].read() == b'{"a": 1}'


def test_what_the_folder_lacks_stays_unless_it_is_to_go(store: ScriptStore, folder: Path, s3: Any) -> None:
    s3.put_object(Bucket=PLACE.bucket, Key="base/old.sh", Body=b"x")
    s3.put_object(Bucket=PLACE.bucket, Key="other/keep.sh", Body=b"x")
    assert store.sync(read_folder(folder), PLACE).extra == ("old.sh",)
    assert store.sync(read_folder(folder), PLACE, delete=True).removed == ("old.sh",)
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=PLACE.bucket)["Contents"]]
    assert "base/old.sh" not in keys
    assert "other/keep.sh" in keys


def test_a_dry_run_sends_and_fetches_nothing(store: ScriptStore, folder: Path, s3: Any, tmp_path: Path) -> None:
    assert len(store.sync(read_folder(folder), PLACE, dry_run=True).sent) == 3
    assert "Contents" not in s3.list_objects_v2(Bucket=PLACE.bucket)
    store.sync(read_folder(folder), PLACE)
    assert len(store.pull(tmp_path / "back", PLACE, dry_run=True).sent) == 3
    assert not (tmp_path / "back").exists()


def test_what_is_fetched_is_what_was_sent(store: ScriptStore, folder: Path, tmp_path: Path) -> None:
    store.sync(read_folder(folder), PLACE)
    back = tmp_path / "back"
    assert len(store.pull(back, PLACE).sent) == 3
    sent, fetched = read_folder(folder), read_folder(back)
    assert [(s.name, s.content, s.is_executable) for s in sent] == [
        (s.name, s.content, s.is_executable) for s in fetched
    ]
    (back / "mine.txt").write_text("x")
    again = store.pull(back, PLACE)
    assert (again.sent, again.extra) == ((), ("mine.txt",))


def test_a_name_that_leads_out_of_the_folder_is_refused(store: ScriptStore, s3: Any, tmp_path: Path) -> None:
    s3.put_object(Bucket=PLACE.bucket, Key="base/../../evil.sh", Body=b"x")
    with pytest.raises(errors.ProviderError, match="leave the folder"):
        store.pull(tmp_path / "back", PLACE)


def test_an_empty_place_and_a_missing_bucket_are_told(store: ScriptStore, tmp_path: Path) -> None:
    with pytest.raises(errors.ProviderError, match="has no files"):
        store.pull(tmp_path / "back", Prefix(PLACE.bucket, "nowhere/"))
    with pytest.raises(errors.NotFound, match="no-such-bucket"):
        store.pull(tmp_path / "back", Prefix("no-such-bucket"))


def test_good_scripts_have_no_trouble(folder: Path) -> None:
    assert troubles(folder, "on_create.sh") == []


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (b"#!/bin/bash\r\necho\r\n", 0o755, "Windows line ends"),
        (b"\xef\xbb\xbf#!/bin/bash\n", 0o755, "byte order mark"),
        (b"echo\n", 0o755, "does not begin with #!"),
        (b"#!/bin/bash\nif true; then\n", 0o755, "not valid shell"),
        (b"#!/bin/bash\n", 0o644, "not executable"),
        (b" \n", 0o755, "is empty"),
    ],
)
def test_what_would_fail_on_a_node_is_found_here(folder: Path, content: bytes, mode: int, words: str) -> None:
    (folder / "on_create.sh").write_bytes(content)
    (folder / "on_create.sh").chmod(mode)
    (found,) = troubles(folder, "on_create.sh")
    assert found.startswith("on_create.sh: ")
    assert words in found


def test_an_entry_that_is_missing_is_trouble(folder: Path) -> None:
    assert troubles(folder, "on_init_complete.sh") == [
        "on_init_complete.sh: is named in the specification and not in the folder"
    ]


def test_sourced_files_need_neither_first_line_nor_rights_but_must_be_shell(folder: Path) -> None:
    (folder / "lib" / "common.sh").write_text("if x\n")
    assert "not valid shell" in troubles(folder)[0]


def test_mending_changes_line_ends_and_rights_and_no_file() -> None:
    script = Script("a.sh", Path("/nowhere"), b"\xef\xbb\xbf#!/bin/sh\r\nx\r\n", False)
    assert mend(script, is_entry=True) == Script("a.sh", Path("/nowhere"), b"#!/bin/sh\nx\n", True)


@pytest.mark.parametrize("text", ["bucket/x", "s3:///x", "https://b/x", "s3://"])
def test_what_is_no_place_in_s3_is_refused(text: str) -> None:
    with pytest.raises(errors.UsageError):
        parse_prefix(text)


def test_a_place_ends_with_a_slash() -> None:
    assert [str(parse_prefix(text)) for text in ("s3://b", "s3://b/x", "s3://b/x/")] == [
        "s3://b/", "s3://b/x/", "s3://b/x/",
    ]  # fmt: skip
