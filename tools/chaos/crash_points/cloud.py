"""AWS as far as Tidemill calls it, through boto3's own clients: puts are kept, invokes answered, nothing is sent."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders

from tidemill.aws import lambda_functions
from tidemill.executor.scaling import Launcher

BUCKET: Final = "letters"
REFUSED: Final = "refused"
"""What has this in its key is too large for the bucket."""

EXECUTOR: Final = "arn:aws:lambda:us-east-1:123456789012:function:tidemill-execute"
_CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """What was stored in the bucket, by key, and how many executors were started."""

    objects: dict[str, bytes] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all of it."""
        self.objects.clear()
        self.started.clear()

    def launcher(self) -> Launcher:
        """Return what starts executors as a function in Lambda does."""
        return Launcher(lambda_functions.Starter(EXECUTOR, source="backlog").start)

    def take(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        """Answer in the place of S3 and Lambda."""
        path = unquote(urlsplit(request.url).path).lstrip("/")
        if request.method == "PUT" and REFUSED in path:
            return _answer(request, 400, b"<Error><Code>EntityTooLarge</Code></Error>")
        if request.method == "PUT":
            self.objects[path.removeprefix(f"{BUCKET}/")] = _bytes(request.body)
            return _answer(request, 200)
        self.started.append(path)
        return _answer(request, 202)


@contextmanager
def a_cloud() -> Iterator[Cloud]:
    """Open one for all clients that are made meanwhile."""
    cloud = Cloud()
    with pytest.MonkeyPatch.context() as environment, patch.object(boto3, "DEFAULT_SESSION", None):
        for name, value in _CREDENTIALS.items():
            environment.setenv(name, value)
        boto3.setup_default_session()
        session = boto3.DEFAULT_SESSION
        assert session is not None
        take: Any = cloud.take  # handlers may return something, too
        for operation in ("s3.PutObject", "lambda.Invoke"):
            session.events.register(f"before-send.{operation}", take)
        lambda_functions.lambda_client.cache_clear()
        try:
            yield cloud
        finally:
            lambda_functions.lambda_client.cache_clear()


def _answer(request: AWSPreparedRequest, status: int, body: bytes = b"") -> AWSResponse:
    return AWSResponse(request.url, status, HTTPHeaders(), _Raw(body))


def _bytes(body: Any) -> bytes:
    return bytes(body.read()) if hasattr(body, "read") else bytes(body)


class _Raw(io.BytesIO):
    """The connection of an answer."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        """Yield what there is."""
        yield from iter(self.read, b"")
