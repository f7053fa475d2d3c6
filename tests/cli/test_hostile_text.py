"""Names are their users' choice; what they hold must not act on an administrator's terminal."""

from __future__ import annotations

import json

import pytest
from answers import event, job, node, status
from surroundings import Fakes

from hyperpod.cli.render import event_line, printable

HOSTILE = "evil\x1b[2J\x1b]0;title\x07\n2026-01-01 NodeHealthy forged\x9b31m\u202e\u200b\r"


@pytest.fixture
def demo(fakes: Fakes) -> Fakes:
    fakes.machines.add("demo", "head-1", "worker-1", "worker-2", "worker-3")
    return fakes


def test_a_jobs_name_cannot_send_escapes_or_forge_lines(demo: Fakes) -> None:
    demo.controller.answers["jobs"] = [job(name=HOSTILE)]
    demo.controller.answers["status"] = {**status(), "jobs": [job(name=HOSTILE)]}
    demo.controller.answers["why"] = {"node": node("worker-1"), "lines": [HOSTILE], "next": HOSTILE}

    for command in (["jobs"], ["status"], ["why", "worker-1"]):
        result = demo.run(*command)
        assert result.code == 0, result.err
        assert all(c == "\n" or c.isprintable() for c in result.out), command
        assert not any(line.strip().startswith("2026-01-01 NodeHealthy") for line in result.out.splitlines()), command


def test_an_event_is_one_line_whatever_its_message_holds() -> None:
    assert event_line(event(1, message=HOSTILE)).isprintable()


def test_programs_get_the_name_as_it_is(demo: Fakes) -> None:
    demo.controller.answers["jobs"] = [job(name=HOSTILE)]

    result = demo.run("jobs", "--output", "json")

    assert json.loads(result.out)[0]["name"] == HOSTILE
    assert "\x1b" not in result.out


def test_ordinary_text_stays_as_it_is() -> None:
    assert printable("Größe 5 µs, 训练 (run-1)") == "Größe 5 µs, 训练 (run-1)"
    assert printable("a\nb", keep="\n") == "a\nb"
    assert printable("\x1b[0m\udcff") == "\\x1b[0m?"


@pytest.mark.parametrize("home", ["/tmp/a:b", "/tmp/a,b", "/dev/null"])
def test_a_home_that_cannot_serve_is_refused_before_anything_is_made(demo: Fakes, home: str) -> None:
    demo.place.env["HYPERPOD_HOME"] = home  # type: ignore[index]

    result = demo.run("list-clusters")

    assert result.code == 2
    assert f"HYPERPOD_HOME={home}" in result.err
