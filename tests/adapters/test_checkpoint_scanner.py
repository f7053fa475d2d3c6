"""The scan for checkpoints runs as the job's user, so its answer may be anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from hyperpod.adapters.checkpoints import CheckpointScanner
from hyperpod.ports.process import Completed


class Says:
    """A process runner whose programs say one thing."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.argv: Sequence[str] = ()
        self.user: str | None = None

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        check: bool = True,
    ) -> Completed:
        self.argv, self.user = argv, user
        return Completed(self._text, "", 0)


HUGE_PATH = json.dumps({"latest": "/x" * 100_000, "step": 1})


@pytest.mark.parametrize(
    "text",
    ["", "x", "[1]", "null", "{}", "[" * 100_000, '{"latest": "/a", "step": 1e999}', '{"latest": "/a", "step": "x"}',
     '{"latest": "", "set_aside": 7}', HUGE_PATH],
)  # fmt: skip
def test_nonsense_is_no_checkpoint_and_no_error(text: str) -> None:
    scan = CheckpointScanner(Says(text), "/lib").scan("/fsx/run", "alice", set_aside=True)

    assert (scan.path, scan.step) == ("", None)
    assert scan.problems


def test_nothing_of_the_users_home_is_loaded_on_the_head_node() -> None:
    runner = Says('{"latest": "/fsx/run/step_4", "step": 4}')

    scan = CheckpointScanner(runner, "/lib").scan("/fsx/run", "alice", set_aside=False)

    assert (scan.path, scan.step, runner.user) == ("/fsx/run/step_4", 4, "alice")
    assert {"-s", "-P"} <= set(runner.argv[: runner.argv.index("-m")])
