"""Lines of the kernel log and what they mean: every pair in ``cases/kernel_log``.

A case is a line and what it says: ``CODE SEVERITY ACTION [WHOSE] [device]``, or ``nothing``. ``below`` is the severity
before a rate is reached. Lines are record texts; whole records (with prefix) are in ``test_kernel_log.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hyperpod.health.kernel import Verdict, classify
from hyperpod.health.xid import XIDS

CASES = Path(__file__).parent / "cases" / "kernel_log"
ROOT_DEVICES = ("nvme0n1p1",)


def _load() -> list[Any]:
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        for number, case in enumerate(yaml.safe_load(path.read_text())):
            found.append(pytest.param(case, id=f"{path.stem}-{number}"))
    return found


def _sentence(verdict: Verdict) -> str:
    words = [verdict.code, verdict.severity.name, verdict.action.value, verdict.whose.value]
    if verdict.times > 1:
        words.append(f"{verdict.times}/{verdict.within_s:.0f}s below {verdict.below.name}")
    if verdict.closes:
        words.append(f"closes {verdict.closes}")
    if verdict.device:
        words.append(f"[{verdict.device}]")
    return " ".join(words)


@pytest.mark.parametrize("case", _load())
def test_a_line_says_what_is_written_down(case: dict[str, str]) -> None:
    verdicts = classify(case["line"], root_devices=ROOT_DEVICES)
    assert "; ".join(map(_sentence, verdicts)) == ("" if case["says"] == "nothing" else case["says"])


def test_enough_lines_are_written_down() -> None:
    assert len(_load()) >= 60


@pytest.mark.parametrize("code", sorted(XIDS))
def test_every_known_xid_is_understood_in_the_common_form(code: int) -> None:
    (verdict,) = classify(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=77, name=python, text")
    assert verdict.code == f"Xid{code}"
    assert verdict.device.startswith("0000:3b:00")


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_xids_of_applications_never_drain(code: int) -> None:
    (verdict,) = classify(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=77, name=python, text")
    assert verdict.severity.name in ("OK", "WARN")
    assert verdict.action.value == "None"
