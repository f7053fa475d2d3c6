"""The metadata service (version 2 only), answered by who asks: the source address of the request names the machine."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

ACCOUNT = "123456789012"


@dataclass(frozen=True)
class Identity:
    """What the service tells a machine of itself."""

    instance_id: str
    address: str
    instance_type: str
    image_id: str
    zone: str
    role: str
    spot_action: str = ""
    events: tuple[dict[str, Any], ...] = ()

    @property
    def access_key(self) -> str:
        """The access key of the machine's role: each machine has its own, so that its calls are known."""
        return f"ASIAEXAMPLE{self.instance_id[-9:].upper()}"

    def documents(self) -> dict[str, str]:
        """Return every path below ``/latest/`` and its text."""
        region = self.zone[:-1]
        now = datetime.now(UTC)
        credentials = {
            "Code": "Success",
            "LastUpdated": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "Type": "AWS-HMAC",
            "AccessKeyId": self.access_key,
            "SecretAccessKey": "example",
            "Token": f"example-{self.role}",
            "Expiration": f"{now + timedelta(hours=6):%Y-%m-%dT%H:%M:%SZ}",
        }
        document = {
            "accountId": ACCOUNT,
            "availabilityZone": self.zone,
            "imageId": self.image_id,
            "instanceId": self.instance_id,
            "instanceType": self.instance_type,
            "privateIp": self.address,
            "region": region,
        }
        host = f"ip-{self.address.replace('.', '-')}"
        found = {
            "meta-data/instance-id": self.instance_id,
            "meta-data/instance-type": self.instance_type,
            "meta-data/ami-id": self.image_id,
            "meta-data/local-ipv4": self.address,
            "meta-data/local-hostname": f"{host}.{region}.compute.internal",
            "meta-data/placement/availability-zone": self.zone,
            "meta-data/placement/region": region,
            "meta-data/events/maintenance/scheduled": json.dumps(list(self.events)),
            "meta-data/iam/security-credentials/": self.role,
            f"meta-data/iam/security-credentials/{self.role}": json.dumps(credentials),
            "dynamic/instance-identity/document": json.dumps(document),
        }
        if self.spot_action:
            found["meta-data/spot/instance-action"] = self.spot_action
        return found


@dataclass
class Metadata:
    """The WSGI application. ``refused`` counts requests without a session token, which version 1 would answer."""

    identity_of: Callable[[str], Identity | None]
    refused: int = 0
    _tokens: set[str] = field(default_factory=set)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        status, text = self._answer(environ)
        data = text.encode()
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(data)))])
        return [data]

    def _answer(self, environ: dict[str, Any]) -> tuple[str, str]:
        path = str(environ["PATH_INFO"])
        identity = self.identity_of(str(environ["REMOTE_ADDR"]))
        if identity is None:
            return "404 Not Found", ""
        if environ["REQUEST_METHOD"] == "PUT":
            if path != "/latest/api/token" or not environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS"):
                return "400 Bad Request", ""
            token = f"{identity.instance_id}.{secrets.token_urlsafe(24)}"
            self._tokens.add(token)
            return "200 OK", token
        token = str(environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN") or "")
        if token not in self._tokens or not token.startswith(f"{identity.instance_id}."):
            self.refused += 1
            return "401 Unauthorized", ""
        text = identity.documents().get(path.removeprefix("/latest/"))
        return ("404 Not Found", "") if text is None else ("200 OK", text)
