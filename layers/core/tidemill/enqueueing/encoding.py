"""Many new tasks as BSON: what they have in common is encoded once, not a thousand times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from tidemill.enqueueing.values import new_document
from tidemill.requests import NewTask

Keyed: TypeAlias = tuple[str, str]
"""An idempotency key and the hash of the request that it stands for."""

_OWN: Final = frozenset({"_id", "payload", "idempotency_key", "request_hash"})
_simple_options: Final = attrgetter(
    "name", "queue", "priority", "delay_sec", "not_before", "expires_at", "max_retries", "timeout_sec"
)
_ID: Final = b"\x07_id\x00"
_PAYLOAD: Final = b"\x03payload\x00"
_END: Final = b"\x00"
_AROUND: Final = len(bson.encode({}))
_ID_BYTES: Final = 12


class _Common(NamedTuple):
    """The fields of a document that are not its own, as BSON, and how long it is without those that are."""

    before_payload: bytes
    behind_it: bytes
    size: int


class Encoder:
    """Makes the documents that `new_document` makes, of tasks that mostly differ in their payload.

    A document is joined of parts that are BSON already: its length, its fields one after the other, and a NUL.
    """

    def __init__(self, *, now: datetime, trace: Mapping[str, str] | None = None) -> None:
        self._now = now
        self._trace = trace
        self._common: dict[object, _Common] = {}

    def documents(
        self,
        requests: Sequence[NewTask],
        *,
        payloads: Sequence[bytes],
        ids: Sequence[ObjectId],
        keyed: Sequence[Keyed | None],
    ) -> list[RawBSONDocument]:
        """Return the documents of new tasks; of each, its payload is given as BSON, its id, and its key or ``None``."""
        documents = []
        for request, payload, task_id, key in zip(requests, payloads, ids, keyed, strict=True):
            options = _options(request)
            common = self._common.get(options) or self._encoded(request, options)
            key_fields = b"" if key is None else _fields({"idempotency_key": key[0], "request_hash": key[1]})
            length = (common.size + len(payload) + len(key_fields)).to_bytes(4, "little")
            head = (length, _ID, task_id.binary, common.before_payload, _PAYLOAD)
            documents.append(RawBSONDocument(b"".join((*head, payload, common.behind_it, key_fields, _END))))
        return documents

    def _encoded(self, request: NewTask, options: object) -> _Common:
        document = new_document(request, now=self._now, trace=self._trace)
        names = list(document)
        place = names.index("payload")
        before_payload, behind_it = (
            _fields({name: document[name] for name in some if name not in _OWN})
            for some in (names[:place], names[place:])
        )
        size = _AROUND + len(_ID) + _ID_BYTES + len(before_payload) + len(_PAYLOAD) + len(behind_it)
        self._common[options] = _Common(before_payload, behind_it, size)
        return self._common[options]


def _options(request: NewTask) -> object:
    """Return all that `new_document` looks at in *request*, but for what is the document's own."""
    if request.retry is None:
        return _simple_options(request)
    # Which of its fields were given counts, too, and makes no difference to whether two are equal.
    return _simple_options(request), request.retry, frozenset(request.retry.model_fields_set)


def _fields(document: Mapping[str, Any]) -> bytes:
    """Return what is inside of a BSON document: all but its length in front and the NUL at its end."""
    return bson.encode(document)[4:-1]
