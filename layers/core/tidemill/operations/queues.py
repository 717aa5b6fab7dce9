"""Operations on queues. Each change answers with the queue as it then is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar

from tidemill import control
from tidemill.control import Directory
from tidemill.operations.desk import Desk
from tidemill.operations.requests import AdaptiveChange, BudgetChange, QueueSet
from tidemill.policies import Adaptive, Budget, QueueOptions
from tidemill.status import QueueStatus, queue_status, queue_statuses

_T = TypeVar("_T", Adaptive, Budget)


def listing(desk: Desk) -> dict[str, Any]:
    """Return the status of every queue that is known."""
    return {"queues": [_document(one) for one in queue_statuses(desk.db, now=desk.clock.now())]}


def status(queue: str, desk: Desk) -> dict[str, Any]:
    """Return the status of one queue."""
    return {"queue": _document(queue_status(desk.db, queue, now=desk.clock.now()))}


def declare(queue: str, desk: Desk) -> dict[str, Any]:
    """Let HTTP enqueue into *queue*."""
    control.declare_queue(desk.db, queue, now=desk.clock.now())
    return status(queue, desk)


def switch(queue: str, desk: Desk, *, paused: bool) -> dict[str, Any]:
    """Start no more tasks of *queue*, or do so again."""
    return _changed(queue, desk, lambda was: replace(was, paused=paused))


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
    control.change_queue(desk.db, queue, choose(was), was=was, now=desk.clock.now())
    return status(queue, desk) | {"warnings": _warnings(desk)}


def _warnings(desk: Desk) -> list[str]:
    if Directory(desk.db).has_types():
        return []
    return [f"no executor has ever registered its functions in {desk.db.name}: is MONGODB_DATABASE right?"]


def _document(one: QueueStatus) -> dict[str, Any]:
    return one.document() | {"options": asdict(one.options)}
