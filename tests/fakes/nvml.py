"""The ``libnvidia-ml.so.1`` of rehearsals, built for tests, and what they need to drive it.

It stands in for NVIDIA's library below the real nvidia-ml-py; see the C file for what its state can say.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hyperpod.adapters import local

SOURCE = Path(local.__file__).parent / "doubles" / "nvml.c"
NAME = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fPIC", "-shared", "-pthread")


def build_library(folder: Path) -> Path:
    """Compile the library into ``folder`` and return its path."""
    target = folder / NAME
    command = ["gcc", *FLAGS, "-fvisibility=hidden", f"-Wl,-soname,{NAME}", str(SOURCE), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return target


@dataclass
class NvmlState:
    """A state file, and changes to it. The library finds it by the variable FAKE_NVML_STATE."""

    path: Path
    values: dict[str, object] = field(default_factory=dict)

    def set(self, **values: object) -> None:
        """Change values of the whole machine; None takes one away."""
        self._change(values)

    def gpu(self, index: int | None, **values: object) -> None:
        """Change values of one GPU, or of all."""
        prefix = "gpu" if index is None else f"gpu{index}"
        self._change({f"{prefix}.{key.replace('__', '.')}": value for key, value in values.items()})

    def _change(self, values: Mapping[str, object]) -> None:
        self.values.update(values)
        kept = {key: str(value) for key, value in self.values.items() if value is not None}
        write_state(self.path, kept)


def write_state(path: Path, values: Mapping[str, str]) -> None:
    """Replace a state file in one step."""
    new = path.with_suffix(".new")
    new.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    new.replace(path)
