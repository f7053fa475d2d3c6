"""A cluster's folder in S3: its slots, its nodes' files and keys, and what the nodes say of their birth.

Owns the names of the objects. The node's side of them is in ``lifecycle_scripts/cloud``. Everything is encrypted; what
holds a key of a node is so with the account's KMS key. Only root on a node can read it, by the role of its machine.

    cluster.json            slots: node name -> address and how the node is launched
    keys.json               all keys of the cluster; nodes have no right to read it
    nodes/<node>.json       files of one node, its keys included
    public.json             files that all users of a node may read
    instances/<id>.json     which node a machine is; a new machine waits for it
    births/<id>.<status>    record of a machine's lifecycle scripts, written by the machine
    software/<name>.tar.gz  our programs and scripts
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from hyperpod.adapters.aws.client import Aws
from hyperpod.errors import AlreadyExists, InvalidState, NotFound, ProviderError, UnexpectedOutput

CLUSTER: Final = "cluster.json"
KEYS: Final = "keys.json"
PUBLIC: Final = "public.json"
_PARALLEL: Final = 16
_DELETE_AT_ONCE: Final = 1000
_TRIES: Final = 10


@dataclass(frozen=True)
class Entry:
    """An object of the folder: its name below the folder, and when it was written."""

    name: str
    written_at: datetime


def default_prefix(cluster: str) -> str:
    """Return where a cluster's folder is within its bucket."""
    return f"hyperpod/{cluster}"


class ClusterFolder:
    """The folder of one cluster. Safe from any thread.

    Args:
        aws: The account.
        bucket: Name of the bucket.
        prefix: Folder within it, without slashes at its ends.
    """

    def __init__(self, aws: Aws, bucket: str, prefix: str) -> None:
        self.aws = aws
        self.bucket = bucket
        self.prefix = prefix.strip("/")

    @property
    def uri(self) -> str:
        """The folder as people write it."""
        return f"s3://{self.bucket}/{self.prefix}/"

    def read(self, name: str) -> bytes | None:
        """Return an object's content; None if it is not there."""
        found = self._read(name)
        return None if found is None else found[0]

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return an object's content as data; None if it is not there.

        Raises:
            UnexpectedOutput: It holds something else.
        """
        data = self.read(name)
        return None if data is None else self._parsed(name, data)

    def write(self, name: str, content: str | bytes, *, is_secret: bool = False, **conditions: str) -> None:
        """Write an object whole; ``is_secret`` encrypts it by KMS."""
        self.aws.call(
            "s3",
            "PutObject",
            what=self._what(name),
            repeat=not conditions,
            Bucket=self.bucket,
            Key=self._key(name),
            Body=content.encode() if isinstance(content, str) else content,
            ServerSideEncryption="aws:kms" if is_secret else "AES256",
            **conditions,
        )

    def write_json(self, name: str, value: Any, *, is_secret: bool = False) -> None:
        """Write data as JSON."""
        self.write(name, render(value), is_secret=is_secret)

    def write_all(self, files: Mapping[str, Any], *, is_secret: bool = False) -> None:
        """Write many objects of data in parallel."""
        with ThreadPoolExecutor(_PARALLEL) as pool:
            futures = [pool.submit(self.write_json, name, value, is_secret=is_secret) for name, value in files.items()]
        for future in futures:
            future.result()

    def update_json(
        self, name: str, change: Callable[[dict[str, Any]], dict[str, Any]], *, is_secret: bool = False
    ) -> dict[str, Any]:
        """Change an object of data, so that two who do it at once both see the other's change.

        Args:
            change: Gets what is there (empty if nothing is) and returns what should be; called again after a collision.
        Raises:
            InvalidState: It was changed by others all the time.
        """
        for _ in range(_TRIES):
            found = self._read(name)
            before = {} if found is None else self._parsed(name, found[0])
            after = change(json.loads(json.dumps(before)))
            if found is not None and after == before:
                return after
            condition = {"IfNoneMatch": "*"} if found is None else {"IfMatch": found[1]}
            try:
                self.write(name, render(after), is_secret=is_secret, **condition)
            except (AlreadyExists, InvalidState, ProviderError) as error:
                if not _is_collision(error):
                    raise
                continue
            return after
        raise InvalidState(f"change {self.uri}{name}", "changed by others all the time", hint="try again")

    def entries(self, below: str = "") -> Iterator[Entry]:
        """Yield the objects whose names begin so."""
        start = self._key(below)
        found = self.aws.pages(
            "s3",
            "ListObjectsV2",
            "Contents",
            what=self.uri,
            token="ContinuationToken",
            token_from="NextContinuationToken",
            Bucket=self.bucket,
            Prefix=start,
        )
        for item in found:
            yield Entry(str(item["Key"])[len(self.prefix) + 1 :], item["LastModified"])

    def delete(self, names: Iterable[str]) -> list[str]:
        """Delete objects and return those that could not be deleted, each with the reason."""
        keys = [self._key(name) for name in names]
        failed = []
        for start in range(0, len(keys), _DELETE_AT_ONCE):
            part = [{"Key": key} for key in keys[start : start + _DELETE_AT_ONCE]]
            answer = self.aws.call(
                "s3",
                "DeleteObjects",
                what=self.uri,
                repeat=True,
                Bucket=self.bucket,
                Delete={"Objects": part, "Quiet": True},
            )
            failed += [f"s3://{self.bucket}/{e.get('Key')}: {e.get('Message')}" for e in answer.get("Errors", ())]
        return failed

    def _read(self, name: str) -> tuple[bytes, str] | None:
        try:
            answer = self.aws.call("s3", "GetObject", what=self._what(name), Bucket=self.bucket, Key=self._key(name))
        except NotFound as error:
            if "NoSuchBucket" in str(error.__cause__):
                raise
            return None
        return bytes(answer["Body"].read()), str(answer["ETag"])

    def _parsed(self, name: str, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except ValueError as error:
            raise UnexpectedOutput(f"{self.uri}{name}", data[:80].decode(errors="replace")) from error
        if not isinstance(value, dict):
            raise UnexpectedOutput(f"{self.uri}{name}", str(value)[:80])
        return value

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def _what(self, name: str) -> str:
        return f"{self.uri}{name}"


def render(value: Any) -> str:
    """Return data as it is written."""
    return json.dumps(value, sort_keys=True) + "\n"


def _is_collision(error: BaseException) -> bool:
    code = str(getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", ""))
    return code in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
