"""The way in: one service checks requests by the rules of their caller, and stores them as tasks, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, assert_never

from pymongo.client_session import ClientSession
from pymongo.database import Database

from tidemill.clock import Clock
from tidemill.control.task_types import Declarations, Directory, PayloadSchemas
from tidemill.documents import DEAD_LETTERS
from tidemill.enqueue.documents import Accepted
from tidemill.enqueue.inserts import (
    find_by_ids,
    find_by_keys,
    find_occurrence,
    store_occurrence,
    store_task,
    store_tasks,
)
from tidemill.enqueue.rules import (
    EnqueueRules,
    Invocation,
    Submission,
    find_payload_problems,
    find_problems,
    find_time_problems,
    make_submission,
)
from tidemill.errors import DuplicateKeyError, InvalidRequestError, Problem, UnavailableError, UnknownTaskError
from tidemill.requests.events import Occurrence
from tidemill.requests.tasks import NewTask
from tidemill.store.connection import open_tasks
from tidemill.store.mark import require_mark
from tidemill.store.writes import TakenIdError


class EnqueueService:
    """Stores the tasks of `Queue` and of the HTTP API."""

    def __init__(self, db: Database[Any], *, clock: Clock, directory: Directory) -> None:
        self._db = db
        self._tasks = open_tasks(db)
        self._clock = clock
        self._directory = directory
        self._schemas = PayloadSchemas(db)
        self._is_marked = False

    def now(self) -> datetime:
        """Return the current time of the database.

        Raises:
            UnavailableError: MongoDB has never answered and does not answer now.
        """
        return self._clock.now()

    def require_mark(self) -> None:
        """Refuse a database whose collections belong to another application; the check runs once."""
        if not self._is_marked:
            require_mark(self._db)
            self._is_marked = True

    def submit(
        self,
        requests: Sequence[NewTask],
        *,
        rules: EnqueueRules,
        payloads: Sequence[bytes] | None = None,
        trace: Mapping[str, str] | None = None,
        session: ClientSession | None = None,
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
        self.require_mark()
        return self.store(make_submission(requests, rules=rules, payloads=payloads, trace=trace, session=session))

    def check(self, requests: Sequence[NewTask], *, rules: EnqueueRules) -> None:
        """Refuse validated requests that `submit` would not store, except for their keys. Nothing is stored.

        Raises:
            InvalidRequestError: Requests are not allowed.
            UnknownTaskError: A name is not registered.
            UnavailableError: MongoDB did not answer.
        """
        self._check(make_submission(requests, rules=rules))

    def store(self, submission: Submission) -> list[Accepted]:
        """Store the requests, or return the tasks of earlier requests with the same keys if they are refused.

        A repeat may arrive after its ``expires_at``, or after its function was removed. Its sender still learns that
        the first request was accepted.
        """
        try:
            now = self._check(submission)
        except InvalidRequestError:
            known = find_by_keys(self._tasks, submission)
            if known is None:
                raise
            return known
        if submission.rules.is_single:
            return [store_task(self._tasks, submission, now=now)]
        return store_tasks(self._tasks, submission, now=now)

    def _check(self, submission: Submission) -> datetime:
        """Refuse requests that their rules do not allow, and return the time of the check."""
        now = self.now()
        known = self._read_declarations(submission, now=now)
        problems = find_problems(submission, known=known, now=now)
        if problems:
            are_known = all(known.is_known(task.name, now=now) for task in submission.requests)
            raise (InvalidRequestError if are_known or not known.types else UnknownTaskError)(problems)
        problems = find_time_problems(submission, now=now) or self._find_payload_problems(submission, known)
        if problems:
            raise InvalidRequestError(problems)
        return now

    def _find_payload_problems(self, submission: Submission, known: Declarations) -> list[Problem]:
        if submission.rules.is_typed:
            return []
        versions = known.list_schema_versions({request.name for request in submission.requests})
        return find_payload_problems(submission, self._schemas.read(versions)) if versions else []

    def _read_declarations(self, submission: Submission, *, now: datetime) -> Declarations:
        names = {request.name for request in submission.requests}
        if submission.rules.is_http:
            queues = {request.queue for request in submission.requests}
            return self._directory.read_declarations(names=names, queues=queues, for_http=True, now=now)
        known = self._directory.read_declarations()
        return self._directory.read_declarations(names=names, now=now) if known.types else known


class EventService(EnqueueService):
    """Stores the tasks of events, too: of invocations and schedules, which may be delivered again."""

    def __init__(self, db: Database[Any], *, clock: Clock, directory: Directory) -> None:
        super().__init__(db, clock=clock, directory=directory)
        self._dead = open_tasks(db, DEAD_LETTERS)

    def store(self, submission: Submission) -> list[Accepted]:
        """Store the requests, or return the tasks that an earlier delivery of their event stored."""
        match submission.rules.origin:
            case None:
                return super().store(submission)
            case Invocation() as invocation:
                return self._store_invocation(invocation, submission)
            case Occurrence() as occurrence:
                return self._store_occurrence(occurrence, submission)
            case unexpected:
                assert_never(unexpected)

    def _store_invocation(self, invocation: Invocation, submission: Submission) -> list[Accepted]:
        """Return the stored tasks of *invocation*, and store the missing ones.

        An insert finds living tasks by itself, because their ids are taken. If the invocation may be a repeat, stored
        tasks are looked up before, for the dead letters among them. A first try has none.
        """
        ids = submission.ids
        known = find_by_ids(self._tasks, self._dead, ids) if invocation.may_be_repeat else []
        if len(known) == len(ids):
            return known
        try:
            return known + super().store(submission.take(len(known)))
        except TakenIdError:
            known = find_by_ids(self._tasks, self._dead, ids)
            if len(known) < len(ids):
                raise UnavailableError("stored tasks of this invocation were rolled back; repeat it") from None
        except (InvalidRequestError, DuplicateKeyError):
            known = find_by_ids(self._tasks, self._dead, ids)
            if len(known) < len(ids):
                raise
        return known

    def _store_occurrence(self, occurrence: Occurrence, submission: Submission) -> list[Accepted]:
        known = find_occurrence(self._tasks, occurrence, submission.ids)
        if known is not None:
            return known
        return store_occurrence(self._tasks, occurrence, submission, now=self._check(submission))
