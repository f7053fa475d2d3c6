"""Munge credentials: prove to another machine which user wrote some bytes.

Owns the ctypes binding to libmunge. Must not know what the bytes mean. Constants are those of munge.h 0.5.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

from hyperpod.errors import ClockRefused, MungeError

TTL_S = 300
"""Life of a credential: munge's own default, and Slurm's. A node whose clock is off by more than the health check
allows (60 s) must still be able to say so; munged refuses the second use of each on the same machine anyway."""

MAX_PAYLOAD_BYTES = 700_000
"""A credential is its payload in base64 and must stay below munged's request limit of 1 MiB."""

_SUCCESS, _BAD_LENGTH, _SOCKET, _TIMEOUT = 0, 3, 6, 7
_EXPIRED, _REWOUND, _REPLAYED, _UNAUTHORIZED = 15, 16, 17, 18
_OPT_TTL, _OPT_ENCODE_TIME, _OPT_DECODE_TIME, _OPT_SOCKET, _OPT_UID = 4, 6, 7, 8, 9


@dataclass(frozen=True)
class Credential:
    """A decoded credential: the bytes, and who wrote them when (epoch seconds, whole).

    ``encoded_at`` is by the writer's clock, ``decoded_at`` by this machine's.
    """

    payload: bytes
    uid: int
    gid: int
    encoded_at: int = 0
    decoded_at: int = 0


@cache
def _load() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    try:
        lib = ctypes.CDLL("libmunge.so.2")
    except OSError as error:
        raise MungeError(
            f"the munge library cannot be loaded: {error}", hint="install the packages munge and libmunge2"
        ) from error
    lib.munge_ctx_create.restype = ctypes.c_void_p
    lib.munge_ctx_create.argtypes = []
    lib.munge_ctx_destroy.restype = None
    lib.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    lib.munge_strerror.restype = ctypes.c_char_p
    lib.munge_strerror.argtypes = [ctypes.c_int]
    lib.munge_ctx_strerror.restype = ctypes.c_char_p
    lib.munge_ctx_strerror.argtypes = [ctypes.c_void_p]
    lib.munge_encode.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int,
    ]
    lib.munge_decode.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_int),
        ctypes.POINTER(ctypes.c_uint),
        ctypes.POINTER(ctypes.c_uint),
    ]
    # Both are variadic; the first two arguments are typed, the third is given as a ctypes value.
    lib.munge_ctx_set.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.munge_ctx_get.argtypes = [ctypes.c_void_p, ctypes.c_int]
    libc = ctypes.CDLL(None)
    libc.free.restype = None
    libc.free.argtypes = [ctypes.c_void_p]
    return lib, libc


class Munge:
    """Writes and reads credentials through the local munged.

    Safe to use from several threads: each call has a context of its own.

    Args:
        socket: munged's socket; None means the one that libmunge was built for.
        ttl_s: Life of the credentials made here, in seconds.
    """

    def __init__(self, socket: str | None = None, *, ttl_s: int = TTL_S) -> None:
        self._socket = socket
        self._ttl_s = ttl_s

    def encode(self, payload: bytes, *, only_uid: int | None = None) -> bytes:
        """Return a credential for these bytes, written by this process's effective user.

        Args:
            payload: At most ``MAX_PAYLOAD_BYTES``.
            only_uid: User who alone may decode it (root may not either); None: anybody on a machine with the key.
        Raises:
            MungeError: if munged does not answer or the payload is too large.
        """
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise MungeError(f"a message of {len(payload)} bytes is over the limit of {MAX_PAYLOAD_BYTES} bytes")
        lib, libc = _load()
        context = self._context(lib)
        credential = ctypes.c_void_p()
        try:
            self._set(lib, context, _OPT_TTL, ctypes.c_int(self._ttl_s))
            if only_uid is not None:
                self._set(lib, context, _OPT_UID, ctypes.c_uint(only_uid))
            code = lib.munge_encode(ctypes.byref(credential), context, payload, len(payload))
            if code != _SUCCESS:
                raise self._error("make a credential", code, lib, context)
            return ctypes.string_at(credential.value or 0)
        finally:
            libc.free(credential)
            lib.munge_ctx_destroy(context)

    def decode(self, credential: bytes) -> Credential:
        """Return what a credential holds and who wrote it.

        Raises:
            MungeError: if it is forged, damaged, expired, from the future, used before on this machine, meant
                for another user, or if munged does not answer.
        """
        if b"\0" in credential:
            raise MungeError("the credential is not acceptable: it holds a NUL byte")
        lib, libc = _load()
        context = self._context(lib)
        buffer, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint(), ctypes.c_uint()
        try:
            code = lib.munge_decode(
                credential,
                context,
                ctypes.byref(buffer),
                ctypes.byref(length),
                ctypes.byref(uid),
                ctypes.byref(gid),
            )
            encoded_at = self._time(lib, context, _OPT_ENCODE_TIME)
            decoded_at = self._time(lib, context, _OPT_DECODE_TIME)
            if code != _SUCCESS:
                raise self._error(
                    "accept a credential", code, lib, context, age_s=decoded_at - encoded_at, uid=uid.value
                )
            payload = ctypes.string_at(buffer.value, length.value) if buffer.value else b""
            return Credential(payload, uid.value, gid.value, encoded_at, decoded_at)
        finally:
            # For expired, rewound and replayed credentials libmunge returns the payload with the error.
            libc.free(buffer)
            lib.munge_ctx_destroy(context)

    def _context(self, lib: ctypes.CDLL) -> ctypes.c_void_p:
        context = ctypes.c_void_p(lib.munge_ctx_create())
        if not context.value:
            raise MungeError("munge has no memory for a context")
        if self._socket is not None:
            try:
                self._set(lib, context, _OPT_SOCKET, ctypes.c_char_p(self._socket.encode()))
            except MungeError:
                lib.munge_ctx_destroy(context)
                raise
        return context

    @staticmethod
    def _set(lib: ctypes.CDLL, context: ctypes.c_void_p, option: int, value: Any) -> None:
        code = lib.munge_ctx_set(context, option, value)
        if code != _SUCCESS:
            raise MungeError(f"munge refused option {option}: {lib.munge_strerror(code).decode()}")

    @staticmethod
    def _time(lib: ctypes.CDLL, context: ctypes.c_void_p, option: int) -> int:
        value = ctypes.c_long(0)
        lib.munge_ctx_get(context, option, ctypes.byref(value))
        return value.value

    def _error(
        self, attempted: str, code: int, lib: ctypes.CDLL, context: ctypes.c_void_p, *, age_s: int = 0, uid: int = -1
    ) -> MungeError:
        told = lib.munge_ctx_strerror(context) or lib.munge_strerror(code)
        text = told.decode(errors="replace")
        hint = ""
        if code == _EXPIRED:
            text = f"it has expired ({age_s} s old)"
            hint = "compare the clocks of the two machines"
        elif code == _REWOUND:
            text = f"it was made {-age_s} s in the future"
            hint = "the clocks of the two machines differ; start a time service on both"
        elif code == _REPLAYED:
            text = "it has been used before (replayed)"
        elif code == _UNAUTHORIZED:
            text = "it is meant for another user"
        elif code == _BAD_LENGTH:
            text = "the message is too large"
        elif code in (_SOCKET, _TIMEOUT):
            hint = "see that munge runs: systemctl status munge"
        if code in (_EXPIRED, _REWOUND):
            return ClockRefused(f"cannot {attempted}: {text}", hint=hint, ahead_s=-age_s, uid=uid)
        return MungeError(f"cannot {attempted}: {text}", hint=hint)
