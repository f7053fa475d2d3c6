"""Read a YAML or JSON file into plain data, and remember the line of every key.

Owns what may stand in such a file at all: its size, its encoding, no key twice, no tags, no endless expansion. Knows
nothing of what the data mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from hyperpod.config.problem import Path as DataPath
from hyperpod.config.problem import Problem, shown
from hyperpod.errors import ConfigError

MAX_BYTES: Final = 512 * 1024
"""A hundred instance groups with everything written out are about 200 KB."""
MAX_VALUES: Final = 50_000
"""Values in a document after its aliases are expanded; stops files which unfold to gigabytes."""
MAX_DEPTH: Final = 40


@dataclass(frozen=True)
class Document:
    """A file's content (a mapping) and where each part of it stands; ``problems`` has repeated keys and the like."""

    source: str
    data: dict[str, Any]
    lines: Mapping[DataPath, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def line(self, path: DataPath) -> int:
        """Return the line of a path, or of the closest part around it that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_document(path: Path, shown_as: str | None = None) -> Document:
    """Read a file; JSON if it begins with ``{`` or is named ``.json``, else YAML.

    Raises:
        ConfigError: on one line, if it cannot be read or is not a mapping.
    """
    source = shown_as or str(path)
    text = _read_text(path, source)
    looks_json = path.suffix == ".json" or text.lstrip().startswith("{")
    parsed = _parse_json(text, source, strict=path.suffix == ".json") if looks_json else None
    # Strict JSON has tabs only between tokens, where YAML does not allow them.
    node = _compose(text.replace("\t", " ") if parsed is not None else text, source, is_json=parsed is not None)
    walk = _Walk(source)
    data = walk.build(node, (), 0) if node is not None else None
    if parsed is not None:
        data = parsed
    if not isinstance(data, dict):
        kind = "nothing but comments" if data is None else shown(data)
        raise ConfigError(f"{source}: must be a mapping with keys such as ClusterName, found {kind}")
    return Document(source, data, walk.lines, tuple(walk.problems))


def _read_text(path: Path, source: str) -> str:
    try:
        if path.is_dir():
            raise ConfigError(f"{source}: is a directory; name the file in it")
        if not path.is_file() and path.exists():
            raise ConfigError(f"{source}: is not a regular file")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{source}: no such file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"{source}: cannot be read: {reason}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{source}: is larger than {MAX_BYTES // 1024} KiB; is this the right file?")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: is not UTF-8 text (byte 0x{raw[error.start]:02x})") from error
    if not text.strip():
        raise ConfigError(f"{source}: is empty")
    return text


def _parse_json(text: str, source: str, *, strict: bool) -> Any:
    """Return the value of a JSON text, or None if it is not JSON and may be YAML in flow style."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if not strict:
            return None
        raise ConfigError(f"{source}:{error.lineno}: is not valid JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: is nested too deeply (more than {MAX_DEPTH} levels)") from error
    except ValueError as error:
        raise ConfigError(f"{source}: is not valid JSON: {error}") from error


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")


class _Composer(yaml.SafeLoader):
    """PyYAML's composer, which by itself follows brackets until Python's stack ends."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            problem = f"nested too deeply (more than {MAX_DEPTH} levels)"
            raise yaml.composer.ComposerError(None, None, problem, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _compose(text: str, source: str, *, is_json: bool) -> yaml.Node | None:
    """Return the nodes of a YAML text; None for JSON in a form that YAML does not know, so that only lines are lost."""
    try:
        loader = _Composer(text)
        return loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        where, problem = f"{source}:{line}", f"contains the control character U+{ord(text[error.position]):04X}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1 if mark else 1}"
        problem = f"is not valid YAML: {', '.join(part for part in (error.context, error.problem) if part)}"
        if "'\\t'" in problem:
            problem = "is not valid YAML: a tab; YAML is indented with blanks only"
    if is_json:
        return None
    raise ConfigError(f"{where}: {problem}")


class _Walk:
    """Turns YAML nodes into data, in one pass that cannot grow without limit."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[DataPath, int] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._values = 0
        self._constructor = yaml.constructor.SafeConstructor()

    def build(self, node: yaml.Node, path: DataPath, depth: int) -> Any:
        self._values += 1
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if self._values > MAX_VALUES:
            raise ConfigError(f"{self.source}:{line}: unfolds to more than {MAX_VALUES} values through its aliases")
        if depth > MAX_DEPTH:  # through aliases
            raise ConfigError(f"{self.source}:{line}: is nested too deeply (more than {MAX_DEPTH} levels)")
        if id(node) in self._open:
            raise ConfigError(f"{self.source}:{line}: an alias contains itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path, depth)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(child, (*path, index), depth + 1) for index, child in enumerate(node.value)]
            return self._scalar(node, line)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: DataPath, depth: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self.source}:{line}: a key must be a word, not a list or a mapping")
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise ConfigError(f"{self.source}:{line}: merge keys (<<) are not understood; write the keys out")
            key = str(key_node.value)
            child = (*path, key)
            if key in data:
                self.problems.append(Problem(child, f"key given twice, first on line {self.lines[child]}"))
                self.lines[child] = line
                continue
            self.lines[child] = line
            data[key] = self.build(value_node, child, depth + 1)
        return data

    def _scalar(self, node: yaml.Node, line: int) -> Any:
        try:
            value = self._constructor.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            problem = shown(getattr(error, "problem", None) or str(error), 120).strip("'\"")
            raise ConfigError(f"{self.source}:{line}: {shown(node.value)} is not understood: {problem}") from error
        if isinstance(value, bytes | set):
            raise ConfigError(f"{self.source}:{line}: {node.tag} is not understood; write plain text")
        return value
