"""The way in of an `AsyncQueue`: checks of new tasks, and their storage.

Written by tools/async_twins.py from the sync sources; do not edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase

from tidemill.asynchronous.lookups import (
    AsyncClock,
    AsyncDirectory,
    AsyncPayloadSchemas,
    require_mark,
)
from tidemill.asynchronous.store import (
    AsyncTasks,
    find_key_holders,
    has_transactions,
    insert_all,
    insert_in_order,
    insert_once,
    insert_task,
    majority_read,
    open_tasks,
    run_in_transaction,
)
from tidemill.control.task_types import Declarations
from tidemill.documents import decode
from tidemill.enqueue.documents import Accepted, Batch, Encoder, Plan, make_batch, make_plan, new_document
from tidemill.enqueue.inserts import (
    MAX_INSERT_ROUNDS,
)
from tidemill.enqueue.rules import (
    EnqueueRules,
    Submission,
    find_payload_problems,
    find_problems,
    find_time_problems,
    make_submission,
)
from tidemill.errors import DuplicateKeyError, InvalidRequestError, Problem, UnavailableError, UnknownTaskError
from tidemill.requests.tasks import MAX_TASKS, NewTask
from tidemill.store.connection import translate_errors


async def store_task(tasks: AsyncTasks, submission: Submission, *, now: datetime) -> Accepted:
    """Store the only request as a task, or return the task of an earlier equal request with the same key.

    Raises:
        DuplicateKeyError: The key was used with another request; nothing was stored.
        TakenIdError: A stored task has the id.
        UnavailableError: MongoDB did not confirm; with a key, a repeat is safe.
    """
    [request], [task_id], session = (submission.requests, submission.ids, submission.session)
    document = new_document(request, now=now, trace=submission.trace, task_id=task_id)
    if request.idempotency_key is None:
        await insert_task(tasks, document, session=session)
        return Accepted(id=task_id)
    stored = decode(await insert_once(tasks, document, session=session))
    if stored["_id"] == task_id:
        return Accepted(id=task_id)
    if stored.get("request_hash") != document["request_hash"]:
        raise DuplicateKeyError(stored["_id"])
    return Accepted(id=stored["_id"], status=str(stored.get("status")), is_new=False)


async def store_tasks(tasks: AsyncTasks, submission: Submission, *, now: datetime) -> list[Accepted]:
    """Store the requests in order. A request repeated under its key returns the task of the first one.

    Each thousand is stored in one transaction: all of them or none. A standalone server has no transactions: tasks
    are inserted in order, and an error half-way leaves the first ones stored. In a transaction of the submission's
    session, that transaction decides, and the driver's own errors are raised.

    Raises:
        DuplicateKeyError: Keys were used with other requests; its problems name the index of each. Nothing of its
            thousand was stored; the thousands before it are stored.
        TakenIdError: A stored task has one of the ids. A standalone server returns that task instead.
        UnavailableError: MongoDB did not confirm; with keys, a repeat is safe.
    """
    accepted: list[Accepted] = []
    encoder = Encoder(now=now, trace=submission.trace)
    for start in range(0, len(submission.requests), MAX_TASKS):
        batch = make_batch(submission.take(start, start + MAX_TASKS), encoder)
        accepted += await _store_batch(tasks, batch, session=submission.session)
    return accepted


async def find_by_keys(tasks: AsyncTasks, submission: Submission) -> list[Accepted] | None:
    """Return the tasks that the keys of all requests made before, or ``None`` if one is missing or differs."""
    requests, session = (submission.requests, submission.session)
    keys = [request.idempotency_key for request in requests if request.idempotency_key is not None]
    if len(keys) < len(requests):
        return None
    with translate_errors():
        if session is not None:
            by_key = await find_key_holders(tasks, set(keys), session=session)
        else:
            async with majority_read(tasks) as (lasting, own):
                by_key = await find_key_holders(lasting, set(keys), session=own)
    found = [by_key[key] for key in keys if key in by_key]
    if len(found) < len(keys) or any(
        (task.get("request_hash") != request.hash() for task, request in zip(found, requests, strict=True))
    ):
        return None
    return [Accepted(id=task["_id"], status=str(task.get("status")), is_new=False) for task in found]


async def _store_batch(tasks: AsyncTasks, batch: Batch, *, session: AsyncClientSession | None) -> list[Accepted]:
    if session is not None and session.in_transaction:
        return await _store_in_transaction(tasks, batch, session=session)
    if not await has_transactions(tasks.database):
        return await _store_in_order(tasks, batch)
    return await run_in_transaction(tasks.database, lambda own: _store_in_transaction(tasks, batch, session=own))


async def _store_in_transaction(tasks: AsyncTasks, batch: Batch, *, session: AsyncClientSession) -> list[Accepted]:
    plan = await _plan_batch(tasks, batch, session=session)
    await insert_all(tasks, plan.new, session=session)
    return plan.accepted


async def _store_in_order(tasks: AsyncTasks, batch: Batch) -> list[Accepted]:
    """Store *batch* task by task, on a standalone server.

    Raises:
        DuplicateKeyError: A key belongs to another request.
        UnavailableError: The first tasks may be stored, the rest is not.
    """
    for _ in range(MAX_INSERT_ROUNDS):
        with translate_errors():
            plan = await _plan_batch(tasks, batch)
        if await insert_in_order(tasks, plan.new) == len(plan.new):
            return plan.accepted
    raise UnavailableError("other callers use the same idempotency keys at the same time; repeat it")


async def _plan_batch(tasks: AsyncTasks, batch: Batch, *, session: AsyncClientSession | None = None) -> Plan:
    keys = {keyed[0] for keyed in batch.keyed if keyed is not None}
    return make_plan(batch, await find_key_holders(tasks, keys, session=session) if keys else {})


class AsyncEnqueueService:
    """Stores the tasks of `AsyncQueue` and of the HTTP API."""

    def __init__(self, db: AsyncDatabase[Any], *, clock: AsyncClock, directory: AsyncDirectory) -> None:
        self._db = db
        self._tasks = open_tasks(db)
        self._clock = clock
        self._directory = directory
        self._schemas = AsyncPayloadSchemas(db)
        self._is_marked = False

    async def now(self) -> datetime:
        """Return the current time of the database.

        Raises:
            UnavailableError: MongoDB has never answered and does not answer now.
        """
        return await self._clock.now()

    async def require_mark(self) -> None:
        """Refuse a database whose collections belong to another application; the check runs once."""
        if not self._is_marked:
            await require_mark(self._db)
            self._is_marked = True

    async def submit(
        self,
        requests: Sequence[NewTask],
        *,
        rules: EnqueueRules,
        payloads: Sequence[bytes] | None = None,
        trace: Mapping[str, str] | None = None,
        session: AsyncClientSession | None = None,
    ) -> list[Accepted]:
        """Store validated requests, in order, or return the tasks of an earlier equal submission.

        Args:
            requests: The requests, with keys as the caller chose them.
            rules: The rules of the way in.
            payloads: The requests' payloads as BSON, if the caller has them.
            trace: Fields to be stored with each task: ``source`` (the caller), ``correlation_id``, ``traceparent``.
            session: Session with the caller's transaction; only for tasks without an origin.

        Raises:
            InvalidRequestError: Requests are not allowed; nothing was stored.
            UnknownTaskError: A name is not registered, or not for HTTP; nothing was stored.
            DuplicateKeyError: Keys were used with other requests. Nothing of the same thousand was stored.
            UnavailableError: MongoDB did not confirm; a repeat is safe with keys, or with an origin.
        """
        await self.require_mark()
        return await self.store(make_submission(requests, rules=rules, payloads=payloads, trace=trace, session=session))

    async def check(self, requests: Sequence[NewTask], *, rules: EnqueueRules) -> None:
        """Refuse validated requests that `submit` would not store, except for their keys. Nothing is stored.

        Raises:
            InvalidRequestError: Requests are not allowed.
            UnknownTaskError: A name is not registered.
            UnavailableError: MongoDB did not answer.
        """
        await self._check(make_submission(requests, rules=rules))

    async def store(self, submission: Submission) -> list[Accepted]:
        """Store the requests, or return the tasks of earlier requests with the same keys if they are refused.

        A repeat may arrive after its ``expires_at``, or after its function was removed. Its sender still learns that
        the first request was accepted.
        """
        try:
            now = await self._check(submission)
        except InvalidRequestError:
            known = await find_by_keys(self._tasks, submission)
            if known is None:
                raise
            return known
        if submission.rules.is_single:
            return [await store_task(self._tasks, submission, now=now)]
        return await store_tasks(self._tasks, submission, now=now)

    async def _check(self, submission: Submission) -> datetime:
        """Refuse requests that their rules do not allow, and return the time of the check."""
        now = await self.now()
        known = await self._read_declarations(submission, now=now)
        problems = find_problems(submission, known=known, now=now)
        if problems:
            are_known = all((known.is_known(task.name, now=now) for task in submission.requests))
            raise (InvalidRequestError if are_known or not known.types else UnknownTaskError)(problems)
        problems = find_time_problems(submission, now=now) or await self._find_payload_problems(submission, known)
        if problems:
            raise InvalidRequestError(problems)
        return now

    async def _find_payload_problems(self, submission: Submission, known: Declarations) -> list[Problem]:
        if submission.rules.is_typed:
            return []
        versions = known.list_schema_versions({request.name for request in submission.requests})
        return find_payload_problems(submission, await self._schemas.read(versions)) if versions else []

    async def _read_declarations(self, submission: Submission, *, now: datetime) -> Declarations:
        names = {request.name for request in submission.requests}
        if submission.rules.is_http:
            queues = {request.queue for request in submission.requests}
            return await self._directory.read_declarations(names=names, queues=queues, for_http=True, now=now)
        known = await self._directory.read_declarations()
        return await self._directory.read_declarations(names=names, now=now) if known.types else known
