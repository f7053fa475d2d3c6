"""The example jobs in configs/jobs: they parse, say what they must to Slurm, and the bash one really resumes."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hyperpod.checkpoint import latest, scan

JOBS = Path(__file__).resolve().parents[2] / "configs" / "jobs"
SCRIPTS = sorted(JOBS.glob("*.sbatch"))


def directives(path: Path) -> list[str]:
    lines = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH ")]
    return [line.removeprefix("#SBATCH ").split(" #")[0].strip() for line in lines]


def run_plain(root: Path, resume_from: str, **settings: str) -> str:
    environment = {
        "PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "plain", "SLURM_JOB_USER": "ubuntu",
        "HYPERPOD_CHECKPOINT_DIR": str(root), "HYPERPOD_RESUME_FROM": resume_from, "STEP_TIME": "0", **settings,
    }  # fmt: skip
    shown = subprocess.run(
        ["bash", str(JOBS / "plain.sbatch")], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    return shown.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_batch_script_parses_and_appends_to_its_log(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert "--open-mode=append" in directives(path)
    assert any(line.startswith("--output=") and "%" in line for line in directives(path))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_batch_script_is_armed_and_saves_where_the_clusters_default_looks(path: Path) -> None:
    text = path.read_text()
    armed = any(line.startswith("--auto-resume") for line in directives(path))
    assert armed or "auto_resume=(--auto-resume=1)" in text
    assert "/fsx/checkpoints/$SLURM_JOB_USER/$SLURM_JOB_NAME-$SLURM_JOB_ID" in text


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed here")
def test_shellcheck_has_nothing_to_say() -> None:
    shown = subprocess.run(["shellcheck", "-s", "bash", *map(str, SCRIPTS)], capture_output=True, text=True, timeout=60)
    assert shown.stdout == ""


def test_the_training_script_parses() -> None:
    ast.parse((JOBS / "train_ddp.py").read_text())


def test_the_plain_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first = run_plain(tmp_path, "", STEPS="5", SAVE_EVERY="2")
    assert "from the beginning" in first
    assert [c.step for c in scan(tmp_path)] == [5, 4, 2]
    (tmp_path / "step_5" / "counter.txt").write_text("")
    assert latest(tmp_path) == str(tmp_path / "step_4")
    again = run_plain(tmp_path, latest(tmp_path), STEPS="6", SAVE_EVERY="2")
    assert "going on from 4" in again
    assert [line.split()[-1] for line in again.splitlines() if " step " in line] == ["5", "6"]
    assert latest(tmp_path) == str(tmp_path / "step_6")
    assert (tmp_path / "step_6" / "counter.txt").read_text() == "6\n"
