"""A Lambda context that is unusual: a sentence says what it lacks, and a function that needs nothing of it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pymongo.database import Database

from tests.builders import document
from tests.fixtures import T0
from tests.handlers.calls import request, sample
from tests.handlers.conftest import Deployed
from tidemill import InvalidRequestError

NOOP = {"name": "noop", "payload": {}}
CARD = "4111111111111111"


def give(value: object) -> Any:
    """Return a context whose remaining time is *value*."""
    return SimpleNamespace(aws_request_id="r-9", get_remaining_time_in_millis=lambda: value)


def fail() -> float:
    raise RuntimeError(CARD)


TIMES: dict[str, Callable[[], Any]] = {
    "missing": lambda: SimpleNamespace(aws_request_id="r-9"),
    "no function": lambda: SimpleNamespace(aws_request_id="r-9", get_remaining_time_in_millis=30_000),
    "raising": lambda: SimpleNamespace(aws_request_id="r-9", get_remaining_time_in_millis=fail),
    "None": lambda: give(None),
    "text": lambda: give("30000"),
    "not a number": lambda: give(math.nan),
    "without an end": lambda: give(math.inf),
    "a date in milliseconds": lambda: give(1_790_000_000_000),
    "a mock": lambda: MagicMock(aws_request_id="r-9"),
}
NEEDS_TIME = ("execute", "reclaim", "archive", "enqueue")
IDS: dict[str, Callable[[], Any]] = {
    "nothing": SimpleNamespace,
    "a dictionary": lambda: {"aws_request_id": CARD},
    "an id that is None": lambda: SimpleNamespace(aws_request_id=None, get_remaining_time_in_millis=lambda: 30_000),
    "an empty id": lambda: SimpleNamespace(aws_request_id="", get_remaining_time_in_millis=lambda: 30_000),
    "a mock": MagicMock,
}


def read_event(function: str) -> Any:
    """Return an event for which *function* needs the time that is left."""
    return sample("retries") if function == "enqueue" else None


def refuse_recycling(error: BaseException | None) -> None:
    raise AssertionError(f"the process would end: {error!r}")


def invoke(deployed: Deployed, function: str, event: Any, context: Any) -> Any:
    options = {"on_recycle": refuse_recycling} if function == "execute" else {}
    return deployed.invoke(function, event, context, **options)


@pytest.mark.parametrize("function", NEEDS_TIME)
@pytest.mark.parametrize("make", TIMES.values(), ids=TIMES)
def test_a_function_that_needs_the_time_left_is_refused_in_a_sentence_without_it(  # A15
    deployed: Deployed, db: Database[Any], function: str, make: Callable[[], Any]
) -> None:
    db.tasks.insert_one(document(T0))
    before = list(db.tasks.find())

    with pytest.raises(InvalidRequestError, match=r"^context: .* remaining time .*; pass the context of Lambda"):
        invoke(deployed, function, read_event(function), make())

    [line] = deployed.log()
    assert (line["message"], line["level"], line["error_type"]) == ("failed", "ERROR", "InvalidRequestError")
    assert line["request_id"] == "r-9"
    assert CARD not in deployed.stdout.getvalue()
    assert list(db.tasks.find()) == before


@pytest.mark.parametrize("make", TIMES.values(), ids=TIMES)
def test_requests_and_operations_go_on_without_the_time_left(
    deployed: Deployed, make: Callable[[], Any]
) -> None:  # A15
    assert deployed.http(request(body=NOOP), make()).status == 202
    assert invoke(deployed, "enqueue", NOOP, make())["id"]
    assert "error" not in invoke(deployed, "operate", sample("operate_queue_list"), make())


@pytest.mark.parametrize("make", IDS.values(), ids=IDS)
def test_a_context_without_the_id_of_the_request_is_refused_in_a_sentence(  # A15
    deployed: Deployed, make: Callable[[], Any]
) -> None:
    for event in (NOOP, request(body=NOOP), sample("retries")):
        with pytest.raises(InvalidRequestError, match=r"^context: .*aws_request_id; pass the context of Lambda"):
            invoke(deployed, "enqueue", event, make())
    for function in ("execute", "reclaim", "archive"):
        with pytest.raises(InvalidRequestError, match=r"^context: .*aws_request_id; pass the context of Lambda"):
            invoke(deployed, function, None, make())
    answer = invoke(deployed, "operate", sample("operate_queue_list"), make())

    assert answer["error"]["code"] == "not_allowed"
    assert [problem["field"] for problem in answer["error"]["details"]] == ["context"]
    assert [line["message"] for line in deployed.log()] == ["failed"] * 6 + ["operated"]
    assert CARD not in deployed.stdout.getvalue()


def test_a_refused_context_is_not_logged_under_the_id_of_an_earlier_one(deployed: Deployed) -> None:  # A15
    for function in ("enqueue", "execute", "reclaim", "archive", "operate"):
        event = NOOP if function == "enqueue" else {"op": "queue.list"} if function == "operate" else None
        invoke(deployed, function, event, None)
        deployed.stdout.seek(0)
        deployed.stdout.truncate()
        try:
            invoke(deployed, function, event, SimpleNamespace())
        except InvalidRequestError:
            assert function != "operate"

        [line] = deployed.log()
        assert "request_id" not in line
