"""Lambda and EventBridge, as far as a stack uses them: they run its built functions in containers."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.cloudformation.intrinsics import REGION
from tests.end_to_end.deployed.built import Asynchronous, Deployment, Function, Schedule
from tests.end_to_end.deployed.chains import MAX_INVOCATIONS, count_invocations, extend_trace, new_trace
from tests.end_to_end.deployed.container import Container, End, Ended, Invocation
from tests.end_to_end.deployed.permissions import allowed

BEFORE_RETRY_SEC: Final = 0.1
"""Lambda waits a minute before it repeats an asynchronous invocation, and two before the second time."""

SECRET_KEY: Final = "S3cr3t-of-the-role"
SESSION_TOKEN: Final = "S3cr3t-of-the-session"


class ClosedError(Exception):
    """The stack is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What whoever invokes a function is told; *error* is ``Unhandled`` or nothing."""

    request_id: str
    error: str | None
    content: bytes

    @property
    def value(self) -> Any:
        """What the function returned, or the kind and message of its failure."""
        return json.loads(self.content, parse_constant=_no_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The line REPORT of an invocation, or what it is made of."""

    function: str
    request_id: str
    pid: int
    how: End
    init_ms: float | None
    duration_ms: float


@dataclass(slots=True)
class Cloud:
    """Runs the functions of one *deployment*, whose code lies unpacked in *code*.

    Attributes:
        reports: One for each invocation that ended.
        handed_over: Records of failures, each with the ARN of its destination.
        undelivered: Those whose destination the function's role does not allow.
        queue: Takes a message to a queue, by its ARN.
        dies: Whether the container dies between the work of a function and its answer, by logical id and event.
    """

    deployment: Deployment
    code: Path
    outputs: Path
    python: Path
    environment: Mapping[str, str]
    reports: list[Report] = field(default_factory=list)
    handed_over: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    undelivered: list[dict[str, Any]] = field(default_factory=list)
    queue: Callable[[str, str], None] = lambda *_: None
    dies: Callable[[str, bytes], bool] = lambda *_: False
    _idle: defaultdict[str, list[Container]] = field(default_factory=lambda: defaultdict(list))
    _all: list[Container] = field(default_factory=list)
    _started: Counter[str] = field(default_factory=Counter)
    _under_way: set[Future[Answer]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    def function(self, name: str) -> Function:
        """Return a function by its logical id, its name or its ARN.

        Raises:
            KeyError: There is none.
        """
        for one in self.deployment.functions.values():
            if name in {one.logical, one.name, one.arn}:
                return one
        raise KeyError(name)

    def stops(self, name: str, trace: str) -> bool:
        """Tell whether recursive loop detection stops one more invocation of a function in the chain of *trace*."""
        function = self.function(name)
        return not function.allows_recursion and count_invocations(trace, function.arn) >= MAX_INVOCATIONS

    def invoke(
        self, name: str, event: Any = None, *, request_id: str | None = None, trace: str | None = None
    ) -> Answer:
        """Invoke a function and wait for its answer; without a *trace* a chain begins here."""
        function = self.function(name)
        payload = event if isinstance(event, bytes) else json.dumps({} if event is None else event).encode()
        invocation = Invocation(
            request_id=request_id or str(uuid.uuid4()),
            arn=function.arn,
            payload=payload,
            timeout=function.timeout,
            trace=extend_trace(trace or new_trace(), function.arn),
        )
        container = self._container(function)
        ended = container.run(invocation)
        if ended.how == "response" and self.dies(function.logical, payload):
            container.stop()
            ended = replace(ended, how="exit", content=b'{"errorType": "Runtime.ExitError"}')
        self._note(function, container, invocation, ended)
        error = None if ended.how == "response" else "Unhandled"
        return Answer(request_id=invocation.request_id, error=error, content=ended.content)

    def send(self, name: str, event: Any, *, trace: str | None = None) -> Future[Answer]:
        """Invoke a function asynchronously; the future has what the last try led to.

        Without a *trace* a chain begins here. Where the chain is stopped, the future is cancelled.
        """
        function, done = self.function(name), Future[Answer]()
        with self._lock:
            if self._is_closed:  # by a container that is about to end
                done.cancel()
                return done
            self._under_way.add(done)
        threading.Thread(target=self._deliver, args=(function, event, trace or new_trace(), done), daemon=True).start()
        return done

    def tick(self, function: str) -> Future[Answer]:
        """Do what the schedule of a function does at its next time."""
        [schedule] = [one for one in self.deployment.schedules.values() if one.target == self.function(function).arn]
        return self.fire(schedule)

    def fire(self, schedule: Schedule, **placeholders: str) -> Future[Answer]:
        """Do what a schedule does at its next time, as the role it has."""
        assert allowed(self.deployment.statements[schedule.role], "lambda:InvokeFunction", schedule.target)
        payload = schedule.payload
        for name, value in placeholders.items():
            payload = payload.replace(f"<aws.scheduler.{name.replace('_', '-')}>", value)
        return self.send(schedule.target, json.loads(payload))

    def http(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Do what the HTTP API does with a request."""
        name = self.deployment.routes[event["httpMethod"], event["resource"]]
        answer = self.invoke(name, event)
        assert answer.error is None, answer.content
        told: dict[str, Any] = answer.value
        return told

    def calm(self, *, within: float = 60.0) -> None:
        """Wait until no asynchronous invocation is under way, nor what came of one."""
        until = time.monotonic() + within
        while self._under_way:
            assert time.monotonic() < until, "still busy"
            time.sleep(0.005)

    def containers(self, function: str) -> list[Container]:
        """Return the containers of a function that live."""
        logical = self.function(function).logical
        return [one for one in self._all if one.is_alive and one.output.name.startswith(f"{logical}-")]

    def recall(self, function: str) -> None:
        """End the idle containers of a function, as Lambda does when it likes: the next start is a cold one."""
        with self._lock:
            idle = self._idle.pop(self.function(function).logical, [])
        for container in idle:
            container.stop()

    def log(self, function: str = "") -> str:
        """Return what the containers of a function, or all of them, have written."""
        paths = sorted(self.outputs.glob(f"{self.function(function).logical if function else ''}*-*.log"))
        return "".join(path.read_text(errors="replace") for path in paths)

    def close(self) -> None:
        """End every container; there will be no other."""
        with self._lock:
            self._is_closed = True
        for container in self._all:
            container.stop()

    def _container(self, function: Function) -> Container:
        with self._lock:
            if self._is_closed:
                raise ClosedError
            idle = self._idle[function.logical]
            while idle:
                container = idle.pop()
                if container.is_alive:
                    return container
            self._started[function.logical] += 1
            number = self._started[function.logical]
            container = Container(
                [str(self.python), "-m", "awslambdaric", function.handler],
                env=self._environment_of(function, number),
                cwd=self.code / "task" / function.logical,
                output=self.outputs / f"{function.logical}-{number}.log",
            )
            self._all.append(container)
        return container

    def _environment_of(self, function: Function, number: int) -> dict[str, str]:
        """Return the variables that Lambda sets, and those of the template; there is no HOME."""
        task = self.code / "task" / function.logical
        lambdas = {
            "PATH": os.defpath,
            "LANG": "en_US.UTF-8",
            "TZ": ":UTC",
            "PYTHONPATH": f"{task}:{self.code / 'opt' / function.logical / 'python'}",
            "LAMBDA_TASK_ROOT": str(task),
            "_HANDLER": function.handler,
            "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory),
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"{function.name}-logs",
            "AWS_LAMBDA_LOG_FORMAT": function.log_format,
            "AWS_LAMBDA_LOG_LEVEL": function.log_level,
            "AWS_LAMBDA_LOG_STREAM_NAME": f"2025/11/27/[$LATEST]{number:032x}",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": f"{self.deployment.stack.name}.{function.logical}",
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_SESSION_TOKEN": SESSION_TOKEN,
        }
        return {**lambdas, **self.environment, **function.variables}

    def _note(self, function: Function, container: Container, invocation: Invocation, ended: Ended) -> None:
        report = Report(
            function=function.logical,
            request_id=invocation.request_id,
            pid=container.pid,
            how=ended.how,
            init_ms=ended.init_ms,
            duration_ms=ended.duration_ms,
        )
        with self._lock:
            self.reports.append(report)
            if ended.how in {"response", "error"}:
                self._idle[function.logical].append(container)

    def _deliver(self, function: Function, event: Any, trace: str, done: Future[Answer]) -> None:
        how = self.deployment.asynchronous.get(function.name, Asynchronous())
        try:
            if self.stops(function.name, trace):
                self._hand_over(function, how.on_failure, _stopped(function, event), trace=trace)
                done.cancel()
                return
            answer = self._tried(function, event, tries=1 + how.retries, trace=trace)
            if answer.error is not None and not self._is_closed:
                record = _failure(function, event, answer, tries=1 + how.retries)
                self._hand_over(function, how.on_failure, record, trace=extend_trace(trace, function.arn))
            done.set_result(answer)
        except ClosedError:
            done.cancel()
        except BaseException as error:
            done.set_exception(error)
            raise
        finally:
            with self._lock:
                self._under_way.discard(done)

    def _tried(self, function: Function, event: Any, *, tries: int, trace: str) -> Answer:
        """Invoke it until it succeeds, under one request id, as Lambda does; return the last answer."""
        answer = self.invoke(function.name, event, trace=trace)
        for _ in range(tries - 1):
            if answer.error is None or self._is_closed:
                break
            time.sleep(BEFORE_RETRY_SEC)
            answer = self.invoke(function.name, event, request_id=answer.request_id, trace=trace)
        return answer

    def _hand_over(self, function: Function, destination: str | None, record: dict[str, Any], *, trace: str) -> None:
        """Send the record of a failure where it belongs, if anywhere, as the function's own role."""
        if destination is None:
            return
        to_queue = destination.split(":")[2] == "sqs"
        action = "sqs:SendMessage" if to_queue else "lambda:InvokeFunction"
        if not allowed(self.deployment.statements[function.role], action, destination):
            self.undelivered.append(record)
            return
        self.handed_over.append((destination, record))
        if to_queue:
            self.queue(destination, json.dumps(record))
        else:
            self.send(destination, record, trace=trace)


def _stopped(function: Function, event: Any) -> dict[str, Any]:
    """Return the record of an event that Lambda dropped before it was run.

    AWS documents no condition for a stopped chain; the name here is ours. Of an event that was never run there is no
    response.
    """
    return {
        "version": "1.0",
        "timestamp": _now(),
        "requestContext": {
            "requestId": str(uuid.uuid4()),
            "functionArn": f"{function.arn}:$LATEST",
            "condition": "RecursiveInvocation",
            "approximateInvokeCount": 0,
        },
        "requestPayload": event,
    }


def _failure(function: Function, event: Any, answer: Answer, *, tries: int) -> dict[str, Any]:
    """Return what Lambda tells the destination of a failure; ``events/execute_failed.json`` is one."""
    return {
        "version": "1.0",
        "timestamp": _now(),
        "requestContext": {
            "requestId": answer.request_id,
            "functionArn": f"{function.arn}:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": tries,
        },
        "requestPayload": event,
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "responsePayload": answer.value,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _no_json(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
