"""Exceptions that Tidemill raises, and exceptions that a task function raises to decide about its attempt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemill.model import TaskId
from tidemill.text import format_error

MAX_RETRY_AFTER = timedelta(hours=24)


class TidemillError(Exception):
    """Root of all exceptions of this package that are not raised by task functions."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a request: the dotted *field* and a sentence that repeats no value."""

    field: str
    message: str


class InvalidRequestError(TidemillError):
    """The request is not allowed; nothing was stored.

    Attributes:
        problems: All faults found, in the order of the fields.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.field}: {p.message}" for p in self.problems))


class UnknownTaskError(InvalidRequestError):
    """No executor has registered the named function (or not for HTTP)."""


class DuplicateKeyError(TidemillError):
    """The idempotency key belongs to a task that was enqueued with another request.

    Attributes:
        task_id: The task that has the key; it was not changed.
        problems: For many tasks enqueued together, the tasks whose key is taken, by index.
    """

    def __init__(self, task_id: TaskId, *, problems: Sequence[Problem] = ()) -> None:
        self.task_id = task_id
        self.problems = tuple(problems)
        super().__init__(f"the idempotency key belongs to task {task_id}, enqueued with another request")


class TooOldError(TidemillError):
    """A repeat comes too late: its tasks may have been stored, ended and deleted before."""

    def __init__(self) -> None:
        super().__init__(
            "the event is older than the retention of ended tasks, so its tasks may have been stored before: look for "
            "them, and invoke the function with the event if there are none"
        )


class TaskNotFoundError(TidemillError):
    """No task and no dead letter has this id."""

    def __init__(self, task_id: TaskId) -> None:
        self.task_id = task_id
        is_text = isinstance(task_id, str) and re.fullmatch("[0-9a-fA-F]{24}", task_id)
        super().__init__(f"there is no task {task_id}" + ("; this id is text, pass an ObjectId" if is_text else ""))


class NotDelayedError(TidemillError):
    """The task is not delayed, so it cannot be made due now.

    Attributes:
        status: The task's status, or ``malformed``.
    """

    def __init__(self, task_id: TaskId, status: str) -> None:
        self.task_id = task_id
        self.status = status
        state = "is due already" if status == "pending" else f"is {status}"
        super().__init__(f"task {task_id} {state}: only a pending task that is not due yet can be made due now")


class TaskFailedError(TidemillError):
    """A task that a caller waits for has failed for good.

    Attributes:
        task_id: The task.
        code: The code of its last failure, often the name of an exception.
        reason: The reason why no retry followed; ``None`` for a document that is no valid task.
    """

    def __init__(self, task_id: TaskId, *, code: str, message: str, reason: str | None = None) -> None:
        self.task_id = task_id
        self.code = code
        self.reason = reason
        why = f" ({reason})" if reason else ""
        super().__init__(f"task {task_id} failed{why}: {format_error(code, message)}")


class TaskCancelledError(TidemillError):
    """A task that a caller waits for was cancelled.

    Attributes:
        task_id: The task.
    """

    def __init__(self, task_id: TaskId) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} was cancelled, so it has no result")


class WaitTimeoutError(TidemillError, TimeoutError):
    """A task did not end within the time of a wait; it was not changed and may still end.

    Attributes:
        task_id: The task.
    """

    def __init__(self, task_id: TaskId, seconds: float) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} did not end within {seconds:g} s: wait again, or ask why with explain()")


class ResultError(TidemillError):
    """The result of a task cannot be read as the type of its function.

    Attributes:
        task_id: The task, which is done.
    """

    def __init__(self, task_id: TaskId, problem: str) -> None:
        self.task_id = task_id
        super().__init__(f"the result of task {task_id} {problem}")


class RegistrationError(TidemillError):
    """A task function, its name or an option cannot be registered; the message says what to change."""


class SettingsError(TidemillError):
    """The environment is not usable; the message names the variables but repeats no value.

    Attributes:
        problems: A sentence for each malformed variable, which begins with its name; empty for other errors.
    """

    def __init__(self, message: str, *, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class ForeignCollectionError(SettingsError):
    """A collection with one of Tidemill's names holds documents of another application; nothing was changed.

    Attributes:
        collection: The collection's name in the database.
    """

    def __init__(self, collection: str, *, database: str, may_be_adopted: bool) -> None:
        self.collection = collection
        remedy = "set DEFAULT_TASK to the function that is to run them, or " if may_be_adopted else ""
        super().__init__(
            f"the collection {collection} of database {database} holds documents that are not Tidemill's, "
            f"so nothing was changed: {remedy}give Tidemill's collections a prefix "
            '(TIDEMILL_PREFIX=tm_, Queue(db, prefix="tm_")) or a database of their own (MONGODB_DATABASE)'
        )


class NewerSchemaError(SettingsError):
    """A later release has changed the documents of this database; nothing was changed."""

    def __init__(self, database: str) -> None:
        super().__init__(f"database {database} was set up by a later release of Tidemill: upgrade this one")


class MissingIndexError(TidemillError):
    """A query needs a missing index."""

    def __init__(self, collection: str) -> None:
        super().__init__(f"an index of {collection} is missing: run `tidemill indexes` once, then try again")


class UnavailableError(TidemillError):
    """MongoDB could not be reached in time; the message holds no address and no credentials.

    The write may have taken effect or not: a repeat with the same idempotency key is safe.
    """


class RefusedError(TidemillError):
    """The database refuses an operation because of rights, validation rules or limits.

    The driver's own message is not repeated, because it quotes the document.
    """

    def __init__(self, code: str, message: str | None = None) -> None:
        self.code = code
        super().__init__(message or f"MongoDB refuses the operation ({code})")


class RetentionError(RefusedError):
    """The MongoDB user may not change the retention of documents; everything else is set up."""

    def __init__(self) -> None:
        super().__init__(
            "Unauthorized",
            "a retention was not changed: the MongoDB user needs the action collMod, as in the role dbAdmin",
        )


class CredentialsError(RefusedError):
    """MongoDB refuses the user, the password or the certificate; nothing was read or written."""

    def __init__(self) -> None:
        super().__init__(
            "AuthenticationFailed",
            "MongoDB refuses the user or the password of its URI (AuthenticationFailed): check both, "
            "and authSource, the database that has the user (often admin)",
        )


class IsolationError(TidemillError):
    """A task function needs a process of its own and got none; the function has not started.

    Attributes:
        reason: The cause.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the function could not be given a process of its own: {reason}")


class UnsupportedServerError(TidemillError):
    """The server speaks MongoDB's protocol but is no supported MongoDB."""


class UnexpectedError(TidemillError):
    """An unforeseen exception; its own text may contain secrets and is not repeated.

    Attributes:
        kind: The name of the exception's type.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(f"an unexpected error ({kind}); its stack trace shows where")


class Retry(Exception):  # noqa: N818 - a function raises it to request a retry, it names no error
    """Raised by a task function: this attempt failed, try again.

    Args:
        message: Cause of the failure, for the task's error and execution log.
        after: Wait before the retry, at most 24 hours; it overrides the policy and its cap. ``None`` leaves
            the wait to the policy.
        code: A short word that groups failures of one kind.
    """

    def __init__(self, message: str = "", *, after: timedelta | None = None, code: str = "retry") -> None:
        if after is not None and not isinstance(after, timedelta):
            raise TypeError("after must be a timedelta")
        if after is not None and not timedelta(0) <= after <= MAX_RETRY_AFTER:
            raise ValueError("after must be between zero and 24 hours")
        self.after = after
        self.code = code
        super().__init__(message)


class Fail(Exception):  # noqa: N818 - as above
    """Raised by a task function: this task failed for good, do not try again."""

    def __init__(self, message: str = "", *, code: str = "fail") -> None:
        self.code = code
        super().__init__(message)


class Snooze(Exception):  # noqa: N818 - as above
    """Raised by a task function: run the task again at *until*. The attempt is not counted.

    The task is due a second from now at the earliest, and 366 days from now at the latest: a later *until* counts as
    that. It fails after its ``expires_at`` if no attempt was counted.
    """

    def __init__(self, until: datetime | timedelta) -> None:
        if not isinstance(until, datetime | timedelta):
            raise TypeError("until must be a datetime or a timedelta")
        if isinstance(until, datetime) and until.utcoffset() is None:
            raise ValueError("until must carry a time zone")
        self.until = until
        super().__init__(f"snoozed until {until}")


class TaskTimeoutError(Exception):
    """Raised *into* a task function after its timeout, when it next executes Python code."""
