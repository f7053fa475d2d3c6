"""Flag over environment over file over default, and where each value came from."""

from __future__ import annotations

from datetime import timedelta

import pytest
from spec_texts import LOCAL, LoadText, Mistakes

from hyperpod.config.overrides import block_fields, parse_path, variable_name
from hyperpod.config.problem import format_path
from hyperpod.core.spec import Provider

ATTEMPTS = "Hyperpod.Resume.MaxAttempts"
IN_FILE = LOCAL + "  Resume: {MaxAttempts: 4}\n"
IN_ENV = {"HYPERPOD_RESUME_MAX_ATTEMPTS": "5"}
IN_FLAG = {ATTEMPTS: "6"}


@pytest.mark.parametrize(
    ("text", "env", "flags", "value", "origin"),
    [
        (LOCAL, {}, {}, 10, "default"),
        (IN_FILE, {}, {}, 4, "file cluster.yaml:12"),
        (IN_FILE, IN_ENV, {}, 5, "env HYPERPOD_RESUME_MAX_ATTEMPTS"),
        (IN_FILE, IN_ENV, IN_FLAG, 6, f"flag --set {ATTEMPTS}"),
        (LOCAL, {}, IN_FLAG, 6, f"flag --set {ATTEMPTS}"),
    ],
)
def test_the_strongest_place_wins_and_is_named(
    load_text: LoadText, text: str, env: dict[str, str], flags: dict[str, str], value: int, origin: str
) -> None:
    loaded = load_text(text, env=env, flags=flags)
    assert loaded.spec.hyperpod.resume.max_attempts == value
    assert str(loaded.origins[ATTEMPTS]) == origin


def test_every_setting_of_the_block_is_listed_once_with_an_origin(load_text: LoadText) -> None:
    loaded = load_text(LOCAL)
    paths = [setting.path for setting in loaded.settings]
    assert len(paths) == len(set(paths))
    expected = {format_path(path) for path, _, _ in block_fields()} - {"Hyperpod.Spares"}
    assert expected <= set(paths)
    assert str(loaded.origins["Hyperpod.Spares.worker"]) == "file cluster.yaml:11"
    assert str(loaded.origins["InstanceGroups[1].SlurmConfig.PartitionNames[0]"]) == "file cluster.yaml:8"


def test_a_flag_changes_any_place_of_the_request(load_text: LoadText) -> None:
    loaded = load_text(LOCAL, flags={"InstanceGroups[1].InstanceCount": "7", "ClusterName": "other"})
    assert (loaded.spec.cluster_name, loaded.spec.group("worker").count) == ("other", 7)
    assert str(loaded.origins["ClusterName"]) == "flag --set ClusterName"


def test_the_environment_can_choose_the_provider(load_text: LoadText) -> None:
    text = LOCAL.replace("  Provider: local\n", "")
    assert load_text(text, env={"HYPERPOD_PROVIDER": "local"}).spec.provider is Provider.LOCAL


def test_text_from_outside_is_read_like_text_in_the_file(load_text: LoadText) -> None:
    env = {"HYPERPOD_RESUME_LEASE": "1m", "HYPERPOD_RESUME_DEFAULT": "on", "HYPERPOD_SPARES": "2"}
    spec = load_text(LOCAL, env=env).spec
    assert (spec.hyperpod.resume.lease, spec.hyperpod.resume.default) == (timedelta(minutes=1), True)
    assert spec.group("worker").spares == 2


def test_text_of_a_flag_may_look_like_anything(load_text: LoadText) -> None:
    flags = {
        "Hyperpod.Slurm.DefaultPartition": "dev",
        "Hyperpod.Resume.CheckpointDir": "/fsx/{user}: [",
        "ClusterName": '"17"',
    }
    spec = load_text(LOCAL, flags=flags).spec
    assert (spec.default_partition, spec.hyperpod.resume.checkpoint_dir) == ("dev", "/fsx/{user}: [")
    assert spec.cluster_name == "17"


def test_a_flag_may_replace_an_entry_of_a_list_but_not_add_one(load_text: LoadText, mistakes: Mistakes) -> None:
    place = "InstanceGroups[1].SlurmConfig.PartitionNames"
    assert load_text(LOCAL, flags={f"{place}[0]": "prod"}).spec.default_partition == "prod"
    for flag in (f"{place}[1]", "Tags[0].Key", "ClusterName[0]"):
        assert mistakes(LOCAL, flags={flag: "x"}) == [f"--set {flag}: at {flag}: there is no such place in the file"]


def test_variables_of_jobs_are_no_settings(load_text: LoadText) -> None:
    env = {
        "HYPERPOD_RESUME_FROM": "/fsx/x",
        "HYPERPOD_CHECKPOINT_DIR": "/x",
        "HYPERPOD_ATTEMPT": "2",
        "HYPERPOD_HOME": "/x",
    }
    assert load_text(LOCAL, env=env).spec == load_text(LOCAL).spec


def test_no_setting_has_the_variable_of_something_else() -> None:
    variables = [variable_name(path) for path, _, _ in block_fields()]
    assert len(variables) == len(set(variables))
    assert not set(variables) & {
        "HYPERPOD_HOME",
        "HYPERPOD_AUTO_RESUME",
        "HYPERPOD_CHECKPOINT_DIR",
        "HYPERPOD_ATTEMPT",
        "HYPERPOD_RESUME_FROM",
        "HYPERPOD_PREVIOUS_FAILURE",
        "HYPERPOD_PEER_LOST",
    }


def test_mistakes_from_outside_name_their_place(mistakes: Mistakes) -> None:
    env = {"HYPERPOD_RESUME_MAX_ATTEMPTS": "many", "HYPERPOD_RESUME_MAXATTEMPTS": "3", "HYPERPOD_PROVIDER": ""}
    assert mistakes(LOCAL, env=env) == [
        "HYPERPOD_RESUME_MAXATTEMPTS: unknown setting; did you mean HYPERPOD_RESUME_MAX_ATTEMPTS?",
        "HYPERPOD_PROVIDER: at Hyperpod.Provider: must be one of local, ec2, sagemaker, got ''",
        "HYPERPOD_RESUME_MAX_ATTEMPTS: at Hyperpod.Resume.MaxAttempts: must be a whole number, got 'many'",
    ]
    flags = {
        "a b": 1,
        "InstanceGroups[7].InstanceCount": 3,
        "ClusterName.x": 1,
        "InstanceGroups[1].InstanceCount": "many",
        "Hyperpod.Repare.Enabled": "off",
    }
    assert mistakes(LOCAL, flags=flags) == [
        "--set a b: is not a path such as Hyperpod.Resume.MaxAttempts or InstanceGroups[1].InstanceCount",
        "--set InstanceGroups[7].InstanceCount: at InstanceGroups[7].InstanceCount: there is no such place in the file",
        "--set ClusterName.x: at ClusterName.x: there is no such place in the file",
        "--set Hyperpod.Repare.Enabled: at Hyperpod.Repare: unknown key; did you mean Repair?",
        "--set InstanceGroups[1].InstanceCount: at InstanceGroups[1].InstanceCount: must be a whole number, got 'many'",
    ]


@pytest.mark.parametrize(
    "text", ["ClusterName", "InstanceGroups[1].SlurmConfig.PartitionNames[0]", "Hyperpod.Spares.a-b"]
)
def test_a_path_is_read_as_it_is_written(text: str) -> None:
    path = parse_path(text)
    assert path is not None
    assert format_path(path) == text


@pytest.mark.parametrize("text", ["", "a..b", "a b", "[1]", "a[x]", "a[1"])
def test_what_is_no_path_is_not_read(text: str) -> None:
    assert parse_path(text) is None
