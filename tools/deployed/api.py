"""A caller of the HTTP API, and one that calls it all the time."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

ANSWER_WITHIN_SEC: Final = 30.0
"""As the API Gateway has it."""

LOAD_PAUSE_SEC: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer; *body* is JSON, or text where it is none."""

    status: int
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The HTTP API of a stack, at *url*, for the caller with the API key *key*."""

    url: str
    key: str | None

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send one request; underscores in the names of headers stand for hyphens."""
        given = {"Content-Type": "application/json", **({"x-api-key": self.key} if self.key else {})}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=given)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_SEC) as answer:
                return Answer(status=answer.status, body=_read(answer.read()))
        except urllib.error.HTTPError as error:
            return Answer(status=error.code, body=_read(error.read()))

    def enqueue(self, name: str, payload: dict[str, Any], **fields: Any) -> str:  # noqa: ANN401 - any JSON
        """Enqueue a task and return its id."""
        answer = self.call("POST", "/tasks", {"name": name, "payload": payload, **fields})
        if answer.status != HTTPStatus.ACCEPTED:
            raise AssertionError(f"POST /tasks answered {answer.status}: {answer.body}")
        return str(answer.body["id"])

    def read_status(self, task_id: str) -> str | None:
        """Return the status of a task; ``None`` where it is no task any more."""
        answer = self.call("GET", f"/tasks/{task_id}")
        return None if answer.status == HTTPStatus.NOT_FOUND else str(answer.body["status"])


@dataclass(slots=True)
class Load:
    """A client that enqueues one task after the other, each with its own key and once only, until it is stopped.

    Attributes:
        task_ids: Of the tasks that the API answered 202 for.
        errors: What else it answered, or why it did not.
        longest_sec: Of all answers, the time of the one that took longest.
    """

    api: Api
    task_ids: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    longest_sec: float = 0.0
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, after the call under way."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(ANSWER_WITHIN_SEC + 5)

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(LOAD_PAUSE_SEC):
            number += 1
            began_at = time.monotonic()
            try:
                answer = self.api.call(
                    "POST", "/tasks", {"name": "noop", "payload": {"load": number}}, Idempotency_Key=f"load-{number}"
                )
                if answer.status == HTTPStatus.ACCEPTED:
                    self.task_ids.append(answer.body["id"])
                else:
                    self.errors.append(f"request {number}: {answer.status} {answer.body}")
            except (OSError, ValueError, TypeError, KeyError) as error:
                self.errors.append(f"request {number}: {type(error).__name__}: {error}")
            self.longest_sec = max(self.longest_sec, time.monotonic() - began_at)


def _read(content: bytes) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(content or b"null")
    except ValueError:
        return content.decode(errors="replace")
