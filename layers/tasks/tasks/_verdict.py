"""Outcome of a delivery, from the reply to a webhook or its absence. Messages name the host, never the URL."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPException
from ssl import SSLError

from tasks._exchange import Reply
from tidemill import Fail, Retry

MAX_RETRY_AFTER = timedelta(hours=24)
_MAX_DIGITS = 9  # enough for more seconds than the cap, and few enough for int()


def check_reply(host: str, reply: Reply, *, now: datetime) -> None:
    """Return if *reply* is a success.

    Raises:
        Retry: The status is 5xx or 429. The wait is at least the one of ``Retry-After``.
        Fail: The status is any other.
    """
    message, code = f"{host} answered {reply.status}", f"http_{reply.status}"
    match reply.status // 100, reply.status:
        case 2, _:
            return
        case (5, _) | (_, HTTPStatus.TOO_MANY_REQUESTS):
            raise Retry(message, after=retry_after(reply.retry_after, now=now), code=code)
        case _:
            raise Fail(message, code=code)


@contextmanager
def retry_without_reply(host: str) -> Iterator[None]:
    """Turn errors of the connection to *host* into a `Retry`.

    The cause is dropped, since it may quote text of the server.
    """
    try:
        yield
    except TimeoutError:
        raise Retry(f"{host} did not answer in time", code="timeout") from None
    except socket.gaierror:
        raise Retry(f"{host} was not found by name", code="dns") from None
    except SSLError as error:
        raise Retry(f"{host} offers no secure connection ({type(error).__name__})", code="tls") from None
    except (OSError, HTTPException) as error:
        raise Retry(f"{host} gave no answer ({type(error).__name__})", code="connection") from None


def retry_after(value: str | None, *, now: datetime) -> timedelta | None:
    """Parse a ``Retry-After`` header, in seconds or as a date; at most 24 hours.

    Return ``None``, which leaves the wait to the retry policy, if the header is absent, invalid, or asks for no wait:
    a server that always answers "now" must not cause a hot loop.
    """
    text = (value or "").strip()
    wait = _parse_seconds(text) if text.isdecimal() and text.isascii() else _parse_date(text, now=now)
    return min(wait, MAX_RETRY_AFTER) if wait > timedelta(0) else None


def _parse_seconds(digits: str) -> timedelta:
    return timedelta(seconds=int(digits)) if len(digits) <= _MAX_DIGITS else MAX_RETRY_AFTER


def _parse_date(date: str, *, now: datetime) -> timedelta:
    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return timedelta(0)
    return (then if then.tzinfo else then.replace(tzinfo=UTC)) - now
