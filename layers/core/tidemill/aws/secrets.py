"""MongoDB's URI in AWS Secrets Manager, and a second try after a change of the password.

boto3 is imported by the first read: the import takes 0.3 s, which a deployment with a plain URI does not need.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from tidemill.dead_letters.archive import ArchiveError
from tidemill.errors import CredentialsError, SettingsError, UnavailableError

_T = TypeVar("_T")

REREAD_INTERVAL_SEC: Final = 10.0
"""Minimum time between two reads of a suspect secret."""


class Secret:
    """MongoDB's URI in a secret: the text of the secret, or the field ``uri`` of its JSON.

    A read raises `SettingsError` if the secret cannot be read or has another form. The error shows none of its text.
    """

    def __init__(self, arn: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._arn = arn
        self._monotonic = monotonic
        self._uri: str | None = None
        self._read_at = -REREAD_INTERVAL_SEC
        self._is_suspect = False

    def read_uri(self) -> str:
        """Return the URI; read the secret on the first call."""
        if self._uri is None:
            self._uri = self._read(attempts=2)
        return self._uri

    def reread(self) -> bool:
        """Read the secret again; return true if it has another URI than before."""
        before, self._uri = self._uri, self._read(attempts=1)
        return self._uri != before

    def forget(self) -> None:
        """Drop a URI that cannot be used: the next call of `read_uri` reads the secret."""
        self._uri = None

    def mark_suspect(self) -> None:
        """Note that MongoDB was not reached with this URI."""
        self._is_suspect = True

    def is_suspect(self) -> bool:
        """Return true if the URI may be out of date and the last read is `REREAD_INTERVAL_SEC` ago."""
        return self._is_suspect and self._monotonic() - self._read_at >= REREAD_INTERVAL_SEC

    def _read(self, *, attempts: int) -> str:
        self._is_suspect = False
        self._read_at = self._monotonic()
        return _parse_uri(_fetch_secret(self._arn, attempts=attempts))


def with_current_secret(work: Callable[[], _T], *, secret: Secret | None, reset: Callable[[], object]) -> _T:
    """Return the result of *work*; call it again if MongoDB refuses credentials that *secret* no longer has.

    Call *reset*, which closes the clients, after each refusal. The first call may leave the same traces as a failed
    invocation. A change of the password does not affect open connections, so mostly the first command of *work* fails.
    Other errors that a wrong URI can cause mark the secret: the next call reads it again first.

    Raises:
        CredentialsError: The secret is unchanged, or its new credentials are refused too.
        SettingsError: The secret cannot be read or used.
        TidemillError: *work* failed.
    """
    if secret is not None:
        _reread_suspect(secret, reset)
    try:
        return _call_and_mark(work, secret)
    except CredentialsError:
        reset()  # the driver finds no server for 10 s after a refusal
        if secret is None or not secret.reread():
            raise
    try:
        return _call_and_mark(work, secret)
    except CredentialsError:
        reset()
        raise


def _reread_suspect(secret: Secret, reset: Callable[[], object]) -> None:
    with suppress(SettingsError):  # the known URI may be right although the secret cannot be read now
        if secret.is_suspect() and secret.reread():
            reset()


def _call_and_mark(work: Callable[[], _T], secret: Secret | None) -> _T:
    """Return the result of *work*; mark *secret* on errors that a wrong URI can cause."""
    try:
        return work()
    except SettingsError:
        if secret is not None:
            secret.forget()
        raise
    except (UnavailableError, ArchiveError):
        if secret is not None:
            secret.mark_suspect()
        raise


def _parse_uri(text: str) -> str:
    try:
        stored = json.loads(text)
    except ValueError:
        return text.strip()
    if isinstance(stored, dict) and isinstance(stored.get("uri"), str):
        return str(stored["uri"]).strip()
    raise SettingsError("the secret in MONGODB_SECRET_ARN must be a URI, or JSON with a field uri")


def _fetch_secret(arn: str, *, attempts: int) -> str:
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    short = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": attempts})
    try:
        return str(boto3.client("secretsmanager", config=short).get_secret_value(SecretId=arn)["SecretString"])
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code")
        hint = ": may this role read it, and decrypt it with its KMS key?" if code == "AccessDeniedException" else ""
        raise SettingsError(f"the secret in MONGODB_SECRET_ARN cannot be read ({code}){hint}") from None
    except (BotoCoreError, KeyError) as error:
        raise SettingsError(f"the secret in MONGODB_SECRET_ARN cannot be read ({type(error).__name__})") from None
