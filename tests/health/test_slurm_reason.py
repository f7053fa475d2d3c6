"""What the reasons that Slurm itself sets mean, and which texts are not Slurm's."""

from __future__ import annotations

import pytest

from hyperpod.health.parse_slurm_reason import parse_slurm_reason


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Not responding", "SlurmdSilent WARN None node"),
        ("Not responding [slurm@2026-03-01T10:00:00]", "SlurmdSilent WARN None node"),
        ("Node unexpectedly rebooted", "UnexpectedReboot WARN None node"),
        ("Kill task failed", "KillTaskFailed WARN None node"),
        ("Prolog error", "PrologFailed WARN None site"),
        ("Epilog error", "EpilogFailed WARN None site"),
        ("batch job complete failure", "BatchCompleteFailed WARN None node"),
        ("gres/gpu count reported lower than configured (7 < 8)", "GresMissing FATAL Reboot node"),
        ("gres/neuron count reported lower than configured (15 < 16)", "GresMissing FATAL Reboot node"),
        ("Low RealMemory (reported:63000 < 100.00% of configured:64000)", "LowMemory FATAL Reboot node"),
        ("Low CPUs (reported:94 < configured:96)", "LowCpus FATAL Reboot node"),
        ("Low socket*core*thread count, Low CPUs", "LowCpus FATAL Reboot node"),
        ("Low TmpDisk", "LowTmpDisk WARN None node"),
        ("Duplicate jobid", "DuplicateJob WARN None node"),
        ("launch failure", "LaunchFailed WARN None node"),
    ],
)
def test_slurms_own_reasons_are_understood(reason: str, expected: str) -> None:
    found = parse_slurm_reason(reason)
    assert found is not None
    assert f"{found.code} {found.severity.name} {found.action.value} {found.whose.value}" == expected


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "none",
        "cable is being changed : Not responding",
        "hyperpod:kernel_log/Xid79 GPU has fallen off the bus [node]",
        "Action:Replace",
        "bob: prolog error seen here",
        "notresponding",
        "killing tasks failed",
    ],
)
def test_texts_of_people_and_ours_are_not_slurms(reason: str) -> None:
    assert parse_slurm_reason(reason) is None


def test_figures_are_kept_for_people() -> None:
    found = parse_slurm_reason("gres/gpu count reported lower than configured (7 < 8)")
    assert found is not None
    assert found.message.endswith("(7 < 8)")
    assert found.times == 2
