"""S3, as far as the export of dead letters needs it.

boto3 is imported by the first put: that costs 0.3 s, which a function that exports nothing need not pay.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final

from tidemill.errors import SettingsError
from tidemill.export import Blame, ExportError
from tidemill.export.run import THREADS

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECT_SEC: Final = 1.0
READ_SEC: Final = 5.0

OF_OBJECT: Final = frozenset(
    {"EntityTooLarge", "KeyTooLongError", "InvalidURI", "MaxMessageLengthExceeded", "413", "414"}
)
"""What S3 says where it refuses one object for what it is."""

OF_BUCKET: Final = frozenset(
    {"NoSuchBucket", "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "500", "503"}
)
"""What it says where it takes none, whatever it is."""


class Bucket:
    """A bucket of S3. A put takes some 7 s at most where S3 is away or says nothing."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._client: S3Client | None = None
        self._lock = threading.Lock()

    def put(self, key: str, body: bytes) -> None:
        """Store *body*, which is gzip, under *key*.

        It says nothing of an encoding, which some clients would undo: what is read is what was put, a ``.gz`` file.

        Raises:
            ExportError: S3 did not take it, or nothing is known of it; the same put can be repeated.
            SettingsError: boto3 is missing.
        """
        client = self._connected()  # first: without boto3 there is no botocore either
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
            except ConnectionClosedError:  # it was kept since an earlier run, perhaps through a freeze
                self._put(client, key, body)
        except ClientError as error:
            code = _word(str(error.response.get("Error", {}).get("Code")))
            raise ExportError(code, blame=_blame(code)) from None
        except (BotoCoreError, ResponseParserError) as error:
            is_ours = isinstance(error, ParamValidationError)
            raise ExportError(type(error).__name__, blame="either" if is_ours else "bucket") from None

    def _put(self, client: S3Client, key: str, body: bytes) -> None:
        client.put_object(Bucket=self._name, Key=key, Body=body, ContentType="application/gzip")

    def _connected(self) -> S3Client:
        with self._lock:
            if self._client is None:
                self._client = _client()
            return self._client


def _client() -> S3Client:
    try:
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise SettingsError("the export needs the package boto3: pip install boto3") from None
    short = Config(
        connect_timeout=CONNECT_SEC,
        read_timeout=READ_SEC,
        retries={"total_max_attempts": 1},  # the export comes back to what failed
        max_pool_connections=THREADS,
    )
    try:
        return boto3.client("s3", config=short)
    except (BotoCoreError, ValueError) as error:  # a ValueError where an endpoint is no URL
        raise ExportError(type(error).__name__, blame="bucket") from None


def _blame(code: str) -> Blame:
    if code in OF_OBJECT:
        return "object"
    return "bucket" if code in OF_BUCKET else "either"


def _word(code: str) -> str:
    return code if re.fullmatch("[A-Za-z0-9.]{1,64}", code) else "unknown"
