"""The contract server: HyperPod's operations by their model, in this process or on a loopback port.

Every request and every answer is held against botocore's model. What is not SageMaker's cluster operations goes to
moto. ``session`` is a boto3 session that is answered without any socket; ``serve`` listens for programs, by
AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from tests.aws_server.hyperpod_state import HyperPodState, ServiceError
from tests.aws_server.shapes import complaints, operation

_TARGET = "x-amz-target"


@dataclass
class ContractServer:
    """Answers requests. ``planned``: errors given before the real answers, by operation, each once."""

    state: HyperPodState = field(default_factory=HyperPodState)
    planned: dict[str, list[ServiceError]] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    """Operations whose next answer is lost after they were done."""

    def plan(self, name: str, code: str, message: str = "planned", times: int = 1, status: int = 400) -> None:
        """Give errors to the next calls of an operation."""
        self.planned.setdefault(name, []).extend(ServiceError(code, message, status) for _ in range(times))

    def made(self, name: str) -> list[dict[str, Any]]:
        """Return the requests of an operation."""
        return [request for operation_name, request in self.calls if operation_name == name]

    def answer(self, name: str, body: bytes) -> tuple[int, bytes]:
        """Answer a request in the service's own protocol (JSON 1.1)."""
        try:
            return 200, json.dumps(self._answer(name, json.loads(body or b"{}")), default=_plain).encode()
        except ServiceError as error:
            text = json.dumps({"__type": error.code, "message": error.message, "Message": error.message})
            return error.status, text.encode()

    def _answer(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        model = operation(name)
        if model is None:
            raise ServiceError("UnknownOperationException", f"{name} is unknown")
        self.calls.append((name, request))
        if self.planned.get(name):
            raise self.planned[name].pop(0)
        wrong = complaints(request, model.input_shape)
        if wrong:
            raise ServiceError("ValidationException", f"{len(wrong)} validation error detected: {'; '.join(wrong)}")
        handler = getattr(self.state, name, None)
        if handler is None:
            raise ServiceError("UnknownOperationException", f"{name} is not kept here")
        reply: dict[str, Any] = handler(request)
        wrong = complaints(reply, model.output_shape)
        assert not wrong, f"the contract server's own answer to {name} is wrong: {wrong}"
        if name in self.cut:
            self.cut.discard(name)
            raise ServiceError("InternalFailure", "the answer was lost", 500)
        return reply

    def session(self) -> boto3.session.Session:
        """Return a session whose SageMaker calls are answered in this process.

        It is one for all tests: reading the services' models anew costs more than the tests themselves. A client keeps
        the handlers that were there when it was made.
        """
        session = _session()

        def intercept(request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
            target = request.headers.get("X-Amz-Target", "")
            name = (target.decode() if isinstance(target, bytes) else str(target)).rpartition(".")[2]
            body = request.body if isinstance(request.body, bytes) else str(request.body or "").encode()
            status, reply = self.answer(name, body)
            headers = {"Content-Type": "application/x-amz-json-1.1", "x-amzn-RequestId": "0" * 8}
            return AWSResponse(request.url, status, headers, _Raw(reply))  # type: ignore[arg-type]

        session.events.unregister("before-send.sagemaker", unique_id="contract")
        session.events.register("before-send.sagemaker", intercept, unique_id="contract")
        return session

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Listen on a loopback port, with moto behind for all other services; yields the endpoint's address."""
        from moto.server import DomainDispatcherApplication, create_backend_app

        moto = DomainDispatcherApplication(create_backend_app)

        def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            service, _, name = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")
            known = service == "SageMaker" and hasattr(self.state, name)
            if not known:
                return moto(environ, start_response)  # type: ignore[no-any-return]
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, reply = self.answer(name, body)
            start_response(f"{status} X", [("Content-Type", "application/x-amz-json-1.1")])
            return [reply]

        with make_server("127.0.0.1", 0, app, handler_class=_Quiet) as httpd:
            thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{httpd.server_port}"
            finally:
                httpd.shutdown()
                thread.join(5)


@cache
def _session() -> boto3.session.Session:
    return boto3.session.Session("AKIAEXAMPLEEXAMPLE00", "example-secret", "example-token", region_name="us-west-2")


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Raw(io.BytesIO):
    def stream(self, **_: Any) -> Iterator[bytes]:
        """Give the body as urllib3 does."""
        yield self.read()


def _plain(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else str(value)
