"""What a file may hold at all: every unreadable one is refused on one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod.config.document import MAX_BYTES, read_document
from hyperpod.errors import ConfigError

BOMB = "\n".join(
    ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    + [f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
)

UNREADABLE: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "spec.yaml: is empty"),
    "blank": (" \n\n", "spec.yaml: is empty"),
    "only comments": (
        "# nothing\n",
        "spec.yaml: must be a mapping with keys such as ClusterName, found nothing but comments",
    ),
    "a list": ("- 1\n", "spec.yaml: must be a mapping with keys such as ClusterName, found a list"),
    "a tab": ("a:\n\tb: 1\n", "spec.yaml:2: is not valid YAML: a tab; YAML is indented with blanks only"),
    "an open bracket": (
        "a: [1\nb: 2\n",
        "spec.yaml:2: is not valid YAML: while parsing a flow sequence, expected ',' or ']', but got ':'",
    ),
    "not UTF-8": (b"a: 1\nb: \xff\xfe\n", "spec.yaml:2: is not UTF-8 text (byte 0xff)"),
    "a control character": (b"a: 1\nb: \x07\n", "spec.yaml:2: contains the control character U+0007"),
    "too large": ("a" * (MAX_BYTES + 1), "spec.yaml: is larger than 512 KiB; is this the right file?"),
    "two documents": (
        "a: 1\n---\nb: 2\n",
        "spec.yaml:2: is not valid YAML: expected a single document in the stream, but found another document",
    ),
    "an alias of nothing": ("a: *b\n", "spec.yaml:1: is not valid YAML: found undefined alias 'b'"),
    "an alias in itself": ("a: &a\n  - *a\n", "spec.yaml:1: an alias contains itself"),
    "an alias bomb": (BOMB, "spec.yaml:1: unfolds to more than 50000 values through its aliases"),
    "merge keys": (
        "a: &a {x: 1}\nb: {<<: *a}\n",
        "spec.yaml:2: merge keys (<<) are not understood; write the keys out",
    ),
    "a key that is a list": ("? [1]\n: 2\n", "spec.yaml:1: a key must be a word, not a list or a mapping"),
    "too deep": (
        "a:\n" + " - " + "[" * 60 + "]" * 60,
        "spec.yaml:2: is not valid YAML: nested too deeply (more than 40 levels)",
    ),
    "too deep through aliases": (
        "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [[*a{n - 1}]]\n" for n in range(1, 30)),
        "spec.yaml:1: is nested too deeply (more than 40 levels)",
    ),
    "bottomless": ("a: " + "[" * 500_000, "spec.yaml:1: is not valid YAML: nested too deeply (more than 40 levels)"),
    "a day that never was": (
        "a: 2026-13-45\n",
        "spec.yaml:1: '2026-13-45' is not understood: month must be in 1..12",
    ),
    "bytes": ("a: !!binary aGVsbG8=\n", "spec.yaml:1: tag:yaml.org,2002:binary is not understood; write plain text"),
    "an object": (
        "a: !!python/name:os.system x\n",
        "spec.yaml:1: 'x' is not understood: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/name:os.system",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_unreadable_file_is_refused_on_one_line(case: str, tmp_path: Path) -> None:
    content, expected = UNREADABLE[case]
    file = tmp_path / "spec.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as caught:
        read_document(file, "spec.yaml")
    assert caught.value.message == expected


UNREADABLE_JSON = {
    "a comma too many": ('{"a": 1,\n}', "2: is not valid JSON: "),
    "half a file": ('{"a": {\n', ": is not valid JSON: "),
    "no number": ('{"a": NaN}', ": is not valid JSON: NaN is not a number of JSON"),
    "bottomless": ("[" * 100_000, ": is nested too deeply"),
}


@pytest.mark.parametrize("case", UNREADABLE_JSON)
def test_unreadable_json_is_refused_on_one_line(case: str, tmp_path: Path) -> None:
    content, expected = UNREADABLE_JSON[case]
    file = tmp_path / "spec.json"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_document(file)
    assert expected in caught.value.message
    assert "\n" not in caught.value.message


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, expected in (
        (tmp_path, "is a directory; name the file in it"),
        (tmp_path / "none.yaml", "no such file"),
        (Path("/dev/null"), "is not a regular file"),
        (Path("a\0b"), "cannot be read: embedded null byte"),
    ):
        with pytest.raises(ConfigError, match=expected):
            read_document(path)


def test_json_indented_with_tabs_keeps_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{\n\t"a": {\n\t\t"b/c": "x\\ty",\n\t\t"d": [1,\n\t\t2]}}')
    document = read_document(file)
    assert document.data == {"a": {"b/c": "x\ty", "d": [1, 2]}}
    assert [document.line(path) for path in [("a", "b/c"), ("a", "d", 1), ("a", "nowhere")]] == [3, 5, 2]


def test_json_that_is_no_yaml_only_loses_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"a": "\x7f",\n"b": 1}')
    document = read_document(file)
    assert (document.data, document.line(("b",))) == ({"a": "\x7f", "b": 1}, 1)


def test_yaml_in_flow_style_is_no_broken_json(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("{a: 1, b: [x, y]}  # a comment\n")
    assert read_document(file).data == {"a": 1, "b": ["x", "y"]}


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: text\r\n")
    assert read_document(file).data == {"a": 1, "b": "text"}


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_on_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any-text.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        document = read_document(file, "spec.yaml")
    except ConfigError as error:
        refusal = error.message
    else:
        refusal = ""
        assert isinstance(document.data, dict)
    assert len(refusal.split("\n")) == 1
