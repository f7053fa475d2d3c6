"""lifecycle_scripts/aws/on_init_complete.sh in a root tree that looks like a HyperPod node's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ClusterShell
import prometheus_client
import pytest

REPO = Path(__file__).parents[2]
SLURM_CONF = "ClusterName=ml\nSlurmctldHost=ip-10-1-0-4\nStateSaveLocation=/var/spool/slurm/state\nProlog=/opt/p.sh\n"
AWS_LINE = "required /opt/slurm/lib/slurm/aws_resume.so\n"
OUR_LINE = "optional /opt/slurm/lib/slurm/hyperpod.so socket=/run/hyperpod/agent.sock"
PARAMETERS = {"controller_group": "boss", "worker_groups": [{"instance_group_name": "gpu", "partition_name": "dev"}]}
RESOURCES = {
    "ClusterConfig": {
        "ClusterName": "ml", "ClusterArn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl",
    },
    "InstanceGroups": [
        {"Name": name, "InstanceType": "ml.g5.8xlarge", "Instances": [
            {"InstanceName": f"{name}-{n}", "AgentIpAddress": "172.16.0.9", "CustomerIpAddress": f"10.1.{net}.{n + 3}",
             "InstanceId": f"i-{net}000000000000000{n}"} for n in range(1, count + 1)]}
        for name, net, count in (("boss", 0, 1), ("gpu", 1, 2))
    ],
}  # fmt: skip
MAKE = """#!/bin/bash
echo "make $*" >>"$CALLS"
for word in "$@"; do case $word in PLUGIN_DIR=*) dir=${word#*=} ;; esac; done
mkdir -p "$dir" && echo plugin >"$dir/hyperpod.so"
"""


@dataclass
class Tree:
    """A fake root, the S3 prefix as staged on the node, and the programs called."""

    root: Path
    stage: Path
    bin: Path
    calls: Path

    def run(self, address: str = "10.1.0.4", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.stage / "on_init_complete.sh")],
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin", "HP_ROOT": str(self.root), "HP_ADDRESSES": f"172.16.0.9 {address}",
                "CALLS": str(self.calls), "HOME": str(self.root), **env,
            },
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def config(self, name: str) -> Any:
        return json.loads(self.read(f"/etc/hyperpod/{name}.json"))

    def called(self) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.write_text("")
        return lines

    def files(self) -> dict[str, bytes]:
        return {
            str(p.relative_to(self.root)): p.read_bytes()
            for p in sorted(self.root.rglob("*"))
            if p.is_file() and "__pycache__" not in p.parts and p.name != "provisioning.log"
        }


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root, stage, programs = tmp_path / "root", tmp_path / "stage", tmp_path / "bin"
    made = Tree(root, stage, programs, tmp_path / "calls")
    for folder in ("opt/slurm/bin", "opt/slurm/etc", "opt/ml/config", "proc"):
        (root / folder).mkdir(parents=True)
    (root / "opt/slurm/etc/slurm.conf").write_text(SLURM_CONF)
    (root / "opt/slurm/etc/plugstack.conf").write_text(AWS_LINE)
    (root / "opt/ml/config/resource_config.json").write_text(json.dumps(RESOURCES))
    (root / "proc/mounts").write_text("a /fsx lustre rw 0 0\nb /home ext4 rw 0 0\n")
    node = stage / "hyperpod-node"
    (node / "lib").mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPO / "hyperpod", node / "lib" / "hyperpod", ignore=ignore)
    for module in (ClusterShell, prometheus_client):
        folder = Path(str(module.__file__)).parent
        shutil.copytree(folder, node / "lib" / module.__name__, ignore=ignore)
    shutil.copytree(REPO / "spank_plugin", node / "spank_plugin", ignore=shutil.ignore_patterns("build", "tests"))
    shutil.copytree(REPO / "lifecycle_scripts" / "units", node / "units")
    shutil.copy(REPO / "lifecycle_scripts" / "aws" / "on_init_complete.sh", stage)
    (stage / "provisioning_parameters.json").write_text(json.dumps(PARAMETERS))
    programs.mkdir()
    sinfo = "#!/bin/bash\necho slurm ${SLURM_RELEASE:-24.11.5}\n"
    log = '#!/bin/bash\necho "${0##*/} $*" >>"$CALLS"\n'
    for path, text in (
        (root / "opt/slurm/bin/sinfo", sinfo), (root / "opt/slurm/bin/scontrol", log),
        (programs / "systemctl", log), (programs / "apt-get", log), (programs / "make", MAKE),
    ):  # fmt: skip
        path.write_text(text)
        path.chmod(0o755)
    return made


def test_a_head_node_gets_programs_plugin_and_controller(tree: Tree) -> None:
    done = tree.run()
    assert done.returncode == 0, done.stderr
    assert (tree.root / "opt/slurm/lib/slurm/hyperpod.so").exists()
    assert tree.read("/opt/slurm/etc/plugstack.conf") == f"{AWS_LINE}{OUR_LINE}\n"
    agent, controller = tree.config("agent"), tree.config("controller")
    assert (agent["node"], agent["group"], agent["role"]) == ("ip-10-1-0-4", "boss", "head")
    assert (agent["instance_id"], agent["shared_mounts"]) == ("i-00000000000000001", ["/fsx"])
    assert [node["node"] for node in controller["nodes"]] == ["ip-10-1-0-4", "ip-10-1-1-4", "ip-10-1-1-5"]
    assert controller["slurm_state_dir"] == "/var/spool/slurm/state"
    assert controller["slurm_conf_path"] == "/opt/slurm/etc/slurm.conf"
    assert controller["provider"]["kind"] == "hyperpod"
    wants = tree.root / "etc/systemd/system/multi-user.target.wants"
    assert sorted(path.name for path in wants.iterdir()) == ["hyperpod-agent.service", "hyperpod-controller.service"]
    assert "f /run/hyperpod/born" in tree.read("/etc/tmpfiles.d/hyperpod.conf")
    calls = tree.called()
    assert "systemctl daemon-reload" in calls
    assert "systemctl start --no-block hyperpod-controller.service" in calls
    assert calls[-1] == "scontrol reconfigure"
    assert not any(call.startswith("apt-get") for call in calls)


def test_running_it_again_changes_nothing(tree: Tree) -> None:
    tree.run()
    before = tree.files()
    tree.called()
    done = tree.run()
    assert done.returncode == 0, done.stderr
    assert tree.files() == before
    assert tree.called() == [
        "systemctl start --no-block hyperpod-agent.service", "systemctl start --no-block hyperpod-controller.service",
    ]  # fmt: skip


def test_slurms_configuration_stays_as_the_service_left_it(tree: Tree) -> None:
    tree.run()
    assert tree.read("/opt/slurm/etc/slurm.conf") == SLURM_CONF


def test_a_worker_has_an_agent_and_no_plugstack_of_its_own(tree: Tree) -> None:
    (tree.root / "opt/slurm/etc/plugstack.conf").unlink()
    done = tree.run("10.1.1.5")
    assert done.returncode == 0, done.stderr
    assert not (tree.root / "opt/slurm/etc/plugstack.conf").exists()
    assert not (tree.root / "etc/hyperpod/controller.json").exists()
    agent = tree.config("agent")
    assert (agent["node"], agent["role"], agent["head_address"]) == ("ip-10-1-1-5", "worker", "10.1.0.4")
    assert [peer["node"] for peer in agent["peers"]] == ["ip-10-1-0-4", "ip-10-1-1-4"]
    assert "scontrol reconfigure" not in tree.called()


def test_a_worker_that_has_a_plugstack_gets_the_line(tree: Tree) -> None:
    tree.run("10.1.1.4")
    assert tree.read("/opt/slurm/etc/plugstack.conf").splitlines() == [AWS_LINE.strip(), OUR_LINE]


@pytest.mark.parametrize("there", [OUR_LINE, f"  {OUR_LINE} default=on", "required\t/opt/slurm/lib/slurm/hyperpod.so"])
def test_a_line_that_is_there_is_not_doubled(tree: Tree, there: str) -> None:
    (tree.root / "opt/slurm/etc/plugstack.conf").write_text(f"{there}\n")
    tree.run()
    assert tree.read("/opt/slurm/etc/plugstack.conf") == f"{there}\n"


def test_a_last_line_without_an_end_is_ended_first(tree: Tree) -> None:
    (tree.root / "opt/slurm/etc/plugstack.conf").write_text(AWS_LINE.rstrip("\n"))
    tree.run()
    assert tree.read("/opt/slurm/etc/plugstack.conf") == f"{AWS_LINE}{OUR_LINE}\n"


def test_another_release_of_slurm_gets_another_plugin(tree: Tree) -> None:
    tree.run()
    tree.called()
    tree.run()
    assert not any(call.startswith("make") for call in tree.called())
    tree.run(SLURM_RELEASE="25.05.0")
    assert any(call.startswith("make") for call in tree.called())


def test_a_plugin_that_does_not_build_leaves_the_node_working(tree: Tree) -> None:
    (tree.bin / "make").write_text("#!/bin/bash\necho slurm/spank.h: no such file >&2\nexit 2\n")
    done = tree.run()
    assert done.returncode == 0
    assert "the plugin does not build for slurm 24.11.5" in done.stderr
    assert tree.read("/opt/slurm/etc/plugstack.conf") == AWS_LINE
    assert (tree.root / "etc/hyperpod/agent.json").exists()


def test_policies_that_were_sent_along_are_the_controllers(tree: Tree) -> None:
    policies = {"repair": {"max_parallel_repaired": 7}, "resume": {"lease_s": 20.0}, "groups": [{"name": "gpu"}]}
    (tree.stage / "hyperpod-node" / "policies.json").write_text(json.dumps(policies))
    tree.run()
    assert tree.config("controller")["policies"] == policies
    assert tree.config("agent")["lease_s"] == 20.0


def test_a_groups_own_health_policy_reaches_its_nodes(tree: Tree) -> None:
    groups = [{"name": "boss", "health": {"disk": {"mode": "observe"}}}, {"name": "gpu", "health": {}}]
    policies = {"health": {"disk": {"mode": "off"}}, "groups": groups}
    (tree.stage / "hyperpod-node" / "policies.json").write_text(json.dumps(policies))
    tree.run()
    assert tree.config("agent")["health"] == {"disk": {"mode": "observe"}}


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("opt/ml/config/resource_config.json", "this is no HyperPod node"),
        ("opt/slurm/bin/sinfo", "Slurm is not in /opt/slurm"),
    ],
)
def test_what_is_missing_is_said(tree: Tree, gone: str, words: str) -> None:
    (tree.root / gone).unlink()
    done = tree.run()
    assert done.returncode == 1
    assert words in done.stderr


def test_a_machine_that_is_not_in_the_cluster_is_told(tree: Tree) -> None:
    done = tree.run("10.9.9.9")
    assert done.returncode == 1
    assert "none of this machine's addresses" in done.stderr
    shutil.rmtree(tree.stage / "hyperpod-node")
    assert "--with-hyperpod" in tree.run().stderr


def test_the_daemons_take_the_configuration(tree: Tree) -> None:
    from hyperpod.agent.settings import parse_settings
    from hyperpod.controller.__main__ import load_config, machines_of, slots_of

    tree.run()
    settings = parse_settings(tree.read("/etc/hyperpod/agent.json"), "agent.json")
    assert (settings.node, settings.ignored) == ("ip-10-1-0-4", ())
    assert settings.expected == {"gpus": 1, "nvme_disks": 1}
    config = load_config(tree.root / "etc/hyperpod/controller.json")
    assert [slot.partition for slot in slots_of(config)] == ["", "dev", "dev"]
    assert type(machines_of(config["provider"])).__name__ == "OnNodeMachines"


def test_the_installed_programs_start(tree: Tree) -> None:
    tree.run()
    lib = tree.root / "opt/hyperpod/lib"
    done = subprocess.run(
        ["python3", "-I", "-c", f"import sys; sys.path.insert(0, {str(lib)!r}); import hyperpod.agent.__main__, "
         "hyperpod.controller.__main__; print(hyperpod.__file__)"],
        capture_output=True, text=True, timeout=30, env={"PATH": os.environ["PATH"]}, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == str(lib / "hyperpod" / "__init__.py"), done.stderr
