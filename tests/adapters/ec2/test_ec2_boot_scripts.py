"""The machine's side of the folder: its scripts run for real, against a folder on this disk and a metadata service that
is a stub in PATH."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hyperpod.adapters.aws.ec2 import Ec2Provider
from hyperpod.adapters.aws.user_data import BootSettings, render_user_data
from tests.adapters.ec2.test_ec2_provider import make_provider, ready
from tests.fakes.aws import AccountAws, Site

SCRIPTS = Path(__file__).parents[3] / "lifecycle_scripts" / "cloud"
INSTANCE = "i-0123456789abcdef0"

AWS = """#!/bin/bash
# aws s3 cp|sync [options] FROM TO, with s3://bucket/ as a folder
words=()
for word in "$@"; do [[ $word == --* ]] || words+=("${word//s3:\\/\\//$STORE/}"); done
if [[ ${words[1]} == cp ]]; then mkdir -p "$(dirname "${words[3]}")"; cp "${words[2]}" "${words[3]}"; exit; fi
mkdir -p "${words[3]}" && cp -r "${words[2]}/." "${words[3]}/"
"""
CURL = """#!/bin/bash
echo "$*" >>"$STORE/curl.log"
case "${!#}" in
*/instance-id) echo "$INSTANCE" ;;
*/local-ipv4) echo 10.1.0.7 ;;
*) echo token ;;
esac
"""
HOSTNAME = """#!/bin/bash
[[ $# == 0 ]] && echo ip-10-1-0-7 || echo "$1" >>"$STORE/hostname.log"
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """A machine that has run its user data as far as the scripts are there; returns its environment."""
    store, root, stubs = tmp_path / "store", tmp_path / "root", tmp_path / "stubs"
    for folder in (store, root / "etc" / "hyperpod", root / "var" / "log" / "provision", stubs):
        folder.mkdir(parents=True)
    for name, text in (("aws", AWS), ("curl", CURL), ("hostname", HOSTNAME)):
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    (root / "etc" / "hyperpod" / "cloud.env").write_text(
        "HP_CLUSTER=demo\nHP_REGION=us-west-2\nHP_BUCKET=sagemaker-test\nHP_PREFIX=hyperpod/demo\n"
        "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://metadata.invalid\n"
    )
    return {
        "PATH": f"{stubs}:/usr/bin:/bin:/usr/local/bin",
        "HP_ROOT": str(root),
        "STORE": str(store),
        "INSTANCE": INSTANCE,
        "HP_FETCH_POLL_S": "0.05",
    }


def run(script: str, machine: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPTS / script), *arguments], env=machine, capture_output=True, text=True, timeout=20
    )


def copy_folder(provider: Ec2Provider, machine: dict[str, str], identity: str) -> None:
    """Lay the cluster's folder on this disk, with one of its machines under the stub's identity."""
    for entry in provider.folder.entries():
        path = Path(machine["STORE"], "sagemaker-test/hyperpod/demo", entry.name.replace(identity, INSTANCE))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(provider.folder.read(entry.name) or b"")


def log_of(machine: dict[str, str]) -> str:
    return Path(machine["HP_ROOT"], "var/log/provision/provisioning.log").read_text()


def test_a_machine_becomes_the_node_that_the_folder_says(aws: AccountAws, site: Site, machine: dict[str, str]) -> None:
    provider = make_provider(aws, site)
    ids = ready(provider)
    copy_folder(provider, machine, ids["worker-2"])

    done = run("fetch.sh", machine, "--wait")

    assert done.returncode == 0, done.stderr
    node = Path(machine["HP_ROOT"], "opt/hyperpod/node")
    assert (node / "node.env").read_text() == "HP_NODE=worker-2\n"
    assert f"HP_INSTANCE_ID={INSTANCE}\nHP_ADDRESS=10.1.0.7\n" in (node / "instance.env").read_text()
    assert len((node / "munge.key").read_bytes()) == 1024
    assert {oct(path.stat().st_mode & 0o777) for path in node.iterdir()} == {"0o600"}
    assert oct(node.stat().st_mode & 0o777) == "0o700"
    public = node.parent / "cluster"
    assert "worker-3" in (public / "hosts").read_text()
    config = json.loads((public / "resource_config.json").read_text())
    assert config["ClusterConfig"]["ClusterName"] == "demo"
    assert [group["Name"] for group in config["InstanceGroups"]] == ["head", "worker"]
    assert Path(machine["STORE"], "hostname.log").read_text() == "worker-2\n"


def test_metadata_is_asked_with_a_session_token(aws: AccountAws, site: Site, machine: dict[str, str]) -> None:
    provider = make_provider(aws, site)
    copy_folder(provider, machine, ready(provider)["head-1"])

    run("fetch.sh", machine)

    asked = Path(machine["STORE"], "curl.log").read_text().splitlines()
    assert asked[0].startswith("-sSf")
    assert "-X PUT http://metadata.invalid/latest/api/token" in asked[0]
    assert all("X-aws-ec2-metadata-token: token" in line for line in asked[1::2])


def test_a_machine_that_nobody_knows_ends_with_a_reason(machine: dict[str, str]) -> None:
    done = run("fetch.sh", machine)

    assert done.returncode == 1
    assert f"nobody says which node {INSTANCE} is" in log_of(machine)


def test_a_new_machine_waits_until_it_is_told(machine: dict[str, str]) -> None:
    done = run("fetch.sh", {**machine, "HP_FETCH_WAIT_S": "1"}, "--wait")

    assert done.returncode == 1
    assert Path(machine["STORE"], "curl.log").exists()


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, machine: dict[str, str]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"files": {"../../etc/passwd": "eA=="}}))

    done = subprocess.run(
        ["python3", str(SCRIPTS / "unpack.py"), "files", str(bad), str(tmp_path / "out"), "0600"],
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip

    assert done.returncode == 1
    assert "leads out of the folder" in done.stderr


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_the_record_of_a_birth_is_sent(machine: dict[str, str], status: str) -> None:
    logs = Path(machine["HP_ROOT"], "var/log/provision")
    (logs / "result.json").write_text(json.dumps({"instance_id": INSTANCE, "status": status}))
    (logs / "provisioning.log").write_text("boom\n")

    assert run("record.sh", machine).returncode == 0

    births = Path(machine["STORE"], "sagemaker-test/hyperpod/demo/births")
    assert json.loads((births / f"{INSTANCE}.{status}").read_text())["status"] == status
    assert (births / f"{INSTANCE}.log").read_text() == "boom\n"


def known_to_slurm(machine: dict[str, str], answers: list[str], role: str = "worker") -> Path:
    """Have a stub of scontrol give these answers in turn, the last one again and again; return its log."""
    node = Path(machine["HP_ROOT"], "opt/hyperpod/node")
    node.mkdir(parents=True)
    (node / "node.env").write_text(f"HP_NODE=worker-1\nHP_ROLE={role}\n")
    store, stubs = Path(machine["STORE"]), Path(machine["PATH"].partition(":")[0])
    for number, answer in enumerate(answers, start=1):
        (store / f"answer-{number}").write_text(answer)
    (stubs / "scontrol").write_text(
        '#!/bin/bash\necho "$*" >>"$STORE/scontrol.log"\n'
        f'n=$(wc -l <"$STORE/scontrol.log"); cat "$STORE/answer-$((n < {len(answers)} ? n : {len(answers)}))"\n'
    )
    (stubs / "scontrol").chmod(0o755)
    logs = Path(machine["HP_ROOT"], "var/log/provision")
    (logs / "result.json").write_text(json.dumps({"instance_id": INSTANCE, "status": "ok"}))
    (logs / "provisioning.log").touch()
    return store / "scontrol.log"


@pytest.mark.parametrize(
    ("role", "before", "after"),
    [
        ("worker", "NodeName=worker-1 State=UNKNOWN+NOT_RESPONDING X=1", "NodeName=worker-1 State=IDLE X=1"),
        ("worker", "NodeName=worker-1 State=IDLE+NOT_RESPONDING X=1", "NodeName=worker-1 State=IDLE+DRAIN X=1"),
        ("worker", "", "NodeName=worker-1 State=DOWN+DRAIN X=1"),
        ("head", "Slurmctld(primary) at head-1 is DOWN", "Slurmctld(primary) at head-1 is UP"),
    ],
)
def test_the_record_says_ok_when_slurm_can_use_the_machine(
    machine: dict[str, str], role: str, before: str, after: str
) -> None:
    log = known_to_slurm(machine, [before, after], role)

    assert run("record.sh", machine).returncode == 0

    assert len(log.read_text().splitlines()) == 2
    assert Path(machine["STORE"], f"sagemaker-test/hyperpod/demo/births/{INSTANCE}.ok").exists()


def test_a_head_node_that_never_comes_up_does_not_hold_back_the_record_for_ever(machine: dict[str, str]) -> None:
    known_to_slurm(machine, [""])

    assert run("record.sh", {**machine, "HP_SLURM_WAIT_S": "0"}).returncode == 0

    assert "Slurm does not know it yet" in log_of(machine)
    assert Path(machine["STORE"], f"sagemaker-test/hyperpod/demo/births/{INSTANCE}.ok").exists()


def test_a_machine_that_fails_before_its_birth_says_so_with_the_end_of_its_log(machine: dict[str, str]) -> None:
    Path(machine["HP_ROOT"], "var/log/provision/user-data.log").write_text("one\nuseradd: UID 1000 is not unique\n")

    assert run("failed.sh", machine, "4").returncode == 0

    births = Path(machine["STORE"], "sagemaker-test/hyperpod/demo/births")
    record = json.loads((births / f"{INSTANCE}.failed").read_text())
    assert (record["script"], record["exit_code"]) == ("first_boot.sh", 4)
    assert record["tail"] == ["one", "useradd: UID 1000 is not unique"]


def test_a_boot_that_was_cut_short_has_not_failed(machine: dict[str, str]) -> None:
    logs = Path(machine["HP_ROOT"], "var/log/provision")
    (logs / "result.json").write_text(json.dumps({"instance_id": INSTANCE, "status": "running"}))

    assert run("record.sh", machine).returncode == 0
    assert not Path(machine["STORE"], "sagemaker-test").exists()


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_every_script_is_sound_shell(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPTS / script)], timeout=10).returncode == 0


def test_user_data_is_sound_shell(tmp_path: Path) -> None:
    path = tmp_path / "user-data"
    path.write_text(render_user_data(BootSettings("demo", "worker", "us-west-2", "b", "hyperpod/demo", "abc")))

    assert subprocess.run(["bash", "-n", str(path)], timeout=10).returncode == 0
