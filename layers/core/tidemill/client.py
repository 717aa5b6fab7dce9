"""`Queue`: what an application calls to enqueue beside its own writes, and to look after its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo.client_session import ClientSession
from pymongo.database import Database

from tidemill.clock import Clock, ServerClock
from tidemill.control import Directory
from tidemill.dead_letters import latest
from tidemill.documents import DEAD_LETTERS, backoff_document, schedule
from tidemill.errors import DuplicateKeyError, InvalidRequestError, Problem, TaskNotFoundError, UnknownTaskError
from tidemill.model import Malformed, Task, TaskId
from tidemill.policies import RetryPolicy
from tidemill.requests import MAX_PROBLEMS, NewTask, new_task
from tidemill.retry import PRESET_EXPECTED
from tidemill.store import intake, lookups, open_tasks


class Queue:
    """The tasks of one database. Cheap to make; safe to share between threads.

    Writes are acknowledged by a majority and reads go to the primary, whatever the client's options say.
    """

    def __init__(self, db: Database[Any], *, clock: Clock | None = None, directory: Directory | None = None) -> None:
        self._tasks = open_tasks(db)
        self._dead = open_tasks(db, DEAD_LETTERS)
        self._clock = clock or ServerClock(db)
        self._directory = directory or Directory(db)

    @property
    def database(self) -> Database[Any]:
        """The database the tasks are in, with the options this queue writes with."""
        return self._tasks.database

    def now(self) -> datetime:
        """Return the time that delays and due times count from: the database's, not this machine's.

        Raises:
            UnavailableError: MongoDB was never reached and does not answer.
        """
        return self._clock.now()

    def enqueue(
        self,
        name: str,
        payload: dict[str, Any],
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
        session: ClientSession | None = None,
    ) -> TaskId:
        """Store a task and return its id; once this returned, the task is not lost.

        Args:
            name: A registered task function. Refused if executors have registered some and this is none.
            payload: What the function gets: at most 256 KiB of what MongoDB stores.
            queue: The stream of tasks it belongs to.
            priority: Higher first, within its queue.
            delay: Not due before so long from now.
            not_before: Not due before this time; instead of *delay*.
            expires_at: Not started any more from then on, but failed.
            retry: Instead of the policy of its registration: a policy, or the name of a preset.
            max_retries: Instead of that of *retry*; 0 is one run.
            timeout: How long one attempt may take.
            idempotency_key: A second enqueue with the same key and request returns the first task's id.
            session: Of a transaction of the caller: the task exists once that commits.

        Raises:
            InvalidRequestError: Something is not allowed; nothing was stored.
            UnknownTaskError: The name is not registered; nothing was stored.
            DuplicateKeyError: The key was used with another request; nothing was stored.
            UnavailableError: MongoDB did not confirm; with a key, a repeat is safe.
        """
        request = new_task(
            name=name,
            payload=payload,
            queue=queue,
            priority=priority,
            delay_sec=_seconds(delay, field="delay"),
            not_before=not_before,
            expires_at=expires_at,
            retry=_policy(retry),
            max_retries=max_retries,
            timeout_sec=_seconds(timeout, field="timeout"),
            idempotency_key=idempotency_key,
        )
        task_id, _ = self.accept(request, session=session)
        return task_id

    def enqueue_many(
        self, requests: Iterable[NewTask | Mapping[str, Any]], *, session: ClientSession | None = None
    ) -> list[TaskId]:
        """Store many tasks, in order, and return their ids. All are validated before the first is stored.

        Each is a `NewTask` or a mapping of its fields, without an idempotency key. Without *session* a failure
        half-way leaves the first of them stored; with one, the transaction decides.

        Raises:
            InvalidRequestError: Naming the index of each task that is not allowed; nothing was stored.
            UnavailableError: MongoDB did not confirm; some may be stored.
        """
        wanted = _all_valid(requests)
        for index, request in enumerate(wanted):
            self._refuse_unknown(request.name, field=f"{index}.name")
        now = self._clock.now()
        _refuse_expired(wanted, now=now)
        documents = [_document(request, now=now) for request in wanted]
        if documents:
            intake.add(self._tasks, documents, session=session)
        return [document["_id"] for document in documents]

    def accept(
        self,
        request: NewTask,
        *,
        trace: Mapping[str, str] | None = None,
        session: ClientSession | None = None,
    ) -> tuple[TaskId, bool]:
        """Store a validated request; return the id of its task and whether it is a new one.

        *trace* is stored with the task: ``source`` (who enqueued it), ``correlation_id``, ``traceparent``.
        The errors are those of `enqueue`.
        """
        self._refuse_unknown(request.name, field="name")
        now = self._clock.now()
        _refuse_expired([request], now=now)
        document = _document(request, now=now, trace=trace)
        if request.idempotency_key is None:
            intake.add(self._tasks, [document], session=session)
            return document["_id"], True
        stored = intake.add_once(self._tasks, document, session=session)
        if stored["_id"] != document["_id"] and stored.get("request_hash") != document["request_hash"]:
            raise DuplicateKeyError(stored["_id"])
        return stored["_id"], stored["_id"] == document["_id"]

    def get(self, task_id: TaskId) -> Task | Malformed:
        """Return a task as it is now, also from among the dead letters.

        Raises:
            TaskNotFoundError: There is none, or it is done or cancelled and its retention is over.
        """
        task = lookups.get(self._tasks, task_id) or latest(self._dead, task_id)
        # Between the two looks an archiver may have moved it.
        task = task or lookups.get(self._tasks, task_id)
        if task is None:
            raise TaskNotFoundError(task_id)
        return task

    def cancel(self, task_id: TaskId, *, force: bool = False) -> Task | Malformed:
        """Cancel a pending task at once; ask a running one to stop, and return it as it then is.

        A running one that succeeds all the same is done. *force* takes its lease away: it is cancelled now, and
        whatever its worker still does is refused. One that has ended is returned as it is.

        Raises:
            TaskNotFoundError: There is no such task.
        """
        cancelled = lookups.cancel(self._tasks, task_id, now=self._clock.now(), force=force)
        return cancelled or self.get(task_id)

    def _refuse_unknown(self, name: str, *, field: str) -> None:
        if self._directory.has_types() and self._directory.task_type(name) is None:
            raise UnknownTaskError([Problem(field, f"no executor has registered a task function {name!r}")])


def _document(request: NewTask, *, now: datetime, trace: Mapping[str, str] | None = None) -> dict[str, Any]:
    key = request.idempotency_key
    keyed = {} if key is None else {"idempotency_key": key, "request_hash": request.hash()}
    return {
        "_id": ObjectId(),
        "name": request.name,
        "queue": request.queue,
        "payload": request.payload,
        "status": "pending",
        "lane": "fresh",
        "priority": request.priority,
        **schedule(request.starts_at(now), now=now),
        "attempts": 0,
        "max_retries": request.retries(),
        "backoff_policy": None if request.retry is None else backoff_document(request.retry.backoff()),
        "timeout_sec": request.timeout_sec,
        "expires_at": request.expires_at,
        "created_at": now,
        "updated_at": now,
        "finished_at": None,
        "error": None,
        "attempt_log": [],
        "crashes": 0,
        "redrives": 0,
        "result": None,
        **keyed,
        "trace": dict(trace or {}),
    }


def _seconds(span: object, *, field: str) -> float | None:
    if span is not None and not isinstance(span, timedelta):
        raise InvalidRequestError([Problem(field, "must be a timedelta")])
    return None if span is None else span.total_seconds()


def _refuse_expired(requests: Sequence[NewTask], *, now: datetime) -> None:
    problems = [
        Problem(f"{index}.expires_at" if len(requests) > 1 else "expires_at", "must be later than the task's start")
        for index, one in enumerate(requests)
        if one.expires_at is not None and one.expires_at <= (one.starts_at(now) or now)
    ]
    if problems:
        raise InvalidRequestError(problems[:MAX_PROBLEMS])


def _policy(policy: object) -> RetryPolicy | str | None:
    if policy is None or isinstance(policy, str | RetryPolicy):
        return policy
    raise InvalidRequestError([Problem("retry", f"{PRESET_EXPECTED}, or a RetryPolicy")])


def _all_valid(requests: Iterable[NewTask | Mapping[str, Any]]) -> Sequence[NewTask]:
    wanted: list[NewTask] = []
    problems: list[Problem] = []
    for index, request in enumerate(requests):
        try:
            task = request if isinstance(request, NewTask) else new_task(**request)
        except InvalidRequestError as error:
            problems += [Problem(f"{index}.{one.field}", one.message) for one in error.problems]
            continue
        except TypeError:
            problems.append(Problem(str(index), "must be a NewTask or a mapping of its fields"))
            continue
        if task.idempotency_key is not None:
            problems.append(Problem(f"{index}.idempotency_key", "is for single tasks: use enqueue"))
        wanted.append(task)
    if problems:
        raise InvalidRequestError(problems[:MAX_PROBLEMS])
    return wanted
