"""EC2's metadata service, version 2: a session token first, then texts by path. Standard library only.

Never asks an address that it was not given: outside of EC2 there is none, and on a laptop nobody must be asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from hyperpod.errors import ProviderUnavailable

TIMEOUT_S: Final = 2.0
_TOKEN_S: Final = 21_600
_LIMIT: Final = 65_536

Request = Callable[[str, str, Mapping[str, str]], tuple[int, str]]
"""Method, path and headers to status and text."""


def endpoint_of(configured: str, environment: Mapping[str, str]) -> str:
    """Return where the metadata service is: what the environment names, else what is configured; empty for nowhere.

    ``AWS_EC2_METADATA_DISABLED=true`` closes it, as in AWS's own programs.
    """
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return ""
    return environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "") or configured


class Imds:
    """Implements ``ports.metadata.Metadata``. Safe from any thread.

    Args:
        endpoint: Such as ``http://10.0.0.1:1338``.
        request: Makes one request; by default over the network.
        monotonic: The clock that tokens age by.
    """

    def __init__(
        self, endpoint: str, *, request: Request | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._request = request or _over_network(endpoint)
        self._endpoint = endpoint
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._token = ""
        self._token_until = 0.0

    def read(self, path: str) -> str | None:
        """Return the text at a path; see the port."""
        with self._lock:
            for is_last in (False, True):
                headers = {"X-aws-ec2-metadata-token": self._session()}
                status, text = self._ask("GET", f"/latest/meta-data/{path}", headers)
                if status == 200:
                    return text
                if status == 404:
                    return None
                if status != 401 or is_last:
                    break
                # The token has ended earlier than promised, e.g. since the machine was stopped in between.
                self._token = ""
        raise ProviderUnavailable(f"the metadata service at {self._endpoint} answers {status} to {path}")

    def _session(self) -> str:
        now = self._monotonic()
        if not self._token or now >= self._token_until:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            status, text = self._ask("PUT", "/latest/api/token", headers)
            if status != 200:
                raise ProviderUnavailable(f"the metadata service at {self._endpoint} gives no token: {status}")
            self._token, self._token_until = text, now + _TOKEN_S - 60
        return self._token

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        try:
            return self._request(method, path, headers)
        except OSError as error:
            raise ProviderUnavailable(
                f"the metadata service at {self._endpoint} does not answer: {error.strerror or error}"
            ) from error


def _over_network(endpoint: str) -> Request:
    parts = urlsplit(endpoint)
    host, port, prefix = parts.hostname or "", parts.port or 80, parts.path.rstrip("/")

    def request(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        # Loaded only where there is a service to ask: most nodes have none.
        from http.client import HTTPConnection, HTTPException

        connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            connection.request(method, prefix + path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(_LIMIT).decode("utf-8", "replace")
        except HTTPException as error:
            raise OSError(f"not HTTP: {error!r}") from error
        finally:
            connection.close()

    return request
