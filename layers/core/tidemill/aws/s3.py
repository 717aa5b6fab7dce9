"""S3 for the export of dead letters.

boto3 is imported by the first put: the import takes 0.3 s, which a function without an export does not need.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final

from tidemill.dead_letters.export import THREADS
from tidemill.dead_letters.export_format import Blame, ExportError
from tidemill.errors import SettingsError
from tidemill.text import describe_missing_extra

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECT_SEC: Final = 1.0
READ_SEC: Final = 5.0

OBJECT_ERRORS: Final = frozenset(
    {"EntityTooLarge", "KeyTooLongError", "InvalidURI", "MaxMessageLengthExceeded", "413", "414"}
)
"""Codes of S3 that concern one object."""

BUCKET_ERRORS: Final = frozenset(
    {"NoSuchBucket", "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "500", "503"}
)
"""Codes of S3 that concern every object."""


class Bucket:
    """A bucket of S3. A put takes at most about 7 s if S3 is not reached or does not answer within *read_sec*."""

    def __init__(self, name: str, *, read_sec: float = READ_SEC) -> None:
        self._name = name
        self._read_sec = read_sec
        self._client: S3Client | None = None
        self._lock = threading.Lock()

    def put(self, key: str, body: bytes) -> None:
        """Store *body*, which is gzip, under *key*.

        The object has no content encoding, which some clients would undo: a reader gets the same ``.gz`` file.

        Raises:
            ExportError: S3 refused, or the outcome is unknown; the same put can be repeated.
            SettingsError: boto3 is missing.
        """
        client = self._connect()  # first: without boto3 there is no botocore either
        from botocore.exceptions import (  # noqa: PLC0415
            BotoCoreError,
            ClientError,
            ConnectionClosedError,
            ParamValidationError,
        )
        from botocore.parsers import ResponseParserError  # noqa: PLC0415

        try:
            try:
                self._put(client, key, body)
            except ConnectionClosedError:  # kept from an earlier run, perhaps through a freeze of the container
                self._put(client, key, body)
        except ClientError as error:
            code = _fold_code(str(error.response.get("Error", {}).get("Code")))
            raise ExportError(code, blame=_find_blame(code)) from None
        except (BotoCoreError, ResponseParserError) as error:
            is_ours = isinstance(error, ParamValidationError)
            raise ExportError(type(error).__name__, blame="either" if is_ours else "bucket") from None

    def _put(self, client: S3Client, key: str, body: bytes) -> None:
        client.put_object(Bucket=self._name, Key=key, Body=body, ContentType="application/gzip")

    def _connect(self) -> S3Client:
        with self._lock:
            if self._client is None:
                self._client = _make_client(self._read_sec)
            return self._client


def _make_client(read_sec: float) -> S3Client:
    try:
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise SettingsError(str(describe_missing_extra("the export", "boto3"))) from None
    short = Config(
        connect_timeout=CONNECT_SEC,
        read_timeout=read_sec,
        retries={"total_max_attempts": 1},  # the export repeats failed puts
        max_pool_connections=THREADS,
    )
    try:
        return boto3.client("s3", config=short)
    except (BotoCoreError, ValueError) as error:  # a ValueError for an invalid endpoint
        raise ExportError(type(error).__name__, blame="bucket") from None


def _find_blame(code: str) -> Blame:
    if code in OBJECT_ERRORS:
        return "object"
    return "bucket" if code in BUCKET_ERRORS else "either"


def _fold_code(code: str) -> str:
    return code if re.fullmatch("[A-Za-z0-9.]{1,64}", code) else "unknown"
