"""What Tidemill raises, and what a task function may raise to say how its attempt ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemill.model import TaskId

MAX_RETRY_AFTER = timedelta(hours=24)


class TidemillError(Exception):
    """The root of everything this package raises on its own account."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a request: the dotted *field* and a sentence that repeats no value."""

    field: str
    message: str


class InvalidRequestError(TidemillError):
    """What was asked for is not allowed; nothing was stored.

    Attributes:
        problems: Everything that was found wrong, in the order of the fields.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.field}: {p.message}" for p in self.problems))


class UnknownTaskError(InvalidRequestError):
    """No executor has registered the named function (or not for HTTP)."""


class DuplicateKeyError(TidemillError):
    """The idempotency key belongs to a task that was enqueued with another request.

    Attributes:
        task_id: The task that holds the key; it was not touched.
        problems: Of many tasks that were enqueued together, those whose key is taken, by their index.
    """

    def __init__(self, task_id: TaskId, *, problems: Sequence[Problem] = ()) -> None:
        self.task_id = task_id
        self.problems = tuple(problems)
        super().__init__(f"the idempotency key belongs to task {task_id}, enqueued with another request")


class TaskNotFoundError(TidemillError):
    """There is no task with this id, neither alive nor among the dead letters."""

    def __init__(self, task_id: TaskId) -> None:
        self.task_id = task_id
        is_text = isinstance(task_id, str) and re.fullmatch("[0-9a-fA-F]{24}", task_id)
        super().__init__(f"there is no task {task_id}" + (", which is text: ids are ObjectIds" if is_text else ""))


class NotDelayedError(TidemillError):
    """The task does not wait for a time, so there is nothing to hurry.

    Attributes:
        status: What it is instead: its status, or ``malformed``.
    """

    def __init__(self, task_id: TaskId, status: str) -> None:
        self.task_id = task_id
        self.status = status
        state = "is due already" if status == "pending" else f"is {status}"
        super().__init__(f"task {task_id} {state}: only a pending task that is not due yet can be hurried")


class RegistrationError(TidemillError):
    """A task function cannot be registered as it is written."""


class SettingsError(TidemillError):
    """The environment is not usable; the message names the variables and shows no value."""


class MissingIndexError(TidemillError):
    """A query needs an index that is not there."""

    def __init__(self, collection: str) -> None:
        self.collection = collection
        super().__init__(f"an index of {collection} is missing: run `tidemill indexes` once, then try again")


class UnavailableError(TidemillError):
    """MongoDB could not be reached in time; the message holds no address and no credentials.

    Nothing is known of the effect: a repeat with the same idempotency key is safe.
    """


class RefusedError(TidemillError):
    """The database refuses an operation: rights, validation rules or limits stand against it.

    The driver's own message is not repeated, since it quotes what was to be written.
    """

    def __init__(self, code: str, message: str | None = None) -> None:
        self.code = code
        super().__init__(message or f"MongoDB refuses the operation ({code})")


class RetentionError(RefusedError):
    """The database does not let its user change how long documents are kept; all else is as it should be."""

    def __init__(self) -> None:
        super().__init__(
            "Unauthorized",
            "a retention stays as it was: to change it, the MongoDB user needs collMod, as dbAdmin has it",
        )


class CredentialsError(RefusedError):
    """MongoDB does not take the name, password or certificate it was given; nothing was asked of it."""

    def __init__(self) -> None:
        super().__init__(
            "AuthenticationFailed", "MongoDB does not take the user or the password of its URI (AuthenticationFailed)"
        )


class IsolationError(TidemillError):
    """A task function was to have a process of its own and there is none; the function has not started.

    Attributes:
        reason: What stands in the way.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the function could not be given a process of its own: {reason}")


class UnsupportedServerError(TidemillError):
    """The server only looks like MongoDB."""


class UnexpectedError(TidemillError):
    """Something failed that nobody foresaw; its own text, which may hold anything, is not repeated.

    Attributes:
        kind: The name of the exception's type.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(f"an unexpected error ({kind}); its stack says where")


class Retry(Exception):  # noqa: N818 - a function raises it to say what it wants, not what broke
    """Raised by a task function: this attempt failed, try again.

    Args:
        message: What happened, for the task's error and execution log.
        after: Wait this long, whatever the policy and its cap say; at most 24 hours. ``None`` leaves
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
    """Raised by a task function: this failed for good, do not try again."""

    def __init__(self, message: str = "", *, code: str = "fail") -> None:
        self.code = code
        super().__init__(message)


class Snooze(Exception):  # noqa: N818 - as above
    """Raised by a task function: not now. The attempt is not counted and the task becomes due at *until*.

    At the earliest a second from now. A task with ``expires_at`` does not snooze past it for ever.
    """

    def __init__(self, until: datetime | timedelta) -> None:
        if not isinstance(until, datetime | timedelta):
            raise TypeError("until must be a datetime or a timedelta")
        if isinstance(until, datetime) and until.utcoffset() is None:
            raise ValueError("until must carry a time zone")
        self.until = until
        super().__init__(f"snoozed until {until}")


class TaskTimeoutError(Exception):
    """Raised *into* a task function that ran past its timeout, where it next executes Python code."""
