"""Operations on queues. A change answers with what it made of the queue's choices; sizes are another matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar

from tidemill import control
from tidemill.operations.desk import Desk
from tidemill.operations.requests import (
    AdaptiveChange,
    BudgetChange,
    QueueDeclare,
    QueueList,
    QueuePause,
    QueueResume,
    QueueSet,
    QueueStatusOf,
)
from tidemill.operations.warnings import of_nobody
from tidemill.policies import Adaptive, Budget, QueueOptions
from tidemill.status import QueueStatus, queue_status, queue_statuses

_T = TypeVar("_T", Adaptive, Budget)


def listing(request: QueueList, desk: Desk) -> dict[str, Any]:
    """Return how full the queues on a page are, and the cursor of the next."""
    page, behind = queue_statuses(desk.db, limit=request.limit, after=request.cursor, now=desk.clock.now())
    return {"queues": [_status(one) for one in page], "next": behind}


def status(request: QueueStatusOf, desk: Desk) -> dict[str, Any]:
    """Return the status of one queue."""
    return {"queue": _status(queue_status(desk.db, request.queue, now=desk.clock.now()))}


def declare(request: QueueDeclare, desk: Desk) -> dict[str, Any]:
    """Let HTTP enqueue into a queue."""
    return _chosen(request.queue, control.declare_queue(desk.db, request.queue, now=desk.clock.now()))


def pause(request: QueuePause, desk: Desk) -> dict[str, Any]:
    """Start no more tasks of a queue."""
    return _changed(request.queue, desk, lambda was: replace(was, paused=True))


def resume(request: QueueResume, desk: Desk) -> dict[str, Any]:
    """Start the tasks of a queue again."""
    return _changed(request.queue, desk, lambda was: replace(was, paused=False))


def change(request: QueueSet, desk: Desk) -> dict[str, Any]:
    """Change what a queue has chosen."""
    return _changed(request.queue, desk, lambda was: changed(was, request))


def changed(options: QueueOptions, request: QueueSet) -> QueueOptions:
    """Return *options* with what the request says of them."""
    given = request.model_fields_set
    own = {name: getattr(request, name) for name in ("selection", "retry_share", "max_in_flight_retries")}
    pressure = options.pressure
    if "adaptive" in given:
        pressure = replace(pressure, adaptive=_switched(Adaptive, pressure.adaptive, request.adaptive))
    if "budget" in given:
        pressure = replace(pressure, budget=_switched(Budget, pressure.budget, request.budget))
    return replace(options, pressure=pressure, **{name: value for name, value in own.items() if name in given})


def _switched(kind: type[_T], held: _T | None, wanted: AdaptiveChange | BudgetChange | None) -> _T | None:
    return None if wanted is None else replace(held or kind(), **wanted.model_dump(exclude_unset=True))


def _changed(queue: str, desk: Desk, choose: Callable[[QueueOptions], QueueOptions]) -> dict[str, Any]:
    # Of a queue that is not declared: storing them is refused, with the sentence that says so.
    was = control.options_of(desk.db, queue) or QueueOptions()
    options = control.change_queue(desk.db, queue, choose(was), was=was, now=desk.clock.now())
    return _chosen(queue, options) | {"warnings": of_nobody(desk)}


def _chosen(queue: str, options: QueueOptions) -> dict[str, Any]:
    return {"queue": {"queue": queue, "paused": options.paused, "options": asdict(options)}}


def _status(one: QueueStatus) -> dict[str, Any]:
    return one.document() | {"options": asdict(one.options)}
