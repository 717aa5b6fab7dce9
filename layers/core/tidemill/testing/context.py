"""The second argument of a Lambda handler, for tests that call one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta


class FakeContext:
    """A Lambda context whose time runs out, as far as handlers look at one.

    What is left of the invocation counts down on the monotonic clock and stops at zero, as AWS has it; `move` lets time
    pass without waiting. On a clock that stands still it passes in no other way::

        lambda_handler(event, FakeContext(timedelta(seconds=10)))        # runs out while the handler works

        context = FakeContext(timedelta(seconds=60), monotonic=lambda: 0.0)
        context.move(timedelta(seconds=50))
        assert context.get_remaining_time_in_millis() == 10_000          # exactly, until it is moved again

    Args:
        remaining: What is left of the invocation at first.
        request_id: The id of the invocation, under which an executor holds its leases. One of its own without it.
        monotonic: The clock that it counts down on, in seconds.
    """

    function_name = "tidemill-test"
    function_version = "$LATEST"
    invoked_function_arn = "arn:aws:lambda:eu-central-1:123456789012:function:tidemill-test"
    memory_limit_in_mb = "512"
    log_group_name = "/aws/lambda/tidemill-test"
    log_stream_name = "2026/07/01/[$LATEST]0123456789abcdef0123456789abcdef"

    def __init__(
        self,
        remaining: timedelta = timedelta(seconds=120),
        *,
        request_id: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.aws_request_id = request_id or str(uuid.uuid4())
        self._monotonic = monotonic
        self._ends_at = monotonic() + remaining.total_seconds()

    def get_remaining_time_in_millis(self) -> int:
        """Return what is left of the invocation, in whole milliseconds."""
        return max(0, int((self._ends_at - self._monotonic()) * 1000))

    def move(self, span: timedelta) -> None:
        """Let *span* of the invocation pass at once."""
        self._ends_at -= span.total_seconds()
