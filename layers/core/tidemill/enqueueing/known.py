"""What is stored already under the keys of requests, whatever would be refused of them today."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pymongo.client_session import ClientSession

from tidemill.enqueueing.values import Accepted
from tidemill.errors import InvalidRequestError
from tidemill.requests import NewTask
from tidemill.store import Tasks, intake, translated
from tidemill.store.confirming import confirmed


def unless_known(
    tasks: Tasks,
    requests: Sequence[NewTask],
    store: Callable[[], list[Accepted]],
    *,
    session: ClientSession | None = None,
) -> list[Accepted]:
    """Return what *store* does; where it refuses *requests* of which each has made a task before, those tasks.

    A repeat may come when what it asks for has expired, or its function is gone: its sender is to learn that the
    first one was taken in.

    Raises:
        InvalidRequestError: What *store* refuses, and one of them at least is not known.
    """
    try:
        return store()
    except InvalidRequestError:
        known = _known(tasks, requests, session=session)
        if known is None:
            raise
        return known


def _known(tasks: Tasks, requests: Sequence[NewTask], *, session: ClientSession | None) -> list[Accepted] | None:
    keys = [one.idempotency_key for one in requests if one.idempotency_key is not None]
    if len(keys) < len(requests):
        return None
    with translated():
        held = _held(tasks, set(keys), session=session)
    holders = [held.get(key) for key in keys]
    if any(one is None or one.get("request_hash") != own.hash() for one, own in zip(holders, requests, strict=True)):
        return None
    return [Accepted(id=one["_id"], status=str(one.get("status")), is_new=False) for one in holders if one is not None]


def _held(tasks: Tasks, keys: Collection[str], *, session: ClientSession | None) -> dict[str, dict[str, Any]]:
    if session is not None:
        return intake.held(tasks, keys, session=session)
    with confirmed(tasks) as (lasting, own):
        return intake.held(lasting, keys, session=own)
