"""The queues that an execution serves: those of its options, or all that have pending tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.documents import is_text
from tidemill.executor.context import ExecutionContext
from tidemill.executor.scan_positions import dampen_cost
from tidemill.store import claims


class PendingQueues:
    """The queues with pending tasks. Not every claim reads them: a read steps over all claimed tasks."""

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._names: Sequence[str] = tuple(context.options.queues)
        self._next_read_at = -1e9
        self._cost = 0.0
        self._least_cost = 1e9

    @property
    def names(self) -> Sequence[str]:
        """The queues as of the last read."""
        return self._names

    @property
    def is_fixed(self) -> bool:
        """True if the options of the execution name the queues, so that no read is needed."""
        return bool(self._context.options.queues)

    def is_read_due(self, at: float) -> bool:
        """Return whether to read the queues: periodically, and for every claim while none is known and reads are cheap.

        Otherwise an idle executor would find the first task of a queue up to a second late.
        """
        cheap = max(self._context.timing.cheap_full_look_sec, 3 * self._least_cost)
        return at >= self._next_read_at or (not self._names and self._cost < cheap)

    def read(self) -> Iterable[Mapping[str, Any]]:
        """Read the queues, and return the first task of each, due or not.

        Raises:
            UnavailableError: MongoDB did not answer; the queues of the last read are kept.
        """
        timing, started = self._context.timing, self._context.monotonic()
        try:
            heads = [head for head in claims.list_heads(self._context.tasks) if is_text(head["queue"])]
            self._names = [head["queue"] for head in heads]
            cost = self._context.monotonic() - started
            self._cost = dampen_cost(cost, before=self._cost, timing=timing)
            self._least_cost = min(cost, self._least_cost)
        finally:
            pause = max(timing.full_look_interval_sec, timing.full_look_cost_ratio * self._cost)
            self._next_read_at = started + pause
        return heads
