"""New documents from requests, one by one or encoded in batches, and the plan for the keys of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from tidemill.documents import backoff_document, encode_fields, schedule, splice_fields
from tidemill.enqueue.rules import Submission
from tidemill.errors import DuplicateKeyError, Problem
from tidemill.model import TaskId
from tidemill.requests.tasks import NewTask

Keyed: TypeAlias = tuple[str, str]
"""An idempotency key and the hash of its request."""

_OWN_FIELDS: Final = frozenset({"_id", "payload", "idempotency_key", "request_hash"})
_ID_HEADER: Final = b"\x07_id\x00"
_PAYLOAD_HEADER: Final = b"\x03payload\x00"
_get_simple_options: Final = attrgetter(
    "name", "queue", "priority", "delay_sec", "not_before", "expires_at", "max_retries", "timeout_sec"
)


class Accepted(NamedTuple):
    """Result of an accepted request: a new task, or the stored task of an earlier request.

    *status* is the task's; ``None`` if it was not read. A named tuple, because thousands are made at once and a frozen
    dataclass takes twice as long.
    """

    id: TaskId
    status: str | None = "pending"
    is_new: bool = True


def new_document(
    request: NewTask, *, now: datetime, trace: Mapping[str, str] | None = None, task_id: ObjectId | None = None
) -> dict[str, Any]:
    """Return the document of a new task."""
    key = request.idempotency_key
    keyed = {} if key is None else {"idempotency_key": key, "request_hash": request.hash()}
    return {
        "_id": task_id or ObjectId(),
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


class Encoder:
    """Encodes the documents of `new_document` in bulk, for tasks that mostly differ in their payload only.

    A document is joined from parts that are BSON already: its length, its fields one after the other, and a NUL.
    """

    def __init__(self, *, now: datetime, trace: Mapping[str, str] | None = None) -> None:
        self._now = now
        self._trace = trace
        self._common: dict[object, _CommonFields] = {}

    def documents(
        self,
        requests: Sequence[NewTask],
        *,
        payloads: Sequence[bytes],
        ids: Sequence[ObjectId],
        keyed: Sequence[Keyed | None],
    ) -> list[RawBSONDocument]:
        """Return the documents of new tasks from their requests, payloads as BSON, ids, and keys or ``None``."""
        documents = []
        for request, payload, task_id, key in zip(requests, payloads, ids, keyed, strict=True):
            options = _get_options(request)
            common = self._common.get(options) or self._encode_common(request, options)
            key_fields = b"" if key is None else encode_fields({"idempotency_key": key[0], "request_hash": key[1]})
            head = (_ID_HEADER, task_id.binary, common.before_payload, _PAYLOAD_HEADER)
            documents.append(splice_fields(*head, payload, common.after_payload, key_fields))
        return documents

    def _encode_common(self, request: NewTask, options: object) -> _CommonFields:
        document = new_document(request, now=self._now, trace=self._trace)
        names = list(document)
        middle = names.index("payload")
        before_payload, after_payload = (
            encode_fields({name: document[name] for name in part if name not in _OWN_FIELDS})
            for part in (names[:middle], names[middle:])
        )
        self._common[options] = _CommonFields(before_payload, after_payload)
        return self._common[options]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Up to a thousand new tasks, with their keys and encoded documents."""

    submission: Submission
    keyed: Sequence[Keyed | None]
    documents: Sequence[RawBSONDocument]


def make_batch(submission: Submission, encoder: Encoder) -> Batch:
    """Return *submission* as encoded documents."""
    requests, payloads = submission.requests, submission.payloads
    keyed = [
        None if request.idempotency_key is None else (request.idempotency_key, request.hash()) for request in requests
    ]
    payloads = [bson.encode(request.payload) for request in requests] if payloads is None else payloads
    documents = encoder.documents(requests, payloads=payloads, ids=submission.ids, keyed=keyed)
    return Batch(submission=submission, keyed=keyed, documents=documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The task of each request, and the documents of the new tasks."""

    accepted: list[Accepted]
    new: Sequence[RawBSONDocument]


def make_plan(batch: Batch, stored: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Return the plan for *batch*; *stored* are the stored tasks by key.

    Raises:
        DuplicateKeyError: A key belongs to another request.
    """
    ids, rules = batch.submission.ids, batch.submission.rules
    if not any(batch.keyed):
        return Plan(accepted=[Accepted(task_id) for task_id in ids], new=batch.documents)
    by_key: dict[str, Mapping[str, Any]] = dict(stored)
    accepted: list[Accepted] = []
    taken: dict[int, TaskId] = {}
    for index, (task_id, keyed) in enumerate(zip(ids, batch.keyed, strict=True), batch.submission.first):
        new = {"_id": task_id, "status": "pending", "request_hash": keyed and keyed[1]}
        task = new if keyed is None else by_key.setdefault(keyed[0], new)
        if task.get("request_hash") != new["request_hash"]:
            taken[index] = task["_id"]
        accepted.append(Accepted(task["_id"], str(task.get("status")), is_new=task["_id"] == task_id))
    if taken:
        problems = [
            Problem(rules.error_path(index, "idempotency_key"), "was used with another request") for index in taken
        ]
        raise DuplicateKeyError(next(iter(taken.values())), problems=rules.limit_problems(problems))
    documents = [document for document, result in zip(batch.documents, accepted, strict=True) if result.is_new]
    return Plan(accepted=accepted, new=documents)


class _CommonFields(NamedTuple):
    """BSON of the fields that many documents share, before and after their payloads."""

    before_payload: bytes
    after_payload: bytes


def _get_options(request: NewTask) -> object:
    """Return everything that `new_document` reads of *request*, without the document's own fields."""
    if request.retry is None:
        return _get_simple_options(request)
    # The set of given fields counts too, and the equality of Pydantic models ignores it.
    return _get_simple_options(request), request.retry, frozenset(request.retry.model_fields_set)
