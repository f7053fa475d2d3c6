"""One value in the output of a tool: where it stands, of which device, what it is. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """One value.

    Attributes:
        line: Line of the text, from 1.
        device: What it belongs to, as the tool's parser names devices; empty for all.
        field: The parser's own name for the value.
        value: As printed, without blanks at its ends.
    """

    line: int
    device: str
    field: str
    value: str
