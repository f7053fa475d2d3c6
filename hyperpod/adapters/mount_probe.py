"""Tries writes on mounts that may hang: one helper process for each mount, asked over a pipe.

Owns the helpers. One that does not answer in time is killed and given up, and replaced as soon as the kernel lets go
of it: a mount that is dead for hours holds one process of ours, not one for every try. While all is well no process
is started. Must not run in a thread that others wait for: an answer may take as long as its deadline.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hyperpod.errors import CommandError, CommandTimeout
from hyperpod.ports.process import Running, Starter

# It imports nothing that the interpreter has not loaded anyway, to stay small. Users may write in the folder: the name
# cannot be guessed, and what is there already is refused, so that root never writes through somebody's link.
_HELPER = """\
import os
flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
for line in open(0, 'rb'):
    path, token, *old = line.rstrip(b"\\n").split(b"\\t")
    try:
        file = os.open(path, flags, 0o600)
        old.append(path)
        try:
            os.write(file, token)
        finally:
            os.close(file)
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            back = os.read(file, 65536)
        finally:
            os.close(file)
        os.unlink(path)
        answer = b"ok" if back == token else b"read back something else than was written"
    except OSError as error:
        answer = (error.strerror or str(error)).encode()
    os.write(1, answer + b"\\n")
    for name in old:
        try:
            os.unlink(name)
        except OSError:
            pass
"""

_FAILED = "cannot be written: "


@dataclass
class _Mount:
    helper: Running | None = None
    is_given_up: bool = False
    left: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class MountProbe:
    """Writes, reads back and removes a small file.

    Args:
        starter: Starts the helpers.
        monotonic, pause: Clock and waiting, for tests.
    """

    def __init__(
        self,
        starter: Starter,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._starter = starter
        self._monotonic = monotonic
        self._pause = pause
        self._mounts: dict[str, _Mount] = {}

    def try_write(self, folder: str, name: str, token: str, timeout_s: float) -> None:
        """Write ``token`` to a new file ``name`` in ``folder``, read it back and remove it.

        Raises:
            CommandTimeout: There was no answer in time.
            CommandError: It failed; ``stderr_tail`` says why.
        """
        mount = self._mounts.setdefault(folder, _Mount())
        path = f"{folder.rstrip('/')}/{name}"
        ends_at = self._monotonic() + timeout_s
        if not mount.lock.acquire(timeout=timeout_s):
            raise CommandTimeout(["write", path], timeout_s)
        try:
            self._try(mount, path, token, ends_at, timeout_s)
        finally:
            mount.lock.release()

    def _try(self, mount: _Mount, path: str, token: str, ends_at: float, timeout_s: float) -> None:
        helper = self._helper(mount, path, ends_at, timeout_s)
        # Names of tries that were given up are removed by the next that succeeds.
        request = "\t".join((path, _clean(token), *mount.left[-20:]))
        try:
            helper.write(request.encode(errors="surrogateescape") + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                part = helper.read(ends_at - self._monotonic())
                if part is None:
                    mount.left = [*mount.left[-19:], path]
                    mount.is_given_up = True
                    helper.kill()
                    raise CommandTimeout(["write", path], timeout_s)
                if not part:
                    raise BrokenPipeError("the helper has ended")
                answer += part
        except OSError as error:
            mount.is_given_up = True
            helper.kill()
            raise CommandError(["write", path], 1, f"{path}: {error}") from error
        text = answer.decode(errors="replace").strip()
        if text == "ok":
            mount.left.clear()
            return
        raise CommandError(["write", path], 1, f"{_FAILED}{path}: {text}")

    def _helper(self, mount: _Mount, path: str, ends_at: float, timeout_s: float) -> Running:
        """Return the mount's helper; a new one where the old one has ended.

        Raises:
            CommandTimeout: The old one was killed and the kernel still holds it: the mount hangs as before.
        """
        old = mount.helper
        if old is not None and not mount.is_given_up and old.code() is None:
            return old
        if old is not None:
            while old.code() is None:
                if self._monotonic() >= ends_at:
                    raise CommandTimeout(["write", path], timeout_s)
                self._pause(0.05)
            old.close()
            mount.helper = None
        mount.is_given_up = False
        mount.helper = self._starter.start([sys.executable, "-I", "-S", "-c", _HELPER])
        return mount.helper


def _clean(token: str) -> str:
    return token.replace("\t", " ").replace("\n", " ")


def new_name(node: str) -> str:
    """Return a file name that nobody can guess, and that tells whose it is."""
    safe = "".join(c if c.isalnum() or c in ".-_" else "_" for c in node)
    return f".hyperpod-probe.{safe}.{os.urandom(8).hex()}"
