"""Node images: named by their content, built once, never used half-made."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperpod.adapters.local.image import NodeImages, patch_torch
from hyperpod.errors import CommandError, CommandTimeout, ProviderError
from hyperpod.ports.process import Completed
from tests.fakes.process import FakeProcesses

PODMAN = ("podman", "--runtime", "runc")
TORCH = """if is_available():
    from torch._C._distributed_c10d import (
        Store,
        TCPStore,
        Work as _Work,
    )

    class _DistributedPdb:
        pass
"""


class Scene:
    """A source tree, a root file system to build in, and a podman that knows the images made so far."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        for name in ("hyperpod", "lifecycle_scripts", "spank_plugin"):
            (self.source / name).mkdir(parents=True)
            (self.source / name / "file").write_text(name)
        self.root = folder / "root"
        (self.root / "dev").mkdir(parents=True)
        (self.root / "dev/console").write_text("")
        torch = self.root / "usr/lib/python3/dist-packages/torch/distributed/__init__.py"
        torch.parent.mkdir(parents=True)
        torch.write_text(TORCH)
        self.made: set[str] = set()
        self.processes = FakeProcesses()
        self.processes.on("podman", "image", "exists", reply=lambda argv: Completed("", "", argv[-1] not in self.made))
        self.processes.on(*PODMAN, "create", reply="c1\n")
        self.processes.on(*PODMAN, "mount", reply=f"{self.root}\n")
        self.processes.on(*PODMAN, "import", reply=self._make)
        self.processes.on(*PODMAN, "commit", reply=self._make)
        self.images = NodeImages(self.processes, folder / "home", self.source)  # type: ignore[arg-type]

    def _make(self, argv: object) -> Completed:
        assert isinstance(argv, list)
        self.made.add(argv[-1])
        return Completed("", "", 0)

    def programs(self) -> list[str]:
        """Return what was run, by program or podman subcommand."""
        return [call[3] if call[:3] == list(PODMAN) else call[0] for call in self.processes.calls]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_builds_base_and_node_once_and_then_nothing(scene: Scene) -> None:
    first = scene.images.ensure("base")
    scene.processes.calls.clear()

    assert scene.images.ensure("base") == first
    assert [call[:3] for call in scene.processes.calls] == [["podman", "image", "exists"]]
    assert (scene.root / "opt/hyperpod/lib/hyperpod/file").read_text() == "hyperpod"


def test_an_edit_of_our_code_changes_only_the_last_layer(scene: Scene) -> None:
    first = scene.images.ensure("base")
    (scene.source / "hyperpod/file").write_text("edited")
    (scene.root / "opt").rename(scene.root / "opt-of-the-build-before")
    scene.processes.calls.clear()

    assert scene.images.ensure("base") != first
    assert "mmdebstrap" not in scene.programs()


def test_pytorch_is_a_layer_on_the_base(scene: Scene) -> None:
    scene.images.ensure("torch")

    kinds = sorted(reference.split("/")[2].split(":")[0] for reference in scene.made)
    assert kinds == ["base", "node", "torch"]
    assert "use_libuv" in (scene.root / "usr/lib/python3/dist-packages/torch/distributed/__init__.py").read_text()
    assert list((scene.root / "dev").iterdir()) == []


def test_compiled_and_hidden_files_do_not_change_the_image(scene: Scene) -> None:
    before = scene.images.reference("base")
    cache = scene.source / "hyperpod/__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_text("x")
    (scene.source / "spank_plugin/build").mkdir()
    (scene.source / "spank_plugin/build/hyperpod.so").write_text("x")
    (scene.source / "hyperpod/.swp").write_text("x")

    assert scene.images.reference("base") == before


def test_a_script_that_becomes_executable_changes_the_image(scene: Scene) -> None:
    before = scene.images.reference("base")
    (scene.source / "lifecycle_scripts/file").chmod(0o755)

    assert scene.images.reference("base") != before


def test_progress_only_grows_and_ends_at_one(scene: Scene) -> None:
    scene.processes.on(
        "mmdebstrap", reply="I: running apt-get update...\nI: downloading packages\nI: creating tarball\n"
    )
    seen: list[float] = []

    scene.images.ensure("base", lambda _what, share: seen.append(share))

    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize("step", ["import", "commit"])
def test_a_build_that_fails_leaves_no_image_and_can_be_repeated(scene: Scene, step: str) -> None:
    works = scene.processes.replies[(*PODMAN, step)]
    scene.processes.on(*PODMAN, step, reply=CommandError(["podman"], 125, "Error: x"))
    with pytest.raises(ProviderError):
        scene.images.ensure("base")
    assert not scene.images.is_built("base")
    assert not list((scene.source.parent / "home/cache").iterdir())

    scene.processes.replies[(*PODMAN, step)] = works
    (scene.root / "opt").rename(scene.root / "gone") if (scene.root / "opt").exists() else None
    scene.images.ensure("base")

    assert scene.images.is_built("base")


def test_what_a_killed_build_left_is_removed_and_nothing_else(scene: Scene) -> None:
    scene.images.ensure("torch")
    built = next(c for c in scene.processes.commands(*PODMAN, "create"))
    mine = built[built.index("--name") + 1].rpartition(".")[0] + ".abc"
    others = {"hyperpod.demo.worker-1", "somebody-elses", "hyperpod-build.0123abcd.of-another-home"}
    scene.processes.on(*PODMAN, "ps", reply="\n".join([mine, *others]))
    (scene.root / "opt").rename(scene.root / "gone")

    scene.images.ensure("base")

    removed = [call[-1] for call in scene.processes.commands(*PODMAN, "rm")]
    assert mine in removed
    assert not others & set(removed)


def test_images_that_are_no_longer_made_are_removed_if_nobody_uses_them(scene: Scene) -> None:
    old = "localhost/hyperpod/node:0000"
    scene.processes.on(*PODMAN, "images", reply=f"{old}\n{scene.images.reference('torch')}\n")
    scene.processes.on(*PODMAN, "rmi", reply=CommandError(["podman"], 2, "Error: image is in use by a container"))

    scene.images.ensure("base")

    assert [call[-1] for call in scene.processes.commands(*PODMAN, "rmi")] == [old]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CommandError(["mmdebstrap"], 25, "I: x\nE: Unable to locate package slurmd\n"), "Unable to locate package"),
        (CommandError(["mmdebstrap"], 127, "[Errno 2] No such file"), "mmdebstrap is not installed"),
        (CommandError(["mmdebstrap"], 1, "dpkg: No space left on device"), "no disk space left"),
        (CommandTimeout(["mmdebstrap"], 1800), "too long"),
    ],
)
def test_errors_of_the_build_say_what_to_do(scene: Scene, error: Exception, message: str) -> None:
    scene.processes.on("mmdebstrap", reply=error)

    with pytest.raises(ProviderError, match=message) as caught:
        scene.images.ensure("base")

    assert caught.value.hint


def test_pytorch_is_patched_once_behind_its_imports(tmp_path: Path) -> None:
    file = tmp_path / "__init__.py"
    file.write_text(TORCH)

    patch_torch(file)
    once = file.read_text()
    patch_torch(file)

    assert file.read_text() == once
    assert once.index("Work as _Work") < once.index("class TCPStore(TCPStore)") < once.index("_DistributedPdb")
    compile(once, "torch", "exec")


def test_an_unknown_pytorch_is_refused_when_it_is_built(tmp_path: Path) -> None:
    file = tmp_path / "__init__.py"
    file.write_text("nothing of that\n")

    with pytest.raises(ProviderError, match="not the one that was tried"):
        patch_torch(file)
