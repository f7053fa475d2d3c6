"""The three ways a HyperPod node is set up: by the service alone, by OnInitComplete, by an OnCreate script of the user.

In each of them what AWS's service and scripts left in Slurm's configuration stays.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hyperpod.adapters.aws.client import Aws
from hyperpod.adapters.aws.sagemaker import SageMaker
from tests.aws_server.server import ContractServer
from tests.aws_server.specs import request, spec_of
from tests.fakes.aws import dummy_environment
from tests.lifecycle.test_aws_init import AWS_LINE, OUR_LINE, SLURM_CONF, Tree, tree

__all__ = ["tree"]

MODES = {
    "no scripts": None,
    "OnInitComplete": {"SourceS3Uri": "s3://sagemaker-x/scripts/", "OnInitComplete": "on_init_complete.sh"},
    "OnCreate": {"SourceS3Uri": "s3://sagemaker-x/scripts/", "OnCreate": "on_create.sh"},
}
# As AWS's base scripts do it: lines appended to slurm.conf, their own plugstack lines, then the daemons.
BASE_SCRIPT = """#!/bin/bash
set -eu
slurm=$HP_ROOT/opt/slurm/etc
plugins=$slurm/plugstack.conf
grep -q PrologFlags "$slurm/slurm.conf" || cat >>"$slurm/slurm.conf" <<'CONF'
PrologFlags=Alloc
Epilog=/opt/slurm/etc/epilog.sh
CONF
grep -q pyxis "$plugins" || echo 'include /opt/slurm/etc/plugstack.conf.d/pyxis.conf' >>"$plugins"
systemctl enable --now slurmctld
bash ./on_init_complete.sh
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_cluster_is_made_in_every_mode(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dummy_environment(monkeypatch)
    server = ContractServer()
    data = request()
    for group in data["InstanceGroups"]:
        del group["LifeCycleConfig"]
        if MODES[mode] is not None:
            group["LifeCycleConfig"] = MODES[mode]

    SageMaker(Aws(region="us-west-2", session=server.session())).create(spec_of(tmp_path, data))

    (made,) = server.made("CreateCluster")
    assert [group.get("LifeCycleConfig") for group in made["InstanceGroups"]] == [MODES[mode]] * 2


def test_an_on_create_script_of_the_user_calls_ours_at_its_end_and_all_its_lines_stay(tree: Tree) -> None:
    (tree.stage / "on_create.sh").write_text(BASE_SCRIPT)

    def run() -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{tree.bin}:/usr/bin:/bin", "HP_ROOT": str(tree.root), "HP_ADDRESSES": "10.1.0.4",
            "CALLS": str(tree.calls), "HOME": str(tree.root),
        }  # fmt: skip
        return subprocess.run(
            ["bash", "./on_create.sh"], cwd=tree.stage, env=environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    done = run()
    assert done.returncode == 0, done.stderr
    slurm, plugstack = tree.read("/opt/slurm/etc/slurm.conf"), tree.read("/opt/slurm/etc/plugstack.conf")
    assert slurm == f"{SLURM_CONF}PrologFlags=Alloc\nEpilog=/opt/slurm/etc/epilog.sh\n"
    assert plugstack.splitlines() == [
        AWS_LINE.strip(), "include /opt/slurm/etc/plugstack.conf.d/pyxis.conf", OUR_LINE,
    ]  # fmt: skip
    calls = tree.called()
    # The service's daemon is started by its own script, before ours.
    assert calls.index("systemctl enable --now slurmctld") < calls.index(
        "systemctl start --no-block hyperpod-controller.service"
    )

    again = run()
    assert again.returncode == 0, again.stderr
    assert (tree.read("/opt/slurm/etc/slurm.conf"), tree.read("/opt/slurm/etc/plugstack.conf")) == (slurm, plugstack)


def test_a_node_that_the_service_has_not_set_up_yet_is_refused_with_the_reason(tree: Tree) -> None:
    (tree.root / "opt/slurm/bin/sinfo").unlink()

    done = tree.run()

    assert done.returncode == 1
    assert "this script runs after the service's own set-up" in done.stderr
    assert tree.read("/opt/slurm/etc/plugstack.conf") == AWS_LINE


@pytest.mark.parametrize(
    ("help_text", "words"),
    [("      --auto-resume=N   resume the step", " option=theirs"), ("      --ntasks=N", "")],
    ids=["AWS's plugin offers the option", "nobody offers the option"],
)
def test_ours_leaves_the_option_to_a_plugin_that_offers_it_already(tree: Tree, help_text: str, words: str) -> None:
    srun = tree.root / "opt/slurm/bin/srun"
    srun.write_text(f"#!/bin/bash\necho '{help_text}'\n")
    srun.chmod(0o755)

    assert tree.run().returncode == 0
    assert tree.read("/opt/slurm/etc/plugstack.conf") == f"{AWS_LINE}{OUR_LINE}{words}\n"
