"""The one way to AWS: sessions, retries at the border, and a log without secrets.

Owns when a call is made again. Reads are repeated when the service is away; what changes something only when the
service said that it did not do it (throttling), or when the caller says that repeating is harmless.
``AWS_ENDPOINT_URL`` and its kin are honoured by the library itself.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hyperpod import __version__
from hyperpod.adapters.aws.errors import translate
from hyperpod.adapters.aws.pace import Pace, machines_in
from hyperpod.errors import ConfigError, HyperpodError, ProviderUnavailable, Throttled, UnexpectedOutput

if TYPE_CHECKING:
    import boto3

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60
MAX_TRIES: Final = 8
"""With waits of up to 20 s: about a minute of throttling, then exit status 75."""
_LONGEST_WAIT_S: Final = 20.0
_TOLD_AT_TRY: Final = 3
"""A short wait is nobody's business; a longer one is explained."""
_TOLD_WAIT_S: Final = 10.0
_READS: Final = ("Describe", "List", "Get", "Head", "Search", "Filter", "Lookup")
_SECRET: Final = re.compile(r"(?i)(secret|password|token|credential|private_?key|userdata|^body$|keymaterial)")
_NOT_SECRET: Final = ("NextToken", "nextToken", "ClientToken", "ContinuationToken", "SecretArn")


@dataclass
class Aws:
    """An account and region, by profile and environment as every AWS program finds them.

    Safe from any thread. Nothing is asked of AWS, and boto3 is not imported, before the first call.

    Attributes:
        region: ``--region``; by default AWS_REGION, AWS_DEFAULT_REGION or the profile's.
        profile: ``--profile``; by default AWS_PROFILE.
        session: A ready session, for tests.
        sleep: Waits between tries.
        max_tries: Calls made for one answer.
        pace: Holds calls back that would overdraw EC2's buckets.
        connect_timeout_s, read_timeout_s: How long one call waits for the service.
    """

    region: str = ""
    profile: str = ""
    session: boto3.session.Session | None = None
    sleep: Callable[[float], None] = time.sleep
    max_tries: int = MAX_TRIES
    pace: Pace = field(default_factory=Pace)
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    read_timeout_s: float = READ_TIMEOUT_S
    counts: dict[str, int] = field(default_factory=dict)
    _clients: dict[tuple[str, str], Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, service: str, region: str = "") -> Any:
        """Return the library's client, made once for each service.

        Raises:
            ConfigError: No region is known, or the profile does not exist.
        """
        with self._lock:
            if (service, region) not in self._clients:
                self._clients[service, region] = self._make_client(service, region)
            return self._clients[service, region]

    def _make_client(self, service: str, region: str) -> Any:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        # The library logs whole requests, session tokens included.
        for name in ("boto3", "botocore", "urllib3", "s3transfer"):
            logging.getLogger(name).setLevel(logging.WARNING)
        config = Config(
            connect_timeout=self.connect_timeout_s,
            read_timeout=self.read_timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},
            user_agent_extra=f"hyperpod/{__version__}",
            max_pool_connections=32,
        )
        try:
            if self.session is None:
                given = self.region or os.environ.get("AWS_REGION") or None
                self.session = boto3.session.Session(profile_name=self.profile or None, region_name=given)
            return self.session.client(service, region_name=region or self.region or None, config=config)
        except (BotoCoreError, ValueError) as error:
            raise translate(error, service, "connect", region=region or self.region) from error

    @property
    def region_name(self) -> str:
        """The region that calls go to.

        Raises:
            ConfigError: None is known.
        """
        return str(self.client("sts").meta.region_name)

    def call(
        self, service: str, operation: str, *, what: str = "", repeat: bool = False, region: str = "", **params: Any
    ) -> dict[str, Any]:
        """Make one call and return its answer.

        Args:
            service, operation: As the API names them: ``sagemaker``, ``CreateCluster``.
            what: What it is about, for messages: ``cluster ml-1``.
            repeat: Making it twice is harmless although it changes something.
            region: Another region than the session's.
            params: The request.
        Raises:
            ProviderError: And its kin; ``errors.translate`` has the table.
            ConfigError: The library is too old for this operation.
        """
        import tenacity
        from botocore import xform_name

        client = self.client(service, region)
        method = getattr(client, xform_name(operation), None)
        if method is None:
            raise ConfigError(f"this boto3 does not know {service} {operation}", hint="pip install 'boto3>=1.44'")
        passing: tuple[type[HyperpodError], ...] = (Throttled,)
        if repeat or operation.startswith(_READS):
            passing = (Throttled, ProviderUnavailable)
        retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(passing),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT_S),
            stop=tenacity.stop_after_attempt(self.max_tries),
            sleep=self.sleep,
            before_sleep=_tell,
            reraise=True,
        )
        answer: dict[str, Any] = retry(self._once, method, client, service, operation, what, params)
        return answer

    def _once(
        self, method: Any, client: Any, service: str, operation: str, what: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        name = f"{service}.{operation}"
        wait_s = self.pace.wait_s(service, operation, machines_in(operation, params))
        if wait_s:
            level = logging.WARNING if wait_s >= _TOLD_WAIT_S else logging.DEBUG
            logger.log(level, "%s is held back for %.1f s: AWS takes no more of it at once", operation, wait_s)
            self.sleep(wait_s)
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + 1
        region = str(client.meta.region_name)
        logger.debug("call service=%s operation=%s region=%s request=%s", service, operation, region, redact(params))
        began = time.monotonic()
        try:
            answer: dict[str, Any] = method(**params)
        except (ClientError, BotoCoreError) as error:
            logger.debug("failed operation=%s error=%s", operation, type(error).__name__)
            raise translate(error, service, operation, region=region, what=what) from error
        logger.debug(
            "answer operation=%s request_id=%s seconds=%.3f",
            operation, answer.get("ResponseMetadata", {}).get("RequestId", ""), time.monotonic() - began,
        )  # fmt: skip
        return answer

    def pages(
        self,
        service: str,
        operation: str,
        key: str,
        *,
        what: str = "",
        token: str = "NextToken",
        token_from: str = "",
        region: str = "",
        **params: Any,
    ) -> Iterator[Any]:
        """Yield the entries of all pages of a list, asking for a page when it is needed.

        Args:
            key: Where the entries are in an answer.
            token: The parameter that asks for the next page; ``token_from`` where its value is in the answer, if that
                has another name.
        Raises:
            ProviderError: And its kin, as ``call``; the list is incomplete then.
            UnexpectedOutput: The service gives one page again and again.
        """
        seen: set[str] = set()
        while True:
            answer = self.call(service, operation, what=what, region=region, **params)
            yield from answer.get(key) or ()
            after = answer.get(token_from or token)
            if not after:
                return
            # The same page for ever; a list that just ends there would look complete.
            if after in seen:
                raise UnexpectedOutput(f"{service} {operation}", f"the same page again, by token {after}")
            seen.add(after)
            params[token] = after

    def knows(self, service: str, operation: str, parameter: str) -> bool:
        """Say whether the library knows a parameter: nodes have the distribution's one, which may be years old."""
        shape = self.client(service).meta.service_model.operation_model(operation).input_shape
        return shape is not None and parameter in shape.members

    def account(self) -> str:
        """Return the number of the account; this tries the credentials, too."""
        return str(self.call("sts", "GetCallerIdentity")["Account"])


def redact(value: Any, key: str = "") -> Any:
    """Return a request as it may be logged: secrets as ``***``, long texts cut."""
    if key and key not in _NOT_SECRET and _SECRET.search(key):
        return "***"
    if isinstance(value, Mapping):
        return {name: redact(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, key) for item in value]
    return f"{value[:200]}…" if isinstance(value, str) and len(value) > 200 else value


def _tell(state: Any) -> None:
    error = state.outcome.exception()
    wait_s = state.next_action.sleep if state.next_action else 0.0
    level = logging.WARNING if state.attempt_number >= _TOLD_AT_TRY else logging.DEBUG
    logger.log(level, "%s; trying again in %.0f s (try %d)", error, wait_s, state.attempt_number + 1)
