"""Reading a file that stands in for /dev/kmsg: growth, cuts, replacement, half lines."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from hyperpod.adapters.inotify import watch_folder
from hyperpod.adapters.kmsg import KmsgReader, split_records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kmsg"


def test_everything_from_the_beginning_and_then_what_is_new(path: Path) -> None:
    path.write_text("4,1,5,-;one\n4,2,6,-;two\n")
    reader = KmsgReader(str(path))
    assert reader.read().records == ("4,1,5,-;one", "4,2,6,-;two")
    assert reader.read().records == ()
    with path.open("a") as file:
        file.write("4,3,7,-;three\n")
    assert reader.read().records == ("4,3,7,-;three",)
    reader.close()


def test_a_half_line_waits_for_its_end(path: Path) -> None:
    path.write_text("4,1,5,-;on")
    reader = KmsgReader(str(path))
    assert reader.read().records == ()
    with path.open("a") as file:
        file.write("e\n4")
    assert reader.read().records == ("4,1,5,-;one",)
    reader.close()


def test_a_missing_file_is_an_error_until_it_appears(path: Path) -> None:
    reader = KmsgReader(str(path))
    assert "No such file" in reader.read().error
    path.write_text("4,1,5,-;one\n")
    assert reader.read().records == ("4,1,5,-;one",)
    path.unlink()
    assert "No such file" in reader.read().error


def test_a_cut_file_is_read_anew_and_said(path: Path) -> None:
    path.write_text("4,1,5,-;one\n4,2,6,-;two\n")
    reader = KmsgReader(str(path))
    reader.read()
    path.write_text("4,1,9,-;new\n")
    batch = reader.read()
    assert (batch.records, batch.was_restarted) == (("4,1,9,-;new",), True)
    reader.close()


def test_a_replaced_file_is_read_anew_and_said(path: Path) -> None:
    path.write_text("4,1,5,-;one\n")
    reader = KmsgReader(str(path))
    reader.read()
    other = path.with_name("other")
    other.write_text("4,1,9,-;a line of the same length or longer\n")
    os.replace(other, path)
    batch = reader.read()
    assert (batch.records, batch.was_restarted) == (("4,1,9,-;a line of the same length or longer",), True)
    reader.close()


def test_bytes_that_are_no_text_do_no_harm(path: Path) -> None:
    path.write_bytes(b"4,1,5,-;\xff\xfe\n4,2,6,-;two\n")
    reader = KmsgReader(str(path))
    assert len(reader.read().records) == 2
    reader.close()


def test_a_line_without_an_end_does_not_grow_for_ever(path: Path) -> None:
    path.write_bytes(b"x" * 300_000)
    reader = KmsgReader(str(path))
    reader.read()
    reader.read()
    assert len(reader._rest) < 70_000
    reader.close()


def test_a_large_file_is_read_in_portions(path: Path) -> None:
    path.write_text("".join(f"4,{n},5,-;{'x' * 90}\n" for n in range(4000)))
    reader = KmsgReader(str(path))
    count = 0
    while True:
        batch = reader.read()
        count += len(batch.records)
        if not batch.has_more:
            break
    assert count == 4000
    reader.close()


def _is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_a_file_can_be_waited_for(path: Path) -> None:
    path.write_text("")
    reader = KmsgReader(str(path))
    reader.read()
    assert not _is_readable(reader.fileno())
    with path.open("a") as file:
        file.write("4,1,5,-;one\n")
    assert _is_readable(reader.fileno())
    assert reader.read().records == ("4,1,5,-;one",)
    assert not _is_readable(reader.fileno())
    reader.close()


def test_a_file_that_is_put_in_its_place_is_told(path: Path) -> None:
    path.write_text("")
    reader = KmsgReader(str(path))
    reader.read()
    other = path.with_name("other")
    other.write_text("4,1,9,-;new\n")
    os.replace(other, path)
    assert _is_readable(reader.fileno())
    assert reader.read().records == ("4,1,9,-;new",)
    reader.close()


def test_a_folder_that_cannot_be_watched_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        watch_folder(str(tmp_path / "missing"))


def test_continuation_lines_belong_to_the_record_before() -> None:
    assert split_records("4,1,5,-;one\n SUBSYSTEM=pci\n DEVICE=+pci:0\n4,2,6,-;two\nhalf") == (
        ["4,1,5,-;one", "4,2,6,-;two"],
        "half",
    )
