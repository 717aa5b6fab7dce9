"""The HTTP front: API Gateway events on their way into the enqueue handler, and what it answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from bson import ObjectId

from demo.functions import EVENTS, Context, Event, about, event, handler, post
from demo.scenario import Request
from tidemill import TidemillError
from tidemill.model import TaskId

SAMPLES = "events/enqueue_*.json"
TO_CANCEL = "enqueue_to_cancel"
HOST_IN_EVENTS = "https://example.com"


class RefusedError(TidemillError):
    """A task was not accepted that has to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What the demo knows of a task that was answered 202: its row, and where it has to end."""

    behaviour: str
    ends: str


class Front:
    """Sends requests, and keeps the id of every task that was answered 202.

    Attributes:
        answers: The sample events in the order they were sent, with the status of the answer.
    """

    def __init__(self, *, receiver: str) -> None:
        self.accepted: dict[TaskId, Accepted] = {}
        self.answers: list[tuple[str, int]] = []
        self._receiver = receiver
        self._handler = handler("enqueue")

    def send_samples(self) -> None:
        """Send the events of ``events/``: all that enqueue, one of them twice; cancel and read the delayed one."""
        for path in sorted(EVENTS.glob("enqueue_*.json")):
            self._send_sample(path.stem)
        self._send("enqueue_keyed", event("enqueue_keyed"))

    def send(self, request: Request) -> None:
        """Enqueue a task.

        Raises:
            RefusedError: It was not answered 202.
        """
        status, body = self._answer(post(request.body))
        if status != HTTPStatus.ACCEPTED:
            raise RefusedError(f"a task of the demo was not accepted: {status} {json.dumps(body)}")
        self._note(body, behaviour=request.behaviour, ends=request.ends)

    def _send_sample(self, name: str) -> None:
        status, body = self._send(name, event(name, filled_in={HOST_IN_EVENTS: self._receiver}))
        if status != HTTPStatus.ACCEPTED:
            return
        self._note(body, behaviour=SAMPLES, ends="cancelled" if name == TO_CANCEL else "done")
        if name == TO_CANCEL:
            self._send("cancel_task", about("cancel_task", body["id"]))
            self._send("get_task", about("get_task", body["id"]))

    def _note(self, body: dict[str, Any], *, behaviour: str, ends: str) -> None:
        for one in body.get("tasks", [body]):
            self.accepted[ObjectId(one["id"])] = Accepted(behaviour=behaviour, ends=ends)

    def _send(self, name: str, request: Event) -> tuple[int, dict[str, Any]]:
        status, body = self._answer(request)
        self.answers.append((name, status))
        return status, body

    def _answer(self, request: Event) -> tuple[int, dict[str, Any]]:
        answer = self._handler(request, Context(timeout_sec=10))
        if "statusCode" not in answer:  # it was invoked directly
            return HTTPStatus.ACCEPTED, answer
        return answer["statusCode"], json.loads(answer["body"])
