"""`AsyncQueue` and `AsyncHandle`, the public API for event loops.

Written by tools/async_twins.py from the sync sources; do not edit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Unpack, overload

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase

from tidemill.asynchronous.enqueue import AsyncEnqueueService
from tidemill.asynchronous.lookups import (
    AsyncClock,
    AsyncDirectory,
    AsyncServerClock,
    cancel,
    find_latest,
    get,
    is_unfinished,
)
from tidemill.asynchronous.store import (
    open_tasks,
    with_majority,
    with_prefix,
)
from tidemill.client import _MANY, _MANY_TYPED, _SINGLE, _SINGLE_TYPED, AsyncFunction, Function, P, R
from tidemill.client_requests import (
    ManyOptions,
    has_new_due,
    make_request,
    make_requests,
    make_waker,
    require_database,
    require_seconds,
)
from tidemill.clock import read_monotonic
from tidemill.documents import DEAD_LETTERS
from tidemill.enqueue.rules import EnqueueRules
from tidemill.errors import (
    InvalidRequestError,
    Problem,
    SettingsError,
    TaskNotFoundError,
    WaitTimeoutError,
)
from tidemill.handles import FIRST_PAUSE_SEC, LAST_PAUSE_SEC, PAUSE_FACTOR, R_co, has_ended, read_end
from tidemill.model import Malformed, RetryPolicy, Task, TaskId
from tidemill.references import Reference, find_reference
from tidemill.requests.tasks import NewTask, check_tasks
from tidemill.text import add_article


class AsyncOptions(ManyOptions, total=False):
    """Options of a task; `AsyncQueue.enqueue` says what they mean."""

    idempotency_key: str | None
    session: AsyncClientSession | None


@dataclass(frozen=True, slots=True)
class AsyncHandle(Generic[R_co]):
    """An enqueued task, whose result has the type of its function.

    Attributes:
        id: The id of the task; keep it to find the task later.
    """

    id: TaskId
    _queue: AsyncQueue = field(repr=False, compare=False)
    _reference: Reference = field(repr=False, compare=False)

    async def wait(self, timeout: timedelta) -> R_co:
        """Wait for the end of the task and return its result.

        Raises:
            TaskFailedError: The task failed for good.
            TaskCancelledError: The task was cancelled.
            WaitTimeoutError: The task did not end in time. It is a ``TimeoutError``.
            ResultError: The result does not fit the type of the function.
            TaskNotFoundError: The task does not exist, or its retention is over.
            UnavailableError: MongoDB did not answer.
        """
        stored = await self._queue.wait(self.id, timeout)
        result: R_co = self._reference.read_result(stored, self.id)
        return result

    async def status(self) -> str:
        """Return the status of the task: ``pending``, ``processing``, ``done``, ``failed`` or ``cancelled``.

        Raises:
            TaskNotFoundError: The task does not exist, or its retention is over.
        """
        return (await self._queue.get(self.id)).status or "malformed"

    async def cancel(self, *, force: bool = False) -> Task | Malformed:
        """Cancel the task, as `AsyncQueue.cancel` does."""
        return await self._queue.cancel(self.id, force=force)


class AsyncQueue:
    """The tasks of one database. Cheap to make. It belongs to one event loop: that of its client.

    Writes are acknowledged by a majority and reads go to the primary, also if the client has other options.

    Args:
        db: Database of the tasks; it may be the application's own.
        prefix: Prefix of the names of all collections, as ``TIDEMILL_PREFIX`` is for functions and commands.
        wake: Name or ARN of the execute function. Then an enqueue of a due task wakes an executor, at most once a
            second. In a transaction of your own, call `wake` after the commit.

    Raises:
        SettingsError: The prefix is not allowed in the name of a collection.
    """

    def __init__(
        self,
        db: AsyncDatabase[Any],
        *,
        prefix: str = "",
        wake: str | None = None,
        clock: AsyncClock | None = None,
        service: AsyncEnqueueService | None = None,
    ) -> None:
        require_database(db, AsyncDatabase, queue="AsyncQueue")
        self._waker = None if wake is None else make_waker(wake)
        self._plain_db = with_majority(db)
        self._db = with_prefix(self._plain_db, prefix)
        self._prefix = prefix
        self._tasks = open_tasks(self._db)
        self._dead = open_tasks(self._db, DEAD_LETTERS)
        self._service = service or AsyncEnqueueService(
            self._db, clock=clock or AsyncServerClock(db), directory=AsyncDirectory(self._db)
        )

    @property
    def database(self) -> AsyncDatabase[Any]:
        """Database of the tasks, with this queue's options for reads and writes."""
        return self._plain_db

    @property
    def prefix(self) -> str:
        """Prefix of the names of the collections."""
        return self._prefix

    async def now(self) -> datetime:
        """Return the current time of the database; delays and due times count from it.

        Raises:
            UnavailableError: MongoDB has never answered and does not answer now.
        """
        return await self._service.now()

    @overload
    async def enqueue(self, name: str, payload: dict[str, Any], **options: Unpack[AsyncOptions]) -> TaskId: ...

    @overload
    async def enqueue(
        self, task: AsyncFunction[P, R], payload: P, /, **options: Unpack[AsyncOptions]
    ) -> AsyncHandle[R]: ...

    @overload
    async def enqueue(self, task: Function[P, R], payload: P, /, **options: Unpack[AsyncOptions]) -> AsyncHandle[R]: ...

    async def enqueue(
        self,
        name: object,
        payload: Any,
        *,
        queue: str = "default",
        priority: int = 0,
        delay: timedelta | None = None,
        not_before: datetime | None = None,
        expires_at: datetime | None = None,
        retry: RetryPolicy | str | None = None,
        max_retries: int | None = None,
        timeout: timedelta | None = None,
        idempotency_key: str | None = None,
        session: AsyncClientSession | None = None,
    ) -> TaskId | AsyncHandle[Any]:
        """Store a task; after this call the task is not lost.

        Return the id of a task that is enqueued by its name. Return an `AsyncHandle` for a task that is enqueued by its
        function or by a `TaskRef`; it has the id, and waits for the result.

        Args:
            name: Name of a task, a registered task function, or a `TaskRef`. An unregistered name is refused, unless
                no function is registered yet.
            payload: Argument of the function: at most 256 KiB of values that MongoDB stores. For a function and a
                `TaskRef` it is a value of the payload's type, which is checked here.
            queue: Queue of the task.
            priority: Higher first, within the queue.
            delay: Delay from now until the task is due.
            not_before: Time at which the task is due; instead of *delay*.
            expires_at: Time from which on the task fails instead of starting.
            retry: Policy instead of the registration's: a policy, or the name of a preset.
            max_retries: Number of retries instead of the policy's; 0 is one run.
            timeout: Upper limit of the duration of one attempt.
            idempotency_key: A second enqueue with the same key and request returns the first task's id.
            session: Session with the caller's transaction: the task exists after its commit.

        Raises:
            InvalidRequestError: Parameters are not allowed, or *session* has no transaction; nothing was stored.
            UnknownTaskError: The name is not registered; nothing was stored.
            DuplicateKeyError: The key was used with another request; nothing was stored.
            ForeignCollectionError: A collection with one of Tidemill's names belongs to another application.
            UnavailableError: MongoDB did not confirm; with a key, a repeat is safe.
        """
        reference = None if isinstance(name, str) else find_reference(name)
        request = make_request(
            name=name if reference is None else reference.name,
            payload=payload if reference is None else reference.dump(payload),
            queue=queue,
            priority=priority,
            delay=delay,
            not_before=not_before,
            expires_at=expires_at,
            retry=retry,
            max_retries=max_retries,
            timeout=timeout,
            idempotency_key=idempotency_key,
        )
        is_typed = reference is not None and reference.payload_type is not None
        rules = _SINGLE_TYPED if is_typed else _SINGLE
        [task_id] = await self._submit([request], rules=rules, session=session)
        return task_id if reference is None else AsyncHandle(task_id, self, reference)

    @overload
    async def enqueue_many(
        self, requests: Iterable[NewTask | Mapping[str, Any]], *, session: AsyncClientSession | None = None
    ) -> list[TaskId]: ...

    @overload
    async def enqueue_many(
        self,
        task: AsyncFunction[P, R],
        payloads: Iterable[P],
        /,
        *,
        session: AsyncClientSession | None = None,
        **options: Unpack[ManyOptions],
    ) -> list[AsyncHandle[R]]: ...

    @overload
    async def enqueue_many(
        self,
        task: Function[P, R],
        payloads: Iterable[P],
        /,
        *,
        session: AsyncClientSession | None = None,
        **options: Unpack[ManyOptions],
    ) -> list[AsyncHandle[R]]: ...

    async def enqueue_many(
        self,
        requests: Any,
        payloads: Iterable[Any] | None = None,
        *,
        session: AsyncClientSession | None = None,
        **options: Unpack[ManyOptions],
    ) -> list[TaskId] | list[AsyncHandle[Any]]:
        """Store many tasks, in order, and return their ids. All are validated before the first is stored.

        ``enqueue_many(task, payloads)`` stores one task for each payload, all with the same options, and returns their
        handles. *task* is a function or a `TaskRef`, as for `enqueue`. Without payloads, each request is a
        `NewTask` or a mapping of its fields; ``idempotency_key`` may be among them. Each thousand is stored in one
        transaction: all of them or none. A standalone server has no transactions: an error half-way
        leaves the first tasks stored. In a transaction of *session*, that transaction decides. Any other transaction
        ends after 30 s, or at your ``pymongo.timeout``.

        Raises:
            InvalidRequestError: Naming the index of each task that is not allowed; nothing was stored.
            DuplicateKeyError: Keys were used with other requests; its problems name the index of each. Nothing of its
                thousand was stored.
            UnavailableError: MongoDB did not confirm; with keys, a repeat is safe.
        """
        if payloads is None:
            checked = check_tasks(requests)
            return await self._submit(checked.tasks, rules=_MANY, payloads=checked.payloads, session=session)
        reference = find_reference(requests)
        checked = check_tasks(make_requests(reference, payloads, options))
        rules = _MANY if reference.payload_type is None else _MANY_TYPED
        ids = await self._submit(checked.tasks, rules=rules, payloads=checked.payloads, session=session)
        return [AsyncHandle(task_id, self, reference) for task_id in ids]

    def wake(self) -> None:
        """Wake an executor for tasks that a transaction of yours has stored, after its commit.

        It fails no caller: it takes at most 0.3 s, waits for nothing in an event loop, and logs a failure. Without it
        the tasks start with the next tick.

        Raises:
            SettingsError: The queue was made without *wake*.
        """
        if self._waker is None:
            raise SettingsError("this queue wakes no executor: make it with wake= and the name of the execute function")
        self._waker.wake()

    async def get(self, task_id: TaskId, *, source: str | None = None) -> Task | Malformed:
        """Return the current state of a task, also of a dead letter.

        With *source*, a task of another source counts as missing, and its answer takes as long as a missing task's.

        Raises:
            TaskNotFoundError: The task does not exist, or it has ended and its retention is over.
        """
        task = await get(self._tasks, task_id, source=source) or await find_latest(self._dead, task_id, source=source)
        task = task or await get(self._tasks, task_id, source=source)
        if task is None:
            raise TaskNotFoundError(task_id)
        return task

    async def wait(self, task_id: TaskId, timeout: timedelta) -> Any:
        """Wait for the end of a task and return its result, as it is stored.

        The task is looked at after 50 ms, and then less and less often, up to once a second.

        Raises:
            TaskFailedError: The task failed for good; it may be a dead letter.
            TaskCancelledError: The task was cancelled.
            WaitTimeoutError: The task did not end in time. It is a ``TimeoutError``.
            TaskNotFoundError: The task does not exist, or it has ended and its retention is over.
            UnavailableError: MongoDB did not answer.
        """
        seconds = require_seconds(timeout, field="timeout")
        ends_at, pause = (read_monotonic() + seconds, FIRST_PAUSE_SEC)
        while True:
            if not await is_unfinished(self._tasks, task_id):
                task = await self.get(task_id)
                if has_ended(task):
                    return read_end(task)
            left = ends_at - read_monotonic()
            if left <= 0:
                raise WaitTimeoutError(task_id, seconds)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * PAUSE_FACTOR, LAST_PAUSE_SEC)

    async def cancel(self, task_id: TaskId, *, force: bool = False) -> Task | Malformed:
        """Cancel a pending task at once, or ask a running one to stop; return its new state.

        A running task that succeeds nevertheless is done. *force* takes its lease away: the task is cancelled now, and
        later writes of its worker are refused. An ended task is returned unchanged.

        Raises:
            TaskNotFoundError: The task does not exist.
        """
        await self._service.require_mark()
        cancelled = await cancel(self._tasks, task_id, now=await self.now(), force=force)
        return cancelled or await self.get(task_id)

    async def _submit(
        self,
        requests: Sequence[NewTask],
        *,
        rules: EnqueueRules,
        payloads: Sequence[bytes] | None = None,
        session: AsyncClientSession | None,
    ) -> list[TaskId]:
        if session is not None:
            self._require_transaction(session)
        accepted = await self._service.submit(requests, rules=rules, payloads=payloads, session=session)
        if self._waker is not None and session is None and has_new_due(requests, accepted, now=await self.now()):
            self._waker.wake()
        return [task.id for task in accepted]

    def _require_transaction(self, session: object) -> None:
        """Refuse a session that the tasks could not be stored in the transaction of.

        Raises:
            InvalidRequestError: The session has no transaction, or belongs to another client.
        """
        if not isinstance(session, AsyncClientSession):
            problem = f"must be an AsyncClientSession of pymongo, not {add_article(type(session).__name__)}"
        elif session.has_ended:
            problem = "has ended"
        elif session.client is not self._db.client:
            problem = "belongs to another AsyncMongoClient than the database of the AsyncQueue"
        elif not session.in_transaction:
            problem = (
                "has no transaction: start one with await session.start_transaction() or session.with_transaction(...)"
            )
        else:
            return
        raise InvalidRequestError([Problem("session", problem)])
