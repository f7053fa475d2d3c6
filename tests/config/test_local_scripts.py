"""Lifecycle scripts of local clusters are looked at before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_texts import LOCAL, LoadText, Mistakes, aws_group, aws_request

SCRIPT = b"#!/bin/bash\necho ok\n"
AT = "cluster.yaml:9: at InstanceGroups[1].LifeCycleConfig"


def with_scripts(source: str, script: str = "OnCreate: on_create.sh") -> str:
    """Return the local cluster with a script for its workers."""
    return LOCAL.replace("Hyperpod:", f"    LifeCycleConfig: {{SourceS3Uri: '{source}', {script}}}\nHyperpod:")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of scripts beside the spec."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "on_create.sh").write_bytes(SCRIPT)
    return folder


@pytest.mark.parametrize("form", ["scripts", "./scripts/", "{folder}", "file://{folder}", "file://localhost{folder}"])
def test_a_folder_is_found_however_it_is_written(form: str, folder: Path, load_text: LoadText) -> None:
    lifecycle = load_text(with_scripts(form.format(folder=folder))).spec.group("worker").lifecycle
    assert (lifecycle.source, lifecycle.on_create) == (str(folder), "on_create.sh")


def test_a_folder_is_relative_to_the_spec_and_not_to_the_caller(
    folder: Path, load_text: LoadText, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load_text(with_scripts("scripts"))
    monkeypatch.chdir("/")
    from hyperpod.adapters.aws.model import validate_create_cluster
    from hyperpod.config.load import load_spec

    spec = load_spec(tmp_path / "cluster.yaml", validate=validate_create_cluster).spec
    assert spec.group("worker").lifecycle.source == str(folder)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("nowhere", "SourceS3Uri: folder {tmp}/nowhere does not exist"),
        ("scripts/on_create.sh", "SourceS3Uri: {tmp}/scripts/on_create.sh is not a folder"),
        ("file:scripts", "SourceS3Uri: file:scripts must be file:// and an absolute path, such as file:///srv/scripts"),
        (
            "s3://sagemaker-x/y",
            "SourceS3Uri: s3://sagemaker-x/y cannot be read by a local cluster; give a folder, or set "
            "Hyperpod.Local.LifecycleScripts",
        ),
    ],
)
def test_what_is_no_folder_is_refused(
    source: str, expected: str, folder: Path, mistakes: Mistakes, tmp_path: Path
) -> None:
    assert mistakes(with_scripts(source)) == [f"{AT}.{expected.format(tmp=tmp_path)}"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "{file} is empty"),
        (b"echo hello\n", "{file} does not begin with #! and an interpreter, such as #!/bin/bash"),
        (b"\xef\xbb\xbf#!/bin/bash\n", "{file} does not begin with #! and an interpreter, such as #!/bin/bash"),
        (
            b"#!/bin/bash\r\necho\r\n",
            "{file} has Windows line ends (CRLF), which no shell runs; convert it: sed -i 's/\\r$//' {file}",
        ),
    ],
)
def test_a_script_that_could_not_run_is_refused(
    content: bytes, expected: str, folder: Path, mistakes: Mistakes
) -> None:
    file = folder / "on_create.sh"
    file.write_bytes(content)
    assert mistakes(with_scripts("scripts")) == [f"{AT}.OnCreate: {expected.format(file=file)}"]


def test_a_missing_script_is_named_with_those_that_are_there(folder: Path, mistakes: Mistakes) -> None:
    assert mistakes(with_scripts("scripts", "OnInitComplete: setup.sh")) == [
        f"{AT}.OnInitComplete: no file setup.sh in {folder}; scripts there are on_create.sh"
    ]


@pytest.mark.parametrize("name", ["../on_create.sh", "/etc/passwd"])
def test_a_script_outside_its_folder_is_refused(name: str, folder: Path, mistakes: Mistakes) -> None:
    assert mistakes(with_scripts("scripts", f"OnCreate: {name}")) == [
        f"{AT}.OnCreate: {name} must be a path inside {folder}, without '..'"
    ]


def test_a_script_that_is_a_folder_is_refused(folder: Path, mistakes: Mistakes) -> None:
    (folder / "steps").mkdir()
    assert mistakes(with_scripts("scripts", "OnCreate: steps")) == [
        f"{AT}.OnCreate: {folder}/steps is not a regular file"
    ]


def test_a_file_for_aws_runs_here_with_a_folder_in_place_of_s3(folder: Path, load_text: LoadText) -> None:
    lifecycle = {"SourceS3Uri": "s3://sagemaker-x/y", "OnCreate": "on_create.sh"}
    groups = [aws_group("head", "Controller", LifeCycleConfig=lifecycle), aws_group("worker", "Compute")]
    flags = {"Hyperpod.Provider": "local", "Hyperpod.Local.LifecycleScripts": "scripts"}
    spec = load_text(aws_request(InstanceGroups=groups), flags=flags).spec
    assert spec.head.lifecycle.source == str(folder)
    assert spec.head.instance_type == "ml.c5.xlarge"
