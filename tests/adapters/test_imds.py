"""The metadata service of EC2: tokens, absent paths, and where nobody must be asked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hyperpod.adapters.imds import Imds, endpoint_of
from hyperpod.errors import ProviderUnavailable


class Service:
    """Answers like EC2; ``requests`` records what came."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.requests: list[tuple[str, str]] = []
        self.token = "token-1"
        self.error: OSError | None = None

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        self.requests.append((method, path))
        if self.error is not None:
            raise self.error
        if path == "/latest/api/token":
            return (200, self.token) if method == "PUT" else (405, "")
        if headers.get("X-aws-ec2-metadata-token") != self.token:
            return 401, ""
        text = self.texts.get(path.removeprefix("/latest/meta-data/"))
        return (404, "") if text is None else (200, text)


def make(service: Service, now: list[float] | None = None) -> Imds:
    clock = now or [0.0]
    return Imds("http://10.0.0.1:1338", request=service, monotonic=lambda: clock[0])


def test_one_token_serves_many_questions() -> None:
    service = Service({"instance-id": "i-1"})
    imds = make(service)

    assert [imds.read("instance-id"), imds.read("spot/instance-action")] == ["i-1", None]
    assert [method for method, _ in service.requests] == ["PUT", "GET", "GET"]


def test_a_token_that_has_ended_is_renewed_once() -> None:
    service = Service({"instance-id": "i-1"})
    imds = make(service)
    imds.read("instance-id")
    service.token = "token-2"

    assert imds.read("instance-id") == "i-1"


def test_an_old_token_is_renewed_before_it_ends() -> None:
    service, now = Service({}), [0.0]
    imds = make(service, now)
    imds.read("a")
    now[0] = 21_600.0
    imds.read("a")

    assert [method for method, _ in service.requests].count("PUT") == 2


def test_a_silent_service_is_one_clear_error() -> None:
    service = Service({})
    service.error = TimeoutError("timed out")

    with pytest.raises(ProviderUnavailable, match=r"1338 does not answer: timed out"):
        make(service).read("instance-id")


@pytest.mark.parametrize(
    ("configured", "environment", "expected"),
    [
        ("", {}, ""),
        ("http://a", {}, "http://a"),
        ("http://a", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://b"}, "http://b"),
        ("", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://b"}, "http://b"),
        ("http://a", {"AWS_EC2_METADATA_DISABLED": "true", "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://b"}, ""),
    ],
)
def test_nobody_is_asked_that_was_not_named(configured: str, environment: dict[str, str], expected: str) -> None:
    assert endpoint_of(configured, environment) == expected
