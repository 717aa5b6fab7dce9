"""Rules of each way in: accepted names and queues, limits of time, the scope of keys, and paths in problems."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bson import ObjectId

from tidemill.control.task_types import Declarations
from tidemill.errors import InvalidRequestError, Problem, TooOldError
from tidemill.indexes import OCCURRENCE_RETENTION, Retention
from tidemill.model import MAX_DELAY
from tidemill.requests.events import SCHEDULE_HINT, Occurrence
from tidemill.requests.tasks import NewTask
from tidemill.requests.validation import limit_problems
from tidemill.text import did_you_mean

if TYPE_CHECKING:
    from tidemill.requests.payload_schema import PayloadSchema

MIN_HTTP_BASE_SEC: Final = 0.1
"""Lower bound of the base of a back-off, so that a caller cannot make a task retry without a pause."""

MAX_EVENT_AGE: Final = timedelta(hours=1)
"""Longest time from the first try of an invocation until Lambda gives up: MaximumEventAgeInSeconds of the template."""

_INVOCATION_HASH_BYTES: Final = 10
"""Bytes of the request's hash in the twelve bytes of an ObjectId; the last two count the tasks."""

DIRECT: Final = "direct"
"""The caller of every direct invocation, which IAM has authorized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A direct invocation. Lambda's repeats have the same *request_id*."""

    request_id: str
    may_be_repeat: bool

    def derive_ids(self, count: int) -> list[ObjectId]:
        """Return the ids of *count* tasks, the same ones for each repeat.

        They begin with a hash, because a repeat does not know the time of the first try. They do not sort by time.
        """
        begin = hashlib.sha256(f"direct|{self.request_id}".encode()).digest()[:_INVOCATION_HASH_BYTES]
        return [ObjectId(begin + index.to_bytes(2, "big")) for index in range(count)]


Origin: TypeAlias = Invocation | Occurrence
"""Event that may be delivered again; its tasks are stored once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueRules:
    """Rules of one way in. The models of `tidemill.requests` and `tidemill.http` limit size and count.

    Attributes:
        is_single: The caller sent one task and not a list; problems name its fields without an index.
        is_typed: The payloads were checked by their own types, so that their schemas are not needed.
        list_path: Path of the list in the caller's request, with a dot at its end.
        key_scope: Scope of the idempotency keys, apart from those of other callers; ``None`` for keys as they are.
        is_http: Names must be open to HTTP, queues declared, and waits before retries not too short. Otherwise names
            must be registered, once any name is.
        max_timeout: Longest attempt that executors allow; ``None`` without a limit.
        origin: Event that the tasks come from, if it may be delivered again. Ids are derived from it.
    """

    is_single: bool = False
    is_typed: bool = False
    list_path: str = ""
    key_scope: str | None = None
    is_http: bool = False
    max_timeout: timedelta | None = None
    origin: Origin | None = None

    def error_path(self, index: int, field: str) -> str:
        """Return the path of *field* of the task *index* in the caller's request."""
        return field if self.is_single else f"{self.list_path}{index}.{field}"

    def limit_problems(self, problems: Iterable[Problem]) -> list[Problem]:
        """Return the first of *problems*, and a last problem that says that there are more."""
        return limit_problems(problems, path=self.list_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Requests to be stored, with keys in the scope of their caller, the ids of their tasks and the rules.

    *payloads* are the payloads as BSON, if the caller has them. *first* is the index of the first request among those
    that the caller sent.
    """

    requests: Sequence[NewTask]
    rules: EnqueueRules
    ids: Sequence[ObjectId]
    payloads: Sequence[bytes] | None = None
    trace: Mapping[str, str] | None = None
    session: Any = None
    first: int = 0

    def take(self, start: int, stop: int | None = None) -> Submission:
        """Return the part from the request *start* up to *stop*."""
        part = slice(start, stop)
        payloads = None if self.payloads is None else self.payloads[part]
        first = self.first + start
        return replace(self, requests=self.requests[part], ids=self.ids[part], payloads=payloads, first=first)


def make_submission(
    requests: Sequence[NewTask],
    *,
    rules: EnqueueRules,
    payloads: Sequence[bytes] | None = None,
    trace: Mapping[str, str] | None = None,
    session: Any = None,  # noqa: ANN401 - of the driver, or of its twin for event loops
) -> Submission:
    """Return *requests* as *rules* have them stored: keys in scope, ids derived or drawn."""
    scope, count = rules.key_scope, len(requests)
    scoped = requests if scope is None else [_scope_key(request, scope) for request in requests]
    ids = [ObjectId() for _ in requests] if rules.origin is None else rules.origin.derive_ids(count)
    return Submission(requests=scoped, rules=rules, ids=ids, payloads=payloads, trace=trace, session=session)


def make_http_rules(caller: str, *, is_single: bool, max_timeout: timedelta) -> EnqueueRules:
    """Return the rules for the requests of *caller* over HTTP."""
    return EnqueueRules(
        is_single=is_single, list_path="tasks.", key_scope=caller, is_http=True, max_timeout=max_timeout
    )


def make_direct_rules(origin: Origin, *, is_single: bool, max_timeout: timedelta) -> EnqueueRules:
    """Return the rules for a direct invocation, or for an occurrence of a schedule."""
    return EnqueueRules(
        is_single=is_single, list_path="tasks.", key_scope=DIRECT, max_timeout=max_timeout, origin=origin
    )


def find_problems(submission: Submission, *, known: Declarations, now: datetime) -> list[Problem]:
    """Return the faults of the requests under their rules, given the task types and queues that are *known* *now*."""
    rules = submission.rules
    return rules.limit_problems(
        Problem(rules.error_path(index, fault.field), fault.message)
        for index, request in enumerate(submission.requests, submission.first)
        for fault in _find_faults(request, rules, known, now)
    )


def find_time_problems(submission: Submission, *, now: datetime) -> list[Problem]:
    """Return the faults of requests that would expire before they are due, or with times too far away."""
    rules = submission.rules
    return rules.limit_problems(
        Problem(rules.error_path(index, fault.field), fault.message)
        for index, request in enumerate(submission.requests, submission.first)
        if request.expires_at is not None or request.not_before is not None
        for fault in _find_time_faults(request, now)
    )


def find_payload_problems(submission: Submission, schemas: Mapping[str, PayloadSchema]) -> list[Problem]:
    """Return the faults of payloads under the schemas of their types, by the types' names."""
    rules = submission.rules
    return rules.limit_problems(
        Problem(rules.error_path(index, fault.field), fault.message)
        for index, request in enumerate(submission.requests, submission.first)
        if request.name in schemas
        for fault in schemas[request.name].find_problems(request.payload)
    )


def refuse_too_old(
    occurrence: Occurrence | None, *, failed_at: datetime | None, kept: Retention, now: datetime
) -> None:
    """Refuse a late repeat: its tasks may have been stored, ended and deleted before.

    *failed_at* is the time at which Lambda gave up an invocation without an *occurrence*.

    Raises:
        TooOldError: The repeat is older than the retention of ended tasks or of occurrences.
        InvalidRequestError: *occurrence* and *failed_at* are both missing.
    """
    if occurrence is not None:
        is_too_old = occurrence.at <= now - OCCURRENCE_RETENTION
    elif failed_at is not None:
        is_too_old = failed_at - MAX_EVENT_AGE <= now - min(kept.tasks, kept.dead_letters)
    else:
        raise InvalidRequestError([Problem("occurrence", f"is missing: {SCHEDULE_HINT}")])
    if is_too_old:
        raise TooOldError


def _find_faults(request: NewTask, rules: EnqueueRules, known: Declarations, now: datetime) -> Iterator[Problem]:
    if rules.is_http:
        yield from _find_http_faults(request, known, now)
    elif known.types and not known.is_known(request.name, now=now):
        fault = known.find_fault(request.name)
        hint = did_you_mean(request.name, [name for name in known.types if known.is_known(name, now=now)])
        reason = hint if fault is None else f": {fault}"
        yield Problem("name", f"no executor has registered a task function {request.name!r}{reason}")
    longest = None if rules.max_timeout is None else rules.max_timeout.total_seconds()
    if longest is not None and request.timeout_sec is not None and request.timeout_sec > longest:
        yield Problem("timeout_sec", f"must be at most {longest:g}, the MAX_TASK_TIMEOUT_SEC of executors")


def _find_time_faults(request: NewTask, now: datetime) -> Iterator[Problem]:
    for field, time in (("not_before", request.not_before), ("expires_at", request.expires_at)):
        if time is not None and time - now > MAX_DELAY:
            yield Problem(field, f"must be at most {MAX_DELAY.days} days from now, as for a delay")
    if request.expires_at is not None and request.expires_at <= (request.starts_at(now) or now):
        yield Problem("expires_at", "must be later than the task's start")


def _find_http_faults(request: NewTask, known: Declarations, now: datetime) -> Iterator[Problem]:
    if not known.is_known(request.name, now=now):
        names = [name for name in known.types if known.is_open(name) and known.is_known(name, now=now)]
        has_fault = known.find_fault(request.name) is not None
        reason = ": its registration has a fault" if has_fault else did_you_mean(request.name, names)
        yield Problem("name", f"no executor has registered a task function of this name{reason}")
    elif not known.is_open(request.name):
        yield Problem("name", "is not open to HTTP: register it with @task(..., http=True)")
    if request.queue not in known.queues:
        hint = did_you_mean(request.queue, known.queues) or ":"
        yield Problem("queue", f"is not declared{hint} run `tidemill ops queue declare QUEUE` once")
    backoff = request.retry.backoff() if request.retry is not None else None
    if backoff is not None and backoff.base_sec < MIN_HTTP_BASE_SEC:
        yield Problem("retry.base_sec", f"must be at least {MIN_HTTP_BASE_SEC:g}")


def _scope_key(request: NewTask, scope: str) -> NewTask:
    key = request.idempotency_key
    return request if key is None else request.model_copy(update={"idempotency_key": f"{scope}:{key}"})
