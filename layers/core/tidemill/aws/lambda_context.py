"""Facts of one Lambda invocation: its owner, its end, a possible repeat; and their values outside of Lambda."""

from __future__ import annotations

import os
import re
import time
from datetime import timedelta
from typing import Final, Protocol

FIRST_TRY_SEC: Final = 30.0
"""Age of a trace above which a repeat is possible: Lambda repeats an asynchronous invocation after a minute."""

LOCAL_LIFETIME: Final = timedelta(seconds=120)
"""Assumed lifetime of a call without a Lambda context."""

_TRACE_START: Final = re.compile(r"\bRoot=1-(?P<second>[0-9a-f]{8})-")


class Context(Protocol):
    """The used part of the Lambda context."""

    @property
    def aws_request_id(self) -> str:
        """The id of the invocation."""

    @property
    def invoked_function_arn(self) -> str:
        """The invoked function, perhaps with a qualifier."""

    def get_remaining_time_in_millis(self) -> int:
        """Return the time left of the invocation."""


def is_in_lambda() -> bool:
    """Return true if functions can be invoked: this process is a function, and not one that SAM runs locally."""
    return "AWS_LAMBDA_FUNCTION_NAME" in os.environ and "AWS_SAM_LOCAL" not in os.environ


def get_owner(context: Context | None) -> str:
    """Return the owner of leases: the request id, by which the platform reports a failed invocation."""
    return context.aws_request_id if context is not None else f"local-{os.getpid()}"


def get_remaining(context: Context | None) -> timedelta:
    """Return the time left of this invocation."""
    return LOCAL_LIFETIME if context is None else timedelta(milliseconds=context.get_remaining_time_in_millis())


def get_deadline(context: Context | None, *, margin: timedelta) -> float:
    """Return the time *margin* before the end of the invocation, on the monotonic clock."""
    return time.monotonic() + (get_remaining(context) - margin).total_seconds()


def may_be_repeat() -> bool:
    """Return true if Lambda may have tried this invocation before: its trace is old, or has no time.

    All tries of an invocation have one trace. Its id holds the second in which it began.
    """
    start = _TRACE_START.search(os.environ.get("_X_AMZN_TRACE_ID", ""))
    return start is None or time.time() - int(start["second"], 16) > FIRST_TRY_SEC
