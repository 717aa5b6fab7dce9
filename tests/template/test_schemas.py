"""The JSON Schemas in `events/schemas`: written from the models, of one mind with them, and kept to by every event."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, meta
from pydantic import ValidationError

from tidemill.admin.api import OPERATIONS, read_operation
from tidemill.control.task_types import Declarations
from tidemill.enqueue.rules import find_problems, make_http_rules, make_submission
from tidemill.errors import InvalidRequestError
from tidemill.http.models import Batch, HttpTask
from tidemill.requests.events import ExecuteRequest, SweepRequest, find_dead_owner, is_redelivery, read_direct
from tidemill.requests.tasks import MAX_TIMEOUT_SEC, NewTask
from tidemill.requests.validation import parse_request
from tools import schemas

EVENTS = Path(__file__).parents[2] / "events"
DOCUMENTS = schemas.documents()
VALIDATORS = {name: Draft202012Validator(document) for name, document in DOCUMENTS.items()}
OVER_HTTP = make_http_rules("c", is_single=False, max_timeout=timedelta(seconds=MAX_TIMEOUT_SEC))


def refuse_over_http(tasks: Sequence[NewTask]) -> None:
    names, queues = {task.name: {"http": True} for task in tasks}, frozenset(task.queue for task in tasks)
    submission = make_submission(tasks, rules=OVER_HTTP)
    known = Declarations(read_at=0, types=names, queues=queues)
    problems = find_problems(submission, known=known, now=datetime.now(UTC))
    if problems:
        raise InvalidRequestError(problems)


def the_dead(event: object) -> str:
    owner = find_dead_owner(event)
    if owner is None:
        raise InvalidRequestError([])
    return owner


def redelivered(event: object) -> None:
    if not is_redelivery(event):
        raise InvalidRequestError([])


READERS: dict[str, Callable[[Any], object]] = {
    "task": lambda body: refuse_over_http([HttpTask.model_validate(body).add_key(None)]),
    "batch": lambda body: refuse_over_http(Batch.model_validate(body).tasks),
    "direct": read_direct,
    "retries": redelivered,
    "execute": lambda event: parse_request(ExecuteRequest, event),
    "sweep": lambda event: parse_request(SweepRequest, event),
    "failure": the_dead,
    "operate": read_operation,
}
NOON = "2026-07-01T12:00:00Z"
TASK = {
    "name": "noop", "payload": {"n": 1}, "queue": "eu", "priority": 5, "delay_sec": 2, "not_before": None,
    "expires_at": "2026-07-01T12:00:00.125+01:00", "max_retries": 3, "timeout_sec": 20,
    "retry": {
        "max_retries": 2, "strategy": "linear", "base_sec": 5, "factor": 2, "max_sec": 600, "jitter": "none",
        "jitter_factor": 0.5,
    },
}  # fmt: skip
FILTERED = {"fingerprint": "f", "name": "noop", "queue": "eu", "since": NOON, "until": "2026-07-02T12:00:00Z"}
WORKING: dict[str, list[Any]] = {
    "task": [TASK, TASK | {"delay_sec": None, "not_before": NOON, "retry": "patient"}],
    "batch": [{"tasks": [TASK | {"idempotency_key": "order-7"}, {"name": "noop", "payload": {}}]}],
    "direct": [
        TASK | {"idempotency_key": "order-7"},
        {"name": "noop", "payload": {}, "idempotency_key": "k", "occurrence": {"schedule": "s", "at": NOON}},
        {"tasks": [TASK | {"idempotency_key": "order-7"}]},
        {"tasks": [TASK | {"idempotency_key": None}], "occurrence": {"schedule": "s", "at": NOON}},
    ],
    "execute": [
        {
            "source": "tick", "queues": ["eu"], "lane": "retry", "selection": "weighted", "batch_size": 9,
            "concurrency": 9,
        },
    ],
    "sweep": [{}],
    "retries": [
        json.loads((EVENTS / f"{name}.json").read_text()) for name in ("retries", "retries_schedule")
    ],
    "failure": [json.loads((EVENTS / "execute_failed.json").read_text())],
    "operate": [
        {"op": "queue.list", "limit": 5, "cursor": "eu"},
        *({"op": f"queue.{verb}", "queue": "eu"} for verb in ("declare", "status", "pause", "resume")),
        {
            "op": "queue.set", "queue": "eu", "selection": "weighted", "retry_share": 0.5, "max_in_flight_retries": 9,
            "adaptive": {"scale": 5, "max_sec": 30}, "budget": {"per_minute": 5, "factor": 3},
        },
        {"op": "queue.set", "queue": "eu", "retry_share": None},
        {"op": "caller.list"},
        *({"op": f"caller.{verb}", "key_id": "k9p2s7x4q1", "right": "queues.read"} for verb in ("grant", "revoke")),
        {"op": "task.list", "status": "pending", "queue": "eu", "name": "noop", "limit": 5, "cursor": "c"},
        *({"op": f"task.{verb}", "id": "0" * 24} for verb in ("show", "explain", "retry")),
        {"op": "task.cancel", "id": "0" * 24, "force": True},
        {"op": "stats", "since_sec": 60, "queue": "eu"},
        {"op": "dlq.groups", "limit": 5},
        {"op": "dlq.list", "redriven": None, "limit": 5, "cursor": "c"} | FILTERED,
        {"op": "dlq.show", "id": "0" * 24, "redrives": 1},
        {"op": "dlq.redrive", "limit": 5, "cursor": "c", "per_sec": 5, "drop_expiry": True, "dry_run": True} | FILTERED,
        {"op": "dlq.redrive", "id": "0" * 24, "redrives": 1, "all": False, "queue": None},
        {"op": "dlq.purge", "all": True},
        {"op": "dlq.purge", "id": "0" * 24},
        {"op": "dlq.export", "limit": 5},
    ],
}  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.05, 0.1, 0.5, 1.5, -0.5, 10, 11, -11, 64, 65, 100, 101, 255, 256, 257, 880, 881,
    1000, 1001, 604_800, 604_801, 1_000_000, 1_000_001, 31_622_400, 31_622_401, 2**31 - 1, 2**31, -(2**31),
    10**9, 2 * 10**9,
    2**63, 1e300, "", " ", "x", "a b", " x", "x ", "x\n", "a\nb", "é", "1x", "-x", "x" * 63, "x" * 64, "x" * 65,
    "x" * 100, "x" * 101, "x" * 200, "x" * 201, "x" * 1001, "x" * 2049, "x" * 8193, "x" * 65537, "default", "retry",
    "weighted", "pending", "exponential", "full", "patient", "stats", "dlq.purge", "5", "true", "null", NOON,
    "2026-07-01T12:00:00.123456789-23:59", "2026-07-01t12:00:00z", "2026-07-01T12:00:00", "2026-07-01 12:00:00Z",
    "2026-07-01", "20260701T120000Z", "2026-13-01T12:00:00Z", "2026-07-01T24:00:00Z", "2026-07-01T12:60:00Z",
    "2026-07-01T12:00:00+24:00", "0000-07-01T12:00:00Z", f" {NOON}", "<aws.scheduler.scheduled-time>", [], [None], [1],
    ["x"], ["a b"], [{}], ["x"] * 101, {}, {"a": 1},
]  # fmt: skip
MISSING = object()
OPAQUE = {"payload", "requestPayload", "responsePayload"}
EVENTS_AND_SCHEMAS = {
    "archive": "sweep", "backlog": "execute", "enqueue_direct": "direct", "enqueue_recurring": "direct",
    "retries": "retries", "retries_schedule": "retries",
    "execute_failed": "failure", "reclaim": "sweep", "tick": "execute", "tick_retries": "execute", "wake": "execute",
}  # fmt: skip
OF_AWS = ("failure", "retries")
ROUTELESS = {"execute", "sweep"}
ROUTES = {"/tasks": "task", "/tasks/batch": "batch"}


def taken(name: str, value: object) -> bool:
    """Whether the functions would read *value*."""
    try:
        READERS[name](value)
    except (InvalidRequestError, ValidationError):
        return False
    return True


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of everything in *value* that a schema speaks of: what is in a payload is its function's."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places({} if key in OPAQUE else part, (*path, key))


def with_another(value: Any, path: tuple[str | int, ...], other: object) -> Any:
    """Return *value* with *other*, or nothing, at *path*."""
    if not path:
        return other
    first, rest = path[0], path[1:]
    changed = value.copy()
    if rest:
        changed[first] = with_another(value[first], rest, other)
    elif other is MISSING:
        del changed[first]
    else:
        changed[first] = other
    return changed


def variants(name: str) -> Iterator[Any]:
    """Every working example with one thing in it odd, or gone, or one more."""
    for example in WORKING[name]:
        for path in places(example):
            yield from (with_another(example, path, odd) for odd in ODD)
            if path:
                yield with_another(example, path, MISSING)
            if path and isinstance(path[-1], str):
                yield with_another(example, (*path[:-1], "surplus"), 1)


def is_in_no_order(value: object) -> bool:
    """Whether of two values in *value* the first is above the second: what no schema can tell."""
    if isinstance(value, list):
        return any(map(is_in_no_order, value))
    if not isinstance(value, dict):
        return False
    low, high = value.get("base_sec", 5), value.get("max_sec", 1800)
    since, until = (str(value.get(name) or "").upper() for name in ("since", "until"))
    is_above = isinstance(low, int | float) and isinstance(high, int | float) and low > high
    return is_above or "" < until <= since or any(map(is_in_no_order, value.values()))


def test_the_files_are_what_the_models_say() -> None:
    assert schemas.stale() == []


def test_a_file_that_is_not_what_the_models_say_is_told_and_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "schemas"
    assert schemas.main([], folder=folder) == 0
    (folder / "task.json").write_text("{}")
    (folder / "job.json").write_text("{}")
    capsys.readouterr()

    assert schemas.main(["--check"], folder=folder) == 1
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in told] == ["events/schemas/job.json", "events/schemas/task.json"]
    assert schemas.main([], folder=folder) == 0
    assert schemas.main(["--check"], folder=folder) == 0


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_valid_and_says_what_it_is_of(name: str) -> None:
    document = DOCUMENTS[name]

    assert meta.is_valid(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert document["title"]


def test_every_event_is_of_a_schema_and_fits_it() -> None:
    unfit = []
    for path in sorted(EVENTS.glob("*.json")):
        event = json.loads(path.read_text())
        if "httpMethod" in event:
            value, name = json.loads(event["body"] or "null"), ROUTES.get(event["resource"])
        else:
            value, name = event, EVENTS_AND_SCHEMAS.get(path.stem, "operate")
        if name is not None and not VALIDATORS[name].is_valid(value):
            unfit.append((path.name, name))

    assert unfit == []


def test_the_readme_names_the_schema_of_each_event() -> None:
    rows = [row.split("|")[1:-1] for row in (EVENTS / "README.md").read_text().splitlines() if row.startswith("| `")]
    named = {row[0].strip(" `").removesuffix(".json"): row[2].strip() for row in rows}

    assert set(named.values()) - {""} == {f"[{name}](schemas/{name}.json)" for name in DOCUMENTS}
    for event, link in named.items():
        content = json.loads((EVENTS / f"{event}.json").read_text())
        of_http = ROUTES.get(content["resource"]) if "httpMethod" in content and content["body"] else None
        name = of_http if "httpMethod" in content else EVENTS_AND_SCHEMAS.get(event, "operate")
        assert link == ("" if name is None else f"[{name}](schemas/{name}.json)"), event


def test_there_is_an_example_of_every_operation() -> None:
    assert {example["op"] for example in WORKING["operate"]} == set(OPERATIONS)


@pytest.mark.parametrize("name", WORKING)
def test_what_works_fits(name: str) -> None:
    assert [example for example in WORKING[name] if not taken(name, example)] == []
    assert [example for example in WORKING[name] if not VALIDATORS[name].is_valid(example)] == []


@pytest.mark.parametrize("name", [name for name in WORKING if name not in OF_AWS])
def test_a_schema_refuses_what_the_function_refuses_and_nothing_else(name: str) -> None:
    odd = [value for value in variants(name) if not is_in_no_order(value)]
    of_two_minds = [value for value in odd if taken(name, value) != VALIDATORS[name].is_valid(value)]

    assert of_two_minds == [None] * (name in ROUTELESS)  # is as good as {}, but nobody need send it
    assert {taken(name, value) for value in odd} == {True, False}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", TASK | {"delay_sec": 2, "not_before": NOON}),
        ("task", TASK | {"idempotency_key": "order-7"}),  # goes into the header
        ("batch", {"tasks": [TASK | {"name": "noop"}] * 1001}),
        ("direct", {"detail-type": "Scheduled Event", "source": "aws.events", "detail": {}}),
        ("direct", {"tasks": [TASK], "name": "noop", "payload": {}}),
        ("operate", {"op": "dlq.purge"}),
        ("operate", {"op": "dlq.purge", "all": True, "redrives": 1}),
        ("operate", {"op": "dlq.purge", "all": True, "id": "0" * 24}),
        ("operate", {"op": "dlq.redrive", "queue": "eu", "id": "0" * 24}),
        ("operate", {"op": "queue.set", "queue": "eu"}),
    ],
)
def test_what_excludes_each_other_or_is_missing_is_refused_by_both(name: str, value: object) -> None:
    assert not taken(name, value)
    assert not VALIDATORS[name].is_valid(value)


@pytest.mark.parametrize("name", OF_AWS)
def test_what_fits_a_shape_of_aws_is_read_as_one(name: str) -> None:
    fitting = [value for value in variants(name) if VALIDATORS[name].is_valid(value)]

    assert [value for value in fitting if not taken(name, value)] == []
    assert fitting


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", TASK | {"priority": 1.0}),
        ("task", TASK | {"payload": {"text": "x" * 256 * 1024}}),
        ("task", TASK | {"payload": {"a": 2**63}}),
        ("task", TASK | {"expires_at": "2026-02-30T12:00:00Z"}),
        ("task", TASK | {"retry": {"base_sec": 6, "max_sec": 5}}),
        ("batch", {"tasks": [TASK | {"idempotency_key": "a\u200bb"}]}),
        ("operate", {"op": "dlq.list", "since": NOON, "until": NOON}),
    ],
)
def test_what_no_schema_can_say_the_models_do(name: str, value: object) -> None:
    assert VALIDATORS[name].is_valid(value)
    assert not taken(name, value)
