"""Who enqueues: an application by the client, and others over HTTP; every acknowledgement is noted."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from bson import ObjectId
from pymongo.database import Database

from tests.handlers.calls import request
from tidemill import Queue
from tools.chaos.load.container import Container, RefusedError
from tools.chaos.load.work import KINDS, Piece

LIFE: Final = timedelta(seconds=10)
"""Of an invocation of the function, as deployed."""

FEW: Final = 8
"""So many at most are enqueued one by one."""


class Front:
    """Enqueues pieces, each time in another way. For one thread.

    Attributes:
        accepted: What was acknowledged, by id.
        broken: What it was told that it should not have been.
    """

    def __init__(self, db: Database[Any], container: Container, *, rng: random.Random, keys_kept_sec: float) -> None:
        self.accepted: dict[str, Piece] = {}
        self.broken: list[str] = []
        self._queue = Queue(db)
        self._container = container
        self._rng = rng
        self._keys_kept_sec = keys_kept_sec
        self._ways = (self._many, self._one_by_one, self._http_batch, self._http_one_by_one)

    def send(self, pieces: Sequence[Piece]) -> None:
        """Enqueue *pieces*; those with a key again, and cancel those that are to be cancelled."""
        self._send(pieces, self._rng.choice(self._ways if len(pieces) <= FEW else self._ways[::2]))

    def send_in_every_way(self, pieces: Iterator[Piece]) -> None:
        """Enqueue a few of *pieces* in each way: the first time in a container leaves some memory in use."""
        for way in self._ways:
            self._send(list(islice(pieces, FEW)), way)

    def _send(self, pieces: Sequence[Piece], way: Callable[[Sequence[Piece]], list[str]]) -> None:
        began = time.monotonic()
        ids = dict(zip((one.n for one in pieces), way(pieces), strict=True))
        self.accepted |= {ids[one.n]: one for one in pieces}
        if keyed := [one for one in pieces if KINDS[one.kind].is_keyed]:
            again = way(keyed)
            is_kept = time.monotonic() - began < self._keys_kept_sec
            self._compare(keyed, [ids[one.n] for one in keyed], again, is_kept=is_kept)
        for one in pieces:
            if KINDS[one.kind].ends == "cancelled":
                self._queue.cancel(ObjectId(ids[one.n]))

    def _compare(self, pieces: Sequence[Piece], ids: Sequence[str], again: Sequence[str], *, is_kept: bool) -> None:
        for piece, first, second in zip(pieces, ids, again, strict=True):
            self.accepted[second] = piece
            if first != second and is_kept:
                self.broken.append(f"the key of {first} made another task, {second}")

    def _many(self, pieces: Iterable[Piece]) -> list[str]:
        return [str(one) for one in self._queue.enqueue_many([piece.fields for piece in pieces])]

    def _one_by_one(self, pieces: Iterable[Piece]) -> list[str]:
        return [self._one(**piece.fields) for piece in pieces]

    def _one(self, *, delay_sec: float | None = None, **fields: Any) -> str:
        delay = None if delay_sec is None else timedelta(seconds=delay_sec)
        return str(self._queue.enqueue(delay=delay, **fields))

    def _http_batch(self, pieces: Iterable[Piece]) -> list[str]:
        told = self._post("/tasks/batch", {"tasks": [piece.fields for piece in pieces]})
        return [one["id"] for one in told["tasks"]]

    def _http_one_by_one(self, pieces: Iterable[Piece]) -> list[str]:
        ids: list[str] = []
        for piece in pieces:
            fields = dict(piece.fields)
            key = fields.pop("idempotency_key", None)
            headers = {} if key is None else {"Idempotency-Key": key}
            ids.append(self._post("/tasks", fields, headers)["id"])
        return ids

    def _post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
        event = request(path=path, body=body, headers=headers, resource=path)
        answer = self._container.invoke("enqueue", event, remaining=LIFE)
        if answer["statusCode"] not in {200, 202}:
            raise RefusedError(f"{path} was answered {answer['statusCode']}: {answer['body']:.300}")
        told: dict[str, Any] = json.loads(answer["body"])
        return told
