"""`Queue`: what an application calls to enqueue beside its own writes, and to look after its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from pymongo.client_session import ClientSession
from pymongo.database import Database

from tidemill import enqueueing
from tidemill.clock import Clock, ServerClock
from tidemill.control import Directory
from tidemill.dead_letters import latest
from tidemill.documents import DEAD_LETTERS
from tidemill.enqueueing import Accepted
from tidemill.errors import (
    InvalidRequestError,
    NotDelayedError,
    Problem,
    TaskNotFoundError,
    UnknownTaskError,
)
from tidemill.explaining import Explanation, explain
from tidemill.model import Malformed, Task, TaskId
from tidemill.policies import RetryPolicy
from tidemill.requests import MAX_PROBLEMS, NewTask, Occurrence, checked, foremost, new_task
from tidemill.retry import PRESET_EXPECTED
from tidemill.store import lookups, open_tasks
from tidemill.wording import guess


class Queue:
    """The tasks of one database. Cheap to make; safe to share between threads.

    Writes are acknowledged by a majority and reads go to the primary, whatever the client's options say.
    """

    def __init__(self, db: Database[Any], *, clock: Clock | None = None, directory: Directory | None = None) -> None:
        if not isinstance(db, Database):
            raise TypeError('a Queue is of a database: Queue(client["app"])')
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
        with _naming_parameters():
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
        return self.accept(request, session=session).id

    def enqueue_many(
        self, requests: Iterable[NewTask | Mapping[str, Any]], *, session: ClientSession | None = None
    ) -> list[TaskId]:
        """Store many tasks, in order, and return their ids. All are validated before the first is stored.

        Each is a `NewTask` or a mapping of its fields, with an ``idempotency_key`` where it is to have one. A thousand
        at a time are stored in one transaction: all of them or none. On a standalone server, which has none, an
        error half-way leaves the first of them stored. In a transaction of *session* that one decides; else a
        transaction is given up after 30 s, or by your ``pymongo.timeout``.

        Raises:
            InvalidRequestError: Naming the index of each task that is not allowed; nothing was stored.
            DuplicateKeyError: Keys were used with other requests; its problems name the index of each. Nothing of its
                thousand was stored.
            UnavailableError: MongoDB did not confirm; with keys, a repeat is safe.
        """
        tasks, payloads = checked(requests)
        return [one.id for one in self._accepted(tasks, payloads=payloads, session=session)]

    def accept(
        self,
        request: NewTask,
        *,
        trace: Mapping[str, str] | None = None,
        session: ClientSession | None = None,
    ) -> Accepted:
        """Store a validated request, as `enqueue` does.

        *trace* is stored with the task: ``source`` (who enqueued it), ``correlation_id``, ``traceparent``.
        """

        def store() -> list[Accepted]:
            self._refuse_unknown([request], is_one=True)
            return [enqueueing.accept(self._tasks, request, now=self._clock.now(), trace=trace, session=session)]

        return self.unless_known([request], store, session=session)[0]

    def accept_many(
        self,
        requests: Sequence[NewTask],
        *,
        trace: Mapping[str, str] | None = None,
        session: ClientSession | None = None,
    ) -> list[Accepted]:
        """Store validated requests, as `enqueue_many` does."""
        return self._accepted(requests, trace=trace, session=session)

    def unless_known(
        self, requests: Sequence[NewTask], store: Callable[[], list[Accepted]], *, session: ClientSession | None = None
    ) -> list[Accepted]:
        """Return what *store* does, or, where it refuses, the tasks that the keys of all *requests* have made before.

        Raises:
            InvalidRequestError: What *store* refuses of what is not known.
        """
        return enqueueing.unless_known(self._tasks, requests, store, session=session)

    def accept_occurrence(
        self, occurrence: Occurrence, requests: Sequence[NewTask], *, trace: Mapping[str, str] | None = None
    ) -> list[Accepted]:
        """Store the tasks of an occurrence of a schedule, once however often that is delivered.

        Raises:
            InvalidRequestError: Naming the index of each task that is not allowed; nothing was stored.
            UnavailableError: MongoDB did not confirm; a repeat is safe.
        """
        known = enqueueing.known_occurrence(self._tasks, occurrence, count=len(requests))
        if known is not None:
            return known
        self._refuse_unknown(requests)
        return enqueueing.accept_occurrence(self._tasks, occurrence, requests, now=self._clock.now(), trace=trace)

    def get(self, task_id: TaskId, *, source: str | None = None) -> Task | Malformed:
        """Return a task as it is now, also from among the dead letters.

        With *source*, one that came from elsewhere is as if it were not there, and takes as long to be missed.

        Raises:
            TaskNotFoundError: There is none, or it is done or cancelled and its retention is over.
        """
        task = lookups.get(self._tasks, task_id, source=source) or latest(self._dead, task_id, source=source)
        # Between the two looks an archiver may have moved it.
        task = task or lookups.get(self._tasks, task_id, source=source)
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

    def retry_now(self, task_id: TaskId) -> Task | Malformed:
        """Make a task due now that waits for its first run or for a retry, and return it as it then is.

        It keeps its place among those of its priority and lane that are due; attempts are not touched.

        Raises:
            NotDelayedError: It does not wait for a time: it is due already, runs, or has ended.
            TaskNotFoundError: There is no such task.
        """
        hurried = lookups.retry_now(self._tasks, task_id, now=self._clock.now())
        if hurried is not None:
            return hurried
        task = self.get(task_id)
        raise NotDelayedError(task_id, "malformed" if isinstance(task, Malformed) else task.status)

    def explain(self, task_id: TaskId) -> Explanation:
        """Return why a task is not running, or what it does instead.

        Raises:
            TaskNotFoundError: There is no such task, neither alive nor among the dead letters.
        """
        explanation = explain(self._tasks, self._dead, task_id, now=self._clock.now())
        if explanation is None:
            raise TaskNotFoundError(task_id)
        return explanation

    def _accepted(
        self,
        requests: Sequence[NewTask],
        *,
        payloads: Sequence[bytes] | None = None,
        trace: Mapping[str, str] | None = None,
        session: ClientSession | None,
    ) -> list[Accepted]:
        def store() -> list[Accepted]:
            self._refuse_unknown(requests)
            return enqueueing.accept_many(
                self._tasks, requests, payloads=payloads, now=self._clock.now(), trace=trace, session=session
            )

        return self.unless_known(requests, store, session=session)

    def _refuse_unknown(self, requests: Sequence[NewTask], *, is_one: bool = False) -> None:
        if not self._directory.has_types():  # none is refused, so that another look would be in vain
            return
        types = self._directory.known(names={one.name for one in requests}).types
        unknown = ((index, one.name) for index, one in enumerate(requests) if types and one.name not in types)
        problems = [
            Problem(
                "name" if is_one else f"{index}.name",
                f"no executor has registered a task function {name!r}{guess(name, types)}",
            )
            for index, name in islice(unknown, MAX_PROBLEMS + 1)
        ]
        if problems:
            raise UnknownTaskError(foremost(problems))


@contextmanager
def _naming_parameters() -> Iterator[None]:
    """Say problems of the parameters that the caller wrote, which have spans where a request has seconds."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(
            [
                Problem(one.field.removesuffix("_sec"), one.message.replace("delay_sec", "delay"))
                if one.field in {"delay_sec", "timeout_sec", "task"}
                else one
                for one in error.problems
            ]
        ) from None


def _seconds(span: object, *, field: str) -> float | None:
    if span is not None and not isinstance(span, timedelta):
        raise InvalidRequestError([Problem(field, "must be a timedelta")])
    return None if span is None else span.total_seconds()


def _policy(policy: object) -> RetryPolicy | str | None:
    if policy is None or isinstance(policy, str | RetryPolicy):
        return policy
    raise InvalidRequestError([Problem("retry", f"{PRESET_EXPECTED}, or a RetryPolicy")])
