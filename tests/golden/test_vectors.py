"""What others may have kept: hashes, fingerprints, codes, ids, cursors and keys, which must stay the same."""

from __future__ import annotations

import gzip
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import bson
from bson import Decimal128, Int64, ObjectId
from bson.raw_bson import RawBSONDocument

import tidemill
from tests.builders import document
from tests.golden.folding import as_lines
from tests.golden.golden import check
from tests.golden.scenarios import World
from tests.handlers.calls import request
from tidemill.dead_letters.export_format import encode_object, read_object_key
from tidemill.errors import Fail, Retry, Snooze, TaskTimeoutError, TidemillError
from tidemill.requests.tasks import new_task

AT = datetime(2026, 7, 1, 6, 0, tzinfo=UTC)
REQUESTS: tuple[dict[str, Any], ...] = (
    {"name": "noop", "payload": {}},
    {"name": "noop", "payload": {"n": 1}},
    {"name": "noop", "payload": {"n": 1.0}},
    {"name": "noop", "payload": {"b": [1, 2, {"c": None}], "a": "é", "d": True, "at": AT}},
    {"name": "noop", "payload": {}, "queue": "eu", "priority": 5, "max_retries": 0, "timeout_sec": 2.5},
    {"name": "noop", "payload": {}, "delay_sec": 60},
    {"name": "noop", "payload": {}, "not_before": AT, "expires_at": AT + timedelta(days=1)},
    {"name": "noop", "payload": {}, "retry": "patient"},
    {"name": "noop", "payload": {}, "retry": {"strategy": "linear", "base_sec": 60, "max_retries": 4}},
)
MESSAGES = (
    "",
    "connection to 10.0.0.7:27017 refused",
    "order 4711 of customer 'Ada' not found",
    "GET https://example.com/hooks/7?token=abc: 503",
    "task 65f0c1a2b3d4e5f60718293a took 12.5 s at 2026-07-01T06:00:00Z",
    'KeyError: "total" in 0f3c1f9a-dead-4c5e-9b7a-000000000001',
    "mail to ada@example.com bounced",
)


def test_a_request_has_the_hash_it_always_had() -> None:
    check("vectors/request_hash", "".join(f"{new_task(**one).hash()}  {one}\n" for one in REQUESTS))


def test_a_death_has_the_fingerprint_it_always_had(world: World) -> None:
    for number, message in enumerate(MESSAGES):
        error = {"message": message, "code": "ValueError", "at": AT}
        world.db.tasks.insert_one(
            document(AT, _id=number, status="failed", reason="exhausted", finished_at=AT, error=error)
        )

    world.functions.invoke("archive")

    letters = world.db.tasks_dlq.find({}, {"fingerprint": 1}, sort=[("_id", 1)])
    found = [f"{letter['fingerprint']}  {MESSAGES[letter['_id']['task']]}\n" for letter in letters]
    assert len(found) == len(MESSAGES)
    check("vectors/fingerprints", "".join(found))


def test_what_may_be_raised_has_the_name_it_always_had() -> None:
    """The code of a failure is the name of its class."""
    raised = {
        name
        for module in modules()
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, TidemillError | Fail | Retry | Snooze | TaskTimeoutError)
        and value.__module__ == "tidemill.errors"
    }
    check("vectors/error_classes", "".join(f"{name}\n" for name in sorted(raised)))


def test_a_time_of_a_schedule_has_the_ids_it_always_had(world: World) -> None:
    occurrence = {"schedule": "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/x", "at": AT.isoformat()}
    told = world.functions.invoke(
        "enqueue", {"tasks": [{"name": "returns", "payload": {}}] * 3, "occurrence": occurrence}
    )

    check("vectors/occurrence_ids", "".join(f"{task['id']}\n" for task in told["tasks"]))


def test_a_page_has_the_cursor_it_always_had(world: World) -> None:
    for number in range(3):
        world.db.tasks.insert_one(document(AT, _id=f"task-{number}"))
        world.db.tasks.insert_one(document(AT, _id=number, status="failed", reason="exhausted", finished_at=AT,
                                           error={"message": "m", "code": "c", "at": AT}))  # fmt: skip
    world.functions.invoke("archive")
    world.db.tasks_dlq.update_many({}, {"$set": {"dead_lettered_at": AT}})

    pages = {
        "task.list": world.operate("task.list", limit=1),
        "dlq.list": world.operate("dlq.list", limit=1),
    }

    check("vectors/cursors", "".join(f"{name}: {page['next']}\n" for name, page in pages.items()))
    for name, page in pages.items():
        assert world.operate(name, limit=1, cursor=page["next"])


def test_a_copy_in_the_bucket_has_the_key_and_the_content_it_always_had() -> None:
    error = {"message": "m", "code": "c", "at": AT}
    fields: tuple[dict[str, Any], ...] = (
        {"_id": {"task": ObjectId("65f0c1a2b3d4e5f60718293a"), "redrives": 0}},
        {"_id": {"task": "order/7", "redrives": 2}, "payload": {"n": Int64(7), "x": Decimal128("0.10"), "raw": b"a"}},
        {"_id": {"task": 7, "redrives": 0}, "dead_lettered_at": "yesterday", "archived_at": AT},
    )
    found = []
    for changed in fields:
        letter = document(AT, status="failed", reason="exhausted", error=error, dead_lettered_at=AT) | changed
        raw = RawBSONDocument(bson.encode(letter))
        found.append(f"{read_object_key(raw)}\n  {gzip.decompress(encode_object(raw)).decode()}\n")

    check("vectors/exported", "".join(found))


def test_what_is_wrong_with_a_request_has_the_answer_it_always_had(world: World) -> None:
    bodies: tuple[Any, ...] = (
        "", "[]", "{bad", '{"name": "a", "name": "b"}', '{"name": "returns", "payload": {"n": NaN}}',
        {}, {"name": "returns"}, {"name": 7, "payload": []}, {"name": "missing", "payload": {}},
        {"name": "snoozes", "payload": {}}, {"name": "returns", "payload": {}, "queue": "eu"},
        {"name": "returns", "payload": {}, "priority": 11}, {"name": "returns", "payload": {}, "delay_sec": -1},
        {"name": "returns", "payload": {}, "not_before": "yesterday"},
        {"name": "returns", "payload": {}, "retry": "often"},
        {"name": "returns", "payload": {}, "retry": {"strategy": "exponential", "base_sec": 0}},
        {"name": "returns", "payload": {}, "timeout_sec": 9999}, {"name": "returns", "payload": {}, "prioritiy": 1},
        {"name": "returns", "payload": {"$set": {"a.b": 1}}},
    )  # fmt: skip
    answers = [world.functions.http(request(body=body)) for body in bodies]
    answers += [world.functions.http(request("GET", f"/tasks/{task_id}")) for task_id in ("x", "0" * 24)]
    answers += [world.functions.http(request("POST", "/nothing", body={}))]

    texts = [f"{answer.status}\n{as_lines(answer.body.get('error', 'accepted'))}" for answer in answers]
    check("vectors/http_errors", "".join(texts))


def test_each_number_has_the_value_it_always_had() -> None:
    check("vectors/numbers", "".join(sorted(_numbers())))


def modules() -> Iterator[ModuleType]:
    """Every module of the package that can be imported."""
    for found in pkgutil.walk_packages(tidemill.__path__, "tidemill."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def _numbers() -> Iterator[str]:
    for module in modules():
        source = inspect.getsource(module)
        for name, value in vars(module).items():
            is_number = isinstance(value, int | float | timedelta) and not isinstance(value, bool)
            if name.isupper() and is_number and re.search(rf"^{name}\b", source, re.MULTILINE):
                yield f"{module.__name__}.{name} = {value!r}\n"
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if is_own and name.endswith(("Timing", "Limits")):
                yield from (
                    f"{module.__name__}.{name}.{field.name} = {field.default!r}\n"
                    for field in fields(value)
                    if field.default is not MISSING
                )
