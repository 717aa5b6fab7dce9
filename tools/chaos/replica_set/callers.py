"""Who enqueues: applications with the driver of their own, and clients of the HTTP API; each in its own way."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import ConfigurationError, ConnectionFailure, PyMongoError

from tests.handlers import calls
from tidemill import Queue, TidemillError, UnavailableError
from tidemill.model import Backoff, RetryPolicy
from tools.chaos.replica_set.boxes import Box, Died, Place
from tools.chaos.replica_set.container import Raised, Returned
from tools.chaos.replica_set.ledger import BASE_SEC, MAX_SEC, Ledger, Wanted

CALLERS: Final = 4
ANSWER_WITHIN: Final = timedelta(seconds=10)
"""The timeout of the function `enqueue`."""

BUSINESS: Final = "orders"
"""The collection that applications write to in the same transaction."""

RETRYABLE: Final = ("UnavailableError", "HTTP 503", "the container died", "driver: retryable")
"""What callers may be told but an acknowledgement."""


class Callers:
    """Ask for all *orders* between now and *until* (monotonic), a fifth of them at once; `join` waits for the end.

    Who has a key repeats what was not acknowledged, until `stop`; others ask once.
    """

    def __init__(
        self,
        orders: Sequence[Sequence[Wanted]],
        ledger: Ledger,
        *,
        uri: str,
        place: Place,
        until: float,
        rng: random.Random,
    ) -> None:
        self._ledger = ledger
        self._over = threading.Event()
        now = time.monotonic()
        begin = len(orders) // 5
        times = [now] * begin + sorted(rng.uniform(now, until) for _ in orders[begin:])
        self._left = iter(list(zip(times, orders, strict=True)))
        self._lock = threading.Lock()
        self._database = place.variables["MONGODB_DATABASE"]
        self._client = MongoClient[dict[str, Any]](uri, tz_aware=True)
        self._queue = Queue(self._client[self._database])
        self.fronts = [Box("enqueue", place) for _ in range(CALLERS)]
        self._threads = [threading.Thread(target=self._call, args=(front,)) for front in self.fronts]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def join(self, *, until: float) -> bool:
        """Tell whether everything was asked for in time."""
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Return when nothing of it is left."""
        self._over.set()
        while any(thread.is_alive() for thread in self._threads):
            for front in self.fronts:
                front.kill()
            self.join(until=time.monotonic() + 0.1)
        for front in self.fronts:
            front.close()
        self._client.close()

    def _call(self, front: Box) -> None:
        while not self._over.is_set():
            with self._lock:
                at, order = next(self._left, (0.0, ()))
            if not order:
                return
            self._over.wait(max(at - time.monotonic(), 0))
            request_id = str(uuid.uuid4())  # of a direct invocation, and of its repetitions
            while not self._ask(order, front, request_id) and order[0].is_repeated and not self._over.wait(0.1):
                pass

    def _ask(self, order: Sequence[Wanted], front: Box, request_id: str) -> bool:
        """Ask once; true where it was acknowledged."""
        started = time.monotonic()
        ids, refusal = self._asked(order, front, request_id)
        seconds = time.monotonic() - started
        for number, wanted in enumerate(order):
            if refusal is None:
                self._ledger.acknowledged(wanted, ids[number], seconds=seconds)
            else:
                self._ledger.refused(wanted, refusal, seconds=seconds)
        return refusal is None

    def _asked(self, order: Sequence[Wanted], front: Box, request_id: str) -> tuple[list[str], str | None]:
        wanted = order[0]
        match wanted.way:
            case "http" | "http keyed":
                return _posted(wanted, front)
            case "direct":
                return _invoked(wanted, front, request_id)
            case "plain" | "keyed":
                return _kept(lambda: [self._one(wanted)])
            case "many":
                return _kept(lambda: [str(one) for one in self._queue.enqueue_many([_fields(one) for one in order])])
            case "transaction":
                return _kept(lambda: self._together(order))

    def _one(self, wanted: Wanted, session: ClientSession | None = None) -> str:
        policy = RetryPolicy(max_retries=wanted.max_retries, backoff=Backoff(base_sec=BASE_SEC, max_sec=MAX_SEC))
        key = wanted.key if wanted.is_repeated else None
        made = self._queue.enqueue(wanted.kind, wanted.payload, retry=policy, idempotency_key=key, session=session)
        return str(made)

    def _together(self, order: Sequence[Wanted]) -> list[str]:
        def write(session: ClientSession) -> list[str]:
            business = self._client[self._database][BUSINESS]
            business.insert_many([{"_id": one.number} for one in order], session=session)
            return [self._one(one, session) for one in order]

        with self._client.start_session() as session:
            return session.with_transaction(write)


def _kept(ask: Callable[[], list[str]]) -> tuple[list[str], str | None]:
    try:
        return ask(), None
    except UnavailableError:
        return [], "UnavailableError"
    except TidemillError as error:
        return [], f"{type(error).__name__}: {error}"
    except PyMongoError as error:  # of the caller's own transaction; a server that is starting takes no sessions
        labels = ("TransientTransactionError", "UnknownTransactionCommitResult", "RetryableWriteError")
        is_retryable = isinstance(error, ConnectionFailure | ConfigurationError) or any(
            map(error.has_error_label, labels)
        )
        return [], "driver: retryable" if is_retryable else f"driver: {type(error).__name__}: {error}"


def _posted(wanted: Wanted, front: Box) -> tuple[list[str], str | None]:
    headers = {"Idempotency-Key": wanted.key} if wanted.is_repeated else {}
    body = json.dumps(_fields(wanted, keyed=False))
    event = calls.request(body=body, headers=headers)
    match front.invoke(event, request_id=str(uuid.uuid4()), within=ANSWER_WITHIN):
        case Returned(answer=answer):
            status, said = answer["statusCode"], json.loads(answer["body"])
            if status in {HTTPStatus.OK, HTTPStatus.ACCEPTED}:
                return [said["id"]], None
            is_retryable = status == HTTPStatus.SERVICE_UNAVAILABLE and "Retry-After" in answer["headers"]
            return [], f"HTTP {status}" + ("" if is_retryable else f": {answer['headers']} {answer['body']}")
        case other:
            return [], _failed(other)


def _invoked(wanted: Wanted, front: Box, request_id: str) -> tuple[list[str], str | None]:
    match front.invoke(_fields(wanted, keyed=False), request_id=request_id, within=ANSWER_WITHIN):
        case Returned(answer=answer):
            return [answer["id"]], None
        case other:
            return [], _failed(other)


def _failed(answer: Raised | Died) -> str:
    if isinstance(answer, Died):
        return "the container died"
    return answer.kind if answer.kind in RETRYABLE else f"{answer.kind}: {answer.text}"


def _fields(wanted: Wanted, *, keyed: bool = True) -> Mapping[str, Any]:
    fields = {"name": wanted.kind, "payload": wanted.payload, "retry": _retry(wanted)}
    return fields | ({"idempotency_key": wanted.key} if keyed else {})


def _retry(wanted: Wanted) -> dict[str, Any]:
    return {"base_sec": BASE_SEC, "max_sec": MAX_SEC, "max_retries": wanted.max_retries}
