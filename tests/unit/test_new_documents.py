"""New tasks by the thousand: the same documents as of single ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import bson
from bson import ObjectId

from tests.fixtures import T0
from tests.unit.requesting import wanted
from tidemill.enqueue.documents import Encoder, new_document
from tidemill.requests.tasks import NewTask

TRACE = {"source": "a", "correlation_id": "b"}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"name": "other"},
    {"queue": "eu"},
    {"priority": 3},
    {"delay_sec": 1.5},
    {"not_before": T0 + timedelta(hours=1)},
    {"not_before": T0 - timedelta(hours=1)},
    {"expires_at": T0 + timedelta(hours=2)},
    {"retry": "patient"},
    {"retry": {"max_retries": 3}},
    {"retry": {"max_retries": 3, "base_sec": 5.0}},
    {"max_retries": 0},
    {"timeout_sec": 3},
    {"payload": {}},
    {"payload": {"é": [{"$ref": "x", "a": None}, b"\x00", 2.5]}},
    {"idempotency_key": "k"},
    {"idempotency_key": "another"},
]


def encoded(requests: list[NewTask]) -> list[tuple[ObjectId, bytes]]:
    """The documents of *requests* as they are stored, each with its id."""
    ids = [ObjectId() for _ in requests]
    keyed = [None if one.idempotency_key is None else (one.idempotency_key, one.hash()) for one in requests]
    payloads = [bson.encode(one.payload) for one in requests]
    documents = Encoder(now=T0, trace=TRACE).documents(requests, payloads=payloads, ids=ids, keyed=keyed)
    return [(task_id, bytes(one.raw)) for task_id, one in zip(ids, documents, strict=True)]


def test_of_many_each_is_the_document_of_a_single_one_whatever_the_others_ask_for() -> None:
    requests = [wanted(**{"payload": {"n": n}} | options) for n, options in enumerate(OPTIONS * 2)]

    for request, (task_id, document) in zip(requests, encoded(requests), strict=True):
        single = new_document(request, now=T0, trace=TRACE, task_id=task_id)
        assert bson.decode(document) == bson.decode(bson.encode(single))


def test_fields_are_stored_in_the_order_of_a_single_one() -> None:
    request = wanted(payload={"n": 1})
    [(_, document)] = encoded([request])

    assert list(bson.decode(document)) == list(new_document(request, now=T0))
