"""One task: a single write, keyed or not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pymongo.client_session import ClientSession

from tidemill.documents import decode
from tidemill.enqueueing.values import Accepted, new_document, refuse_expired
from tidemill.errors import DuplicateKeyError
from tidemill.requests import NewTask
from tidemill.store import Tasks, intake


def accept(
    tasks: Tasks,
    request: NewTask,
    *,
    now: datetime,
    trace: Mapping[str, str] | None = None,
    session: ClientSession | None = None,
) -> Accepted:
    """Store *request* as a task, or find the one that its key has made of it before.

    Raises:
        InvalidRequestError: It would expire before it starts.
        DuplicateKeyError: Its key was used with another request; nothing was stored.
        UnavailableError: MongoDB did not confirm; with a key, a repeat is safe.
    """
    refuse_expired([request], now=now, is_one=True)
    document = new_document(request, now=now, trace=trace)
    if request.idempotency_key is None:
        intake.add(tasks, document, session=session)
        return Accepted(id=document["_id"])
    stored = decode(intake.add_once(tasks, document, session=session))
    if stored["_id"] == document["_id"]:
        return Accepted(id=document["_id"])
    if stored.get("request_hash") != document["request_hash"]:
        raise DuplicateKeyError(stored["_id"])
    return Accepted(id=stored["_id"], status=str(stored.get("status")), is_new=False)
