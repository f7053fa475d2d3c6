"""A small ssh server in this process, on loopback: runs real commands, forwards real ports, checks keys."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


def make_key() -> tuple[str, paramiko.Ed25519Key]:
    """Return a new private key as text and as the library has it."""
    text = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    return text, paramiko.Ed25519Key.from_private_key(io.StringIO(text))


class Sshd:
    """Serves until closed. ``users`` are those who may log in, by key; everybody is the caller's own user in truth."""

    def __init__(self, home: Path, *users: str) -> None:
        self.home = home
        self.users = set(users)
        _, self.host_key = make_key()
        self.client_text, self.client_key = make_key()
        self.commands: list[str] = []
        self.sizes: list[tuple[int, int]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._transports: list[paramiko.Transport] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def public_key(self) -> str:
        return f"{self.host_key.get_name()} {self.host_key.get_base64()}"

    def close(self) -> None:
        # Closing alone does not wake the thread that waits: it would take one more connection.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every connection, as a dying machine does."""
        for transport in self._transports:
            transport.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(line)
            transport.add_server_key(self.host_key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _Files, self.home)
            self._transports.append(transport)
            with suppress(paramiko.SSHException, EOFError, OSError):
                transport.start_server(server=_Server(self, transport))


class _Server(paramiko.ServerInterface):
    def __init__(self, sshd: Sshd, transport: paramiko.Transport) -> None:
        self._sshd = sshd
        self._transport = transport

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = username in self._sshd.users and key.get_base64() == self._sshd.client_key.get_base64()
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_pty_request(self, channel: Any, term: Any, width: int, height: int, *_: Any) -> bool:
        self._sshd.sizes.append((width, height))
        return True

    def check_channel_window_change_request(self, channel: Any, width: int, height: int, *_: Any) -> bool:
        self._sshd.sizes.append((width, height))
        return True

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        return self.check_channel_exec_request(channel, b"cat")

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._sshd.commands.append(command.decode())
        threading.Thread(target=self._run, args=(channel, command.decode()), daemon=True).start()
        return True

    def check_channel_direct_tcpip_request(self, chanid: int, origin: Any, destination: tuple[str, int]) -> int:
        try:
            line = socket.create_connection(destination, timeout=2)
        except OSError:
            return paramiko.OPEN_FAILED_CONNECT_FAILED
        threading.Thread(target=self._join, args=(line, chanid), daemon=True).start()
        return paramiko.OPEN_SUCCEEDED

    def _join(self, line: socket.socket, chanid: int) -> None:
        channel = self._transport.accept(5)
        while channel is not None and channel.get_id() != chanid:
            channel = self._transport.accept(5)
        if channel is None:
            return

        def pump(read: Any, write: Any, end: Any) -> None:
            with suppress(OSError, EOFError):
                while data := read(65536):
                    write(data)
            with suppress(OSError, EOFError):
                end()

        threading.Thread(
            target=pump, args=(channel.recv, line.sendall, lambda: line.shutdown(socket.SHUT_WR)), daemon=True
        ).start()
        pump(line.recv, channel.sendall, channel.shutdown_write)
        line.close()

    def _run(self, channel: paramiko.Channel, command: str) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self._sshd.home,
            env={"PATH": os.environ["PATH"], "HOME": str(self._sshd.home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None

        def feed() -> None:
            with suppress(OSError, EOFError):
                while data := channel.recv(65536):
                    process.stdin.write(data)
                    process.stdin.flush()
            with suppress(OSError):
                process.stdin.close()

        def drain(source: Any, send: Any) -> None:
            with suppress(OSError, EOFError):
                while data := os.read(source.fileno(), 65536):
                    send(data)

        threading.Thread(target=feed, daemon=True).start()
        errors = threading.Thread(target=drain, args=(process.stderr, channel.sendall_stderr), daemon=True)
        errors.start()
        drain(process.stdout, channel.sendall)
        errors.join()
        code = process.wait()
        with suppress(OSError, EOFError):
            if code >= 0:
                channel.send_exit_status(code)
            channel.close()


class _Files(paramiko.SFTPServerInterface):
    """The files below one folder, as root of the user's world."""

    def __init__(self, server: Any, home: Path) -> None:
        super().__init__(server)
        self._home = home

    def _at(self, path: str) -> str:
        return path if path.startswith(str(self._home)) else f"{self._home}/{path.lstrip('/')}"

    def canonicalize(self, path: str) -> str:
        return str(self._home) if path in (".", "") else os.path.normpath(path)

    def stat(self, path: str) -> Any:
        try:
            return paramiko.SFTPAttributes.from_stat(os.stat(path))
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    def list_folder(self, path: str) -> Any:
        return [paramiko.SFTPAttributes.from_stat(os.stat(entry), filename=entry.name) for entry in os.scandir(path)]

    def mkdir(self, path: str, attr: Any) -> int:
        try:
            os.mkdir(path)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        return paramiko.SFTP_OK

    def chattr(self, path: str, attr: Any) -> int:
        paramiko.SFTPServer.set_file_attr(path, attr)
        return paramiko.SFTP_OK

    def open(self, path: str, flags: int, attr: Any) -> Any:
        try:
            file = os.fdopen(os.open(path, flags, 0o600), "wb")
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        handle = paramiko.SFTPHandle(flags)
        handle.writefile = file  # type: ignore[attr-defined]
        return handle
