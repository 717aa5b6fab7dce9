"""What goes wrong between a green test run and a deployment: section 11 of the field's faults.

Imports without an environment are in tests/handlers/test_cold_imports.py (F95, F96), what a repeated invocation does
in tests/features/execute/test_field_faults_leases.py (F93), and missing variables in tests/handlers/test_settings.py
(F95).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, PyMongoError

from tests.template.translating import ROOT
from tests.template.wiring import edges, functions, named
from tidemill import Queue
from tidemill.clock import truncate_to_ms
from tidemill.requests.validation import MAX_PAYLOAD_BYTES, UnfitError, encode_payload
from tools.pages import list_pages

EXPRESSION = re.compile(r"\b(?:rate\(\d|cron\()[^()]*\)")
AWARE = CodecOptions[dict[str, Any]](tz_aware=True)
FALLEN_FOR = [
    "cron(*/5 * * * *)", "cron(0 8 * * * *)", "rate(1 minutes)", "rate(5 minute)", "rate(0 minutes)", "rate(1 second)",
]  # fmt: skip
STORED = [
    {"$gt": "", "a.b": 1, "": {"$where": "1"}},
    {"low": -(2**63), "high": 2**63 - 1},
    {"tenth": 0.1, "whole": 1.0, "negative": -0.0},
    {"text": "nul \x00, \U0001f600, e\u0301, \u202eright to left"},
    {"deep": [[[{"er": [None, True, []]}]]]},
]
REFUSED: list[dict[str, Any]] = [{"n": 2**63}, {"a\x00b": 1}, {"s": "\ud83c"}, {1: "a number for a name"}]  # type: ignore[dict-item]


def ticks(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The schedules of what the next tick repeats anyway: all but those that enqueue."""
    found = named(template, "AWS::Scheduler::Schedule")
    return {name: one for name, one in found.items() if target(one) != "EnqueueFunction"}


def target(schedule: dict[str, Any]) -> str:
    name: str = schedule["Target"]["Arn"]["Fn::GetAtt"][0]
    return name


def test_a_tick_that_failed_is_repeated_by_nobody_and_never_after_the_next_one(template: dict[str, Any]) -> None:  # F93
    configs = {one["FunctionName"]["Ref"]: one for one in named(template, "AWS::Lambda::EventInvokeConfig").values()}

    assert configs.keys() == functions(template).keys()  # without one Lambda repeats twice, for six hours
    assert ticks(template)
    for schedule in ticks(template).values():
        for repeating in (schedule["Target"]["RetryPolicy"], configs[target(schedule)]):
            assert repeating["MaximumRetryAttempts"] == 0
            assert repeating["MaximumEventAgeInSeconds"] <= 60


def test_only_a_schedule_that_enqueues_is_repeated_and_it_carries_what_makes_that_one_task(  # F93
    template: dict[str, Any],
) -> None:
    others = named(template, "AWS::Scheduler::Schedule").keys() - ticks(template).keys()

    assert others == {"EnqueueFunctionRecurringExample"}
    for name in others:
        sent = named(template, "AWS::Scheduler::Schedule")[name]["Target"]["Input"]
        assert {"<aws.scheduler.schedule-arn>", "<aws.scheduler.scheduled-time>"} <= set(re.findall(r"<[^>]+>", sent))


def test_every_expression_deployed_or_shown_is_one_that_eventbridge_takes(  # F94
    template: dict[str, Any],
) -> None:
    pattern = template["Parameters"]["ExecuteSchedule"]["AllowedPattern"]
    texts = [ROOT / "template.yaml", *list_pages()]
    shown = {one for path in texts for one in EXPRESSION.findall(path.read_text(encoding="utf-8"))}
    deployed = {str(one["ScheduleExpression"]) for one in named(template, "AWS::Scheduler::Schedule").values()}

    assert deployed - shown == {str({"Ref": "ExecuteSchedule"})}
    assert [one for one in shown if not re.fullmatch(pattern, one)] == []


@pytest.mark.parametrize("expression", FALLEN_FOR)
def test_an_expression_that_only_the_cloud_would_reject_is_rejected_here(  # F94
    template: dict[str, Any], expression: str
) -> None:
    assert not re.fullmatch(template["Parameters"]["ExecuteSchedule"]["AllowedPattern"], expression)


def test_no_stand_in_for_mongodb_is_installed_or_used() -> None:  # F97
    needed = (ROOT / "requirements/dev.txt").read_text(encoding="utf-8")
    imported = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }

    stand_ins = {"mongomock", "mongomock_motor", "pymongo_inmemory", "montydb"}
    assert imported & stand_ins == set()
    assert [name for name in stand_ins if re.search(rf"^{name.replace('_', '[-_]')}\b", needed, re.MULTILINE)] == []


@pytest.mark.parametrize("payload", STORED)
def test_what_our_check_lets_through_comes_back_as_it_was(  # F97
    db: Database[Any], payload: dict[str, Any]
) -> None:
    task_id = Queue(db).enqueue("noop", payload)

    [found] = db["tasks"].with_options(AWARE).find({"_id": task_id})

    assert encode_payload(payload, max_bytes=MAX_PAYLOAD_BYTES)
    assert bson.encode(found["payload"]) == bson.encode(payload)  # 1.0 is not 1, -0.0 is not 0.0, order counts


@pytest.mark.parametrize("payload", REFUSED)
def test_what_our_check_refuses_could_not_be_stored(db: Database[Any], payload: dict[str, Any]) -> None:  # F97
    with pytest.raises(UnfitError):
        encode_payload(payload, max_bytes=MAX_PAYLOAD_BYTES)
    with pytest.raises((bson.errors.BSONError, OverflowError, UnicodeEncodeError, PyMongoError)):
        db["tasks"].insert_one({"payload": payload})


def test_the_server_keeps_milliseconds_and_our_clock_says_no_more(db: Database[Any]) -> None:  # F97
    at = datetime(2031, 7, 1, 9, 0, 0, 123_999, tzinfo=UTC)

    db["times"].insert_one({"raw": at, "ours": truncate_to_ms(at)})
    [found] = db["times"].with_options(AWARE).find()

    assert found["raw"] == truncate_to_ms(at) == found["ours"]
    assert at - found["raw"] < timedelta(milliseconds=1)


def test_one_key_is_one_task_by_the_servers_own_index(db: Database[Any]) -> None:  # F97
    queue = Queue(db)
    queue.enqueue("noop", {}, idempotency_key="order-7")
    [task] = db["tasks"].find()

    with pytest.raises(DuplicateKeyError):
        db["tasks"].insert_one(task | {"_id": bson.ObjectId()})


def test_what_no_mock_would_start_is_read_from_the_template(template: dict[str, Any]) -> None:  # F97
    started = {edge.target for edge in edges(template)}

    assert {target(one) for one in ticks(template).values()} == {
        "ExecuteFunction",
        "ReclaimFunction",
        "ArchiveFunction",
    }
    assert functions(template).keys() <= started
