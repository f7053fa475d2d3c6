"""A private munged for tests: the real daemon with a key and a socket of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MUNGED = shutil.which("munged", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


@contextmanager
def running_munged(folder: Path) -> Iterator[str]:
    """Run munged until the block ends and give its socket's path. ``folder`` must be writable by nobody else."""
    assert MUNGED is not None
    folder.chmod(0o711)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    socket = folder / "munge.socket"
    argv = [MUNGED, "--foreground", "--force", f"--socket={socket}", f"--key-file={key}"]
    argv += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed"]
    daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # This waits for a real daemon, so real time has to pass.
        pause = threading.Event()
        for _ in range(500):
            if socket.exists():
                break
            if daemon.poll() is not None:
                raise RuntimeError(f"munged ended with status {daemon.returncode}")
            pause.wait(0.01)
        yield str(socket)
    finally:
        daemon.terminate()
        daemon.wait(timeout=10)
