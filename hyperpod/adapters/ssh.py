"""Logins by ssh, with paramiko: commands, terminals, files and forwarded ports.

The only module that knows paramiko, which is loaded when the first connection is made. A node must show the host key
that its cluster made for it; there is no "trust it this once".
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import select
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from hyperpod.adapters.process import Processes
from hyperpod.core.login import Forward, put_argv, remote_line
from hyperpod.errors import (
    AccessDenied,
    CommandError,
    CommandTimeout,
    ConnectionLost,
    HyperpodError,
    InvalidState,
    NotFound,
    UsageError,
)
from hyperpod.ports.login import Answer, SshTarget

if TYPE_CHECKING:
    import paramiko

logger = logging.getLogger(__name__)

CONNECT_S: Final = 10.0
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""A node that acknowledges nothing for so long is gone; without this a dead one would hold the terminal for ever."""
_CHUNK: Final = 65536
_DEFAULT_KEYS: Final = ("id_ed25519", "id_ecdsa", "id_rsa")
_MOST_KEYS: Final = 5
"""sshd gives up after six."""
_MARK: Final = "HYPERPOD_LOGIN"


def open_session(
    target: SshTarget, *, timeout_s: float = CONNECT_S, tell: Callable[[str], None] = lambda _: None
) -> Any:
    """Log in and return the session.

    Args:
        target: The node.
        timeout_s: For each step of the way.
        tell: Hears of trouble with forwarded connections.
    Raises:
        ConnectionLost: Nobody answers there, or no ssh server.
        InvalidState: It shows another host key than its cluster made for it.
        NotFound: There is no such user.
        AccessDenied: It lets the user in with none of the keys.
    """
    # Its own complaints would come between ours; --debug shows the exceptions.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    jump = open_session(target.jump, timeout_s=timeout_s, tell=tell) if target.jump is not None else None
    try:
        transport = _connect(target, jump, timeout_s)
        try:
            if _authenticate(transport, target):
                return ParamikoSession(transport, target, jump, tell)
        except BaseException:
            _close(transport)
            raise
        _close(transport)
        if not target.through_root or target.user == "root":
            raise AccessDenied(
                f"{target.name} does not let {target.user} in: no such user there, or none of the keys is one of its",
                hint=f"put your public key into ~{target.user}/.ssh/authorized_keys there, or name a key by --key",
            )
        transport = _connect(target, jump, timeout_s)
        if not _authenticate(transport, target, "root"):
            _close(transport)
            raise AccessDenied(f"{target.name} lets neither {target.user} nor root in by the cluster's key")
        session = ParamikoSession(transport, target, jump, tell, become=target.user)
        session.check_user()
        return session
    except BaseException:
        if jump is not None:
            jump.close()
        raise


def _connect(target: SshTarget, jump: ParamikoSession | None, timeout_s: float) -> paramiko.Transport:
    """Make the connection and have the other side prove who it is."""
    import paramiko

    where = target.name if target.proxy else f"{target.name} ({target.address}, port {target.port})"
    dialled = Processes().dial(target.proxy) if target.proxy and jump is None else None
    try:
        line = dialled.socket if dialled is not None else _line_to(target, jump, timeout_s)
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise ConnectionLost(f"{where} cannot be reached: {_reason(error)}", hint=target.hint) from error
    try:
        transport = paramiko.Transport(line)
        transport.banner_timeout = timeout_s
        kind, _, text = target.host_key.strip().partition(" ")
        options = transport.get_security_options()
        # The server has keys of several kinds; the one that is known is to be shown.
        options.key_types = tuple(sorted(options.key_types, key=lambda one: one != kind))
        transport.start_client(timeout=timeout_s)
    except (OSError, EOFError, paramiko.SSHException) as error:
        with contextlib.suppress(OSError):
            line.close()
        said = dialled.complaint() if dialled is not None else ""
        if dialled is not None:
            dialled.close()
        raise ConnectionLost(f"no ssh server answers on {where}: {said or _reason(error)}", hint=target.hint) from error
    if dialled is not None:
        # Kept by the connection that lives from it.
        transport.dialled = dialled  # type: ignore[attr-defined]
    shown = transport.get_remote_server_key()
    known = text.split()[0] if text.split() else ""
    if shown.get_base64() != known:
        _close(transport)
        if not known:
            raise InvalidState(
                f"log in to {target.name}",
                f"a machine whose host key ({shown.get_name()} {shown.fingerprint}) its cluster does not know",
                hint="hyperpod update-cluster SPEC makes missing keys",
            )
        raise InvalidState(
            f"log in to {target.name}",
            f"showing another host key ({shown.get_name()} {shown.fingerprint}) than its cluster made for it",
            hint=f"somebody may be in between; hyperpod replace-node {target.name} gives a machine with the right key",
        )
    return transport


def _close(transport: paramiko.Transport) -> None:
    transport.close()
    dialled = getattr(transport, "dialled", None)
    if dialled is not None:
        dialled.close()


def _line_to(target: SshTarget, jump: ParamikoSession | None, timeout_s: float) -> Any:
    if jump is not None:
        return jump.transport.open_channel(
            "direct-tcpip", (target.address, target.port), ("127.0.0.1", 0), timeout=timeout_s
        )
    line = socket.create_connection((target.address, target.port), timeout=timeout_s)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if isinstance(error, EOFError):
        return "it hangs up"
    return str(error) or type(error).__name__


def _authenticate(transport: paramiko.Transport, target: SshTarget, user: str = "") -> bool:
    """Offer the keys one by one; False when none is good."""
    import paramiko

    tried = 0
    for key in _keys(target):
        tried += 1
        try:
            transport.auth_publickey(user or target.user, key)
        except paramiko.AuthenticationException:
            if tried >= _MOST_KEYS or not transport.is_active():
                return False
        except (OSError, EOFError, paramiko.SSHException) as error:
            if not transport.is_active() and tried > 1:
                return False
            raise ConnectionLost(f"{target.name} hangs up during the login: {_reason(error)}") from error
        else:
            return transport.is_authenticated()
    if not tried:
        raise AccessDenied(
            f"there is no key to log in to {target.name} with",
            hint="name one by --key FILE, or add one to the agent: ssh-add FILE",
        )
    return False


def _keys(target: SshTarget) -> Iterator[paramiko.PKey]:
    import paramiko

    for text in target.key_texts:
        yield paramiko.Ed25519Key.from_private_key(io.StringIO(text))
    for path in target.key_files:
        yield _load(path)
    if not target.use_agent:
        return
    try:
        yield from paramiko.Agent().get_keys()
    except (paramiko.SSHException, OSError) as error:
        logger.debug("no agent error=%s", error)
    for name in _DEFAULT_KEYS:
        path = Path.home() / ".ssh" / name
        if path.is_file():
            # An encrypted one is the agent's business.
            with contextlib.suppress(AccessDenied, UsageError):
                yield _load(path)


def _load(path: Path) -> paramiko.PKey:
    import paramiko

    try:
        return paramiko.PKey.from_path(path)
    except paramiko.PasswordRequiredException as error:
        raise AccessDenied(f"the key {path} is encrypted", hint=f"add it to the agent: ssh-add {path}") from error
    except TypeError as error:
        # The library's own wording for a passphrase that is missing.
        raise AccessDenied(f"the key {path} is encrypted", hint=f"add it to the agent: ssh-add {path}") from error
    except OSError as error:
        raise UsageError(f"the key {path} cannot be read: {error.strerror or error}") from error
    except (paramiko.SSHException, ValueError, IndexError) as error:
        raise UsageError(f"{path} is not a private key that ssh can use") from error


class ParamikoSession:
    """A login. Implements ``ports.login.SshSession``; use ``open_session``.

    Args:
        become: The login is root's; everything is done as this user.
    """

    def __init__(
        self,
        transport: paramiko.Transport,
        target: SshTarget,
        jump: ParamikoSession | None,
        tell: Callable[[str], None],
        *,
        become: str = "",
    ) -> None:
        self.transport = transport
        self.target = target
        self._jump = jump
        self._tell = tell
        self._become = become
        self._listeners: list[socket.socket] = []

    def __enter__(self) -> ParamikoSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the login and all that goes through it."""
        for listener in self._listeners:
            listener.close()
        _close(self.transport)
        if self._jump is not None:
            self._jump.close()

    def check_user(self) -> None:
        """Make sure that the user to become is there.

        Raises:
            NotFound: It is not.
        """
        user, self._become = self._become, ""
        try:
            answer = self.ask(["id", "-u", "--", user], timeout_s=CONNECT_S)
        finally:
            self._become = user
        if answer.code != 0:
            self.close()
            raise NotFound(f"there is no user {user} on {self.target.name}", hint="every node has the user ubuntu")

    # --- commands

    def ask(self, argv: Sequence[str], *, timeout_s: float, input: bytes = b"") -> Answer:
        """Run a short command; see ``ports.login.Session.ask``.

        Raises:
            CommandTimeout: It did not end in time.
        """
        channel = self._open()
        try:
            self._exec(channel, self._line(argv))
            errors = bytearray()
            reader = threading.Thread(target=_collect, args=(channel.recv_stderr, errors), daemon=True)
            reader.start()
            feeder = threading.Thread(target=_feed, args=(channel, input), daemon=True)
            feeder.start()
            output = bytearray()
            channel.settimeout(timeout_s)
            deadline = time.monotonic() + timeout_s
            try:
                while chunk := channel.recv(_CHUNK):
                    output += chunk
                    channel.settimeout(max(deadline - time.monotonic(), 0.01))
            except TimeoutError as error:
                raise CommandTimeout(list(argv), timeout_s) from error
            reader.join(timeout_s)
            return Answer(bytes(output), bytes(errors), self._status(channel))
        finally:
            channel.close()

    def attach(self, argv: Sequence[str]) -> int:
        """Run a command with the caller's input and outputs; see ``ports.login.SshSession.attach``.

        Ctrl-C and a request to end reach the command there; a second Ctrl-C gives up on it.
        """
        channel = self._open()
        mark = f"{_MARK}={secrets.token_hex(8)}"
        try:
            with self._signals_pass(mark):
                self._exec(channel, self._line(argv, mark))
                errors = threading.Thread(target=_copy, args=(channel.recv_stderr, 2), daemon=True)
                errors.start()
                threading.Thread(target=_send_input, args=(channel,), daemon=True).start()
                _copy(channel.recv, 1)
                errors.join()
                return self._status(channel)
        finally:
            channel.close()

    def interact(self, argv: Sequence[str] = ()) -> int:
        """Use the caller's terminal; see ``ports.login.SshSession.interact``."""
        import termios
        import tty

        channel = self._open()
        terminal = sys.stdin.fileno()
        try:
            size = _size()
            channel.get_pty(os.environ.get("TERM", "xterm"), size.columns, size.lines)
            if argv or self._become:
                self._exec(channel, self._line(argv) if argv else self._login_shell())
            else:
                channel.invoke_shell()
            before = termios.tcgetattr(terminal)
            wake, waker = os.pipe()
            resized = signal.signal(signal.SIGWINCH, lambda *_: os.write(waker, b"w"))
            try:
                # What was typed before is not thrown away.
                tty.setraw(terminal, termios.TCSADRAIN)
                reader = threading.Thread(target=_copy_then, args=(channel.recv, waker), daemon=True)
                reader.start()
                _type(channel, terminal, wake)
                reader.join(1.0)
            finally:
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)
                signal.signal(signal.SIGWINCH, resized)
            return self._status(channel)
        finally:
            channel.close()

    def wait(self) -> None:
        """Wait until the connection ends; see ``ports.login.SshSession.wait``.

        Raises:
            ConnectionLost: Always, when it does.
        """
        while self.transport.is_active():
            self.transport.join(1.0)
        raise self._lost()

    # --- files

    def put(self, folder: str, name: str, data: bytes) -> str:
        """Write a file into a new folder; see ``ports.login.Session.put``.

        Raises:
            CommandError: The user may not write there.
        """
        import paramiko

        if self._become:
            # Files are root's in a login of root; the user's own programs make the user's own.
            answer = self.ask(put_argv(folder, name), timeout_s=60.0, input=data)
            if answer.code != 0:
                raise CommandError(["sh"], answer.code, answer.trouble)
            return answer.text.strip().splitlines()[-1]
        try:
            with self.transport.open_sftp_client() as sftp:
                made = _new_folder(sftp, folder, PurePosixPath(name).stem)
                path = f"{made}/{name}"
                with sftp.open(path, "wx") as file:
                    file.write(data)
                sftp.chmod(path, 0o700)
                return path
        except (OSError, EOFError, paramiko.SSHException) as error:
            if not self.transport.is_active():
                raise self._lost() from error
            raise CommandError(["sftp"], 1, f"{folder} on {self.target.name}: {_reason(error)}") from error

    # --- ports

    def forward(self, wish: Forward) -> int:
        """Make a port here lead to one there; see ``ports.login.SshSession.forward``.

        Raises:
            UsageError: The port is taken, or may not be used.
        """
        family = socket.AF_INET6 if ":" in wish.listen_host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((wish.listen_host, wish.listen_port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            raise UsageError(
                f"port {wish.listen_port} of {wish.listen_host} cannot be used: {_reason(error)}",
                hint="name another one, or 0 for any that is free",
            ) from error
        self._listeners.append(listener)
        threading.Thread(target=self._serve, args=(listener, wish), daemon=True).start()
        return int(listener.getsockname()[1])

    def _serve(self, listener: socket.socket, wish: Forward) -> None:
        while True:
            try:
                client, peer = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect_through, args=(client, peer, wish), daemon=True).start()

    def _connect_through(self, client: socket.socket, peer: Any, wish: Forward) -> None:
        import paramiko

        try:
            channel = self.transport.open_channel("direct-tcpip", (wish.host, wish.port), peer[:2], timeout=CONNECT_S)
        except (OSError, EOFError, paramiko.SSHException) as error:
            client.close()
            self._tell(f"port {wish.listen_port}: {self.target.name} cannot reach {wish.host}:{wish.port}: {error}")
            return
        back = threading.Thread(target=_pump, args=(channel, client), daemon=True)
        back.start()
        _pump(client, channel)
        back.join()
        client.close()
        channel.close()

    # --- within

    def _line(self, argv: Sequence[str], mark: str = "") -> str:
        line = remote_line(argv, mark=mark)
        return shlex.join(["runuser", "-l", self._become, "-c", line]) if self._become else line

    def _login_shell(self) -> str:
        return shlex.join(["su", "--login", self._become])

    def _open(self) -> paramiko.Channel:
        import paramiko

        try:
            return self.transport.open_session(timeout=CONNECT_S)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost() from error

    def _exec(self, channel: paramiko.Channel, line: str) -> None:
        import paramiko

        try:
            channel.exec_command(line)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if not self.transport.is_active():
                raise self._lost() from error
            raise AccessDenied(f"{self.target.name} does not run commands for {self.target.user}") from error

    def _status(self, channel: paramiko.Channel) -> int:
        status = channel.recv_exit_status()
        if status >= 0:
            return status
        self.transport.join(0.2)
        if not self.transport.is_active():
            raise self._lost()
        # Ended by a signal, which the library does not tell.
        return 255

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.target.name} was lost", hint=self.target.hint)

    @contextlib.contextmanager
    def _signals_pass(self, mark: str) -> Iterator[None]:
        """Have SIGINT and SIGTERM sent to the command there instead of ending us."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        got: list[int] = []

        def relay(number: int, _frame: object) -> None:
            got.append(number)
            if got.count(signal.SIGINT) > 1:
                raise KeyboardInterrupt
            name = signal.Signals(number).name.removeprefix("SIG")
            threading.Thread(target=self._kill, args=(name, mark), daemon=True).start()

        before = {number: signal.signal(number, relay) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _kill(self, name: str, mark: str) -> None:
        script = (
            f"for f in $(grep -las {shlex.quote(mark)} /proc/[0-9]*/environ); do "
            f'p=${{f#/proc/}}; kill -{name} "${{p%/environ}}" 2>/dev/null; done'
        )
        with contextlib.suppress(HyperpodError):
            self.ask(["/bin/sh", "-c", script], timeout_s=CONNECT_S)


# --- copying ----------------------------------------------------------------------------------------------------


def _collect(receive: Callable[[int], bytes], into: bytearray) -> None:
    with contextlib.suppress(OSError, EOFError):
        while chunk := receive(_CHUNK):
            into += chunk


def _feed(channel: paramiko.Channel, data: bytes) -> None:
    with contextlib.suppress(OSError, EOFError):
        if data:
            channel.sendall(data)
        channel.shutdown_write()


def _copy(receive: Callable[[int], bytes], to: int) -> None:
    while chunk := receive(_CHUNK):
        _write(to, chunk)


def _copy_then(receive: Callable[[int], bytes], waker: int) -> None:
    with contextlib.suppress(OSError, EOFError):
        _copy(receive, 1)
    os.write(waker, b"e")


def _write(to: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(to, view) :]


def _send_input(channel: paramiko.Channel) -> None:
    """Send what the caller pipes in, to its end."""
    with contextlib.suppress(OSError, EOFError, ValueError):
        source = sys.stdin.fileno()
        while chunk := os.read(source, _CHUNK):
            channel.sendall(chunk)
    with contextlib.suppress(OSError, EOFError):
        channel.shutdown_write()


def _type(channel: paramiko.Channel, terminal: int, wake: int) -> None:
    """Send what is typed, and the terminal's size when it changes, until the other side has ended."""
    sources = [terminal, wake]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if wake in ready:
            if b"e" in os.read(wake, 64):
                return
            size = _size()
            with contextlib.suppress(OSError, EOFError):
                channel.resize_pty(size.columns, size.lines)
        if terminal in ready:
            try:
                data = os.read(terminal, 4096)
            except OSError:
                data = b""
            if data:
                with contextlib.suppress(OSError, EOFError):
                    channel.sendall(data)
            else:
                sources.remove(terminal)
                with contextlib.suppress(OSError, EOFError):
                    channel.shutdown_write()


def _size() -> os.terminal_size:
    try:
        return os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return os.terminal_size((80, 24))


def _pump(source: Any, target: Any) -> None:
    """Copy one direction of a connection to its end, and tell the other side that it ended."""
    with contextlib.suppress(OSError, EOFError):
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
    with contextlib.suppress(OSError, EOFError):
        if hasattr(target, "shutdown_write"):
            target.shutdown_write()
        else:
            target.shutdown(socket.SHUT_WR)


# --- files ------------------------------------------------------------------------------------------------------


def _new_folder(sftp: paramiko.SFTPClient, folder: str, stem: str) -> str:
    """Make a folder that was not there, below ``folder`` of the user's home (or an absolute one)."""
    base = folder if folder.startswith("/") else f"{sftp.normalize('.')}/{folder}"
    made = ""
    for part in PurePosixPath(base).parts:
        made = f"{made}/{part}" if part != "/" else ""
        if made:
            try:
                sftp.stat(made)
            except FileNotFoundError:
                with contextlib.suppress(OSError):
                    sftp.mkdir(made)
    numbers = [
        int(number)
        for name in sftp.listdir(base)
        for start, _, number in [name.rpartition("-")]
        if start == stem and number.isdigit()
    ]
    number = max(numbers, default=0)
    while True:
        number += 1
        path = f"{base}/{stem}-{number}"
        try:
            sftp.mkdir(path)
        except OSError:
            # Taken by another one at this moment, or not allowed at all.
            try:
                sftp.stat(path)
            except FileNotFoundError:
                raise PermissionError(13, "permission denied") from None
            continue
        return path
