"""How one queue is served: what the event says, then the queue, then the deployment."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.model import LANES
from tidemill.policies import QueueOptions, Selection
from tidemill.selection import Lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The choices that hold for one queue. ``max_in_flight_retries`` of ``None`` is no limit."""

    selection: Selection = "weighted"
    retry_share: float = 0.2
    lanes: Lanes = LANES
    paused: bool = False
    max_in_flight_retries: int | None = None


def serving(
    options: QueueOptions, *, asked: Selection | None, lanes: Lanes, selection: Selection, retry_share: float
) -> Serving:
    """Return the choices for a queue with *options*; *asked* is the event's, the last two are the deployment's."""
    return Serving(
        selection=asked or options.selection or selection,
        retry_share=retry_share if options.retry_share is None else options.retry_share,
        lanes=lanes,
        paused=options.paused,
        max_in_flight_retries=options.max_in_flight_retries,
    )
