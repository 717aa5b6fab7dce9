"""`tidemill dlq redrive`: what goes back, what does not and why, and what was done when it ends too early."""

from __future__ import annotations

import errno
import io
import json
import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from pymongo.database import Database

from tests.buried import bury, letter
from tests.cli.conftest import Answer, CommandLine, Interruption, Terminal
from tests.fixtures import T0
from tests.handlers.lambda_api import replace_lambda_client
from tidemill.aws.lambda_functions import InvokeError, NotInvokedError
from tidemill.cli.operations import RefusedByFunctionError
from tidemill.documents import decode
from tidemill.errors import InvalidRequestError, Problem, RefusedError, SettingsError, UnavailableError
from tidemill.store.connection import Tasks
from tidemill.text import iso_timestamp

HOUR = timedelta(hours=1)
COMPLETED = "the next archive after a minute completes interrupted redrives"
GOES_ON = "run the same command to continue"


def open_letters(died: datetime, count: int, **fields: Any) -> list[dict[str, Any]]:
    return [letter(died - n * HOUR, name="registered", **fields) for n in range(count)]


def test_several_are_redriven_one_after_the_other(
    operator: CommandLine, dead: Tasks, tasks: Tasks, died: datetime
) -> None:
    ids = [str(one) for one in bury(dead, open_letters(died, 3))]

    answer = operator.done("dlq", "redrive", *ids[:2], ids[0], "--json").json

    assert (answer["redriven"], answer["examined"], answer["refused"]) == (2, 2, {})
    assert tasks.count_documents({}) == 2


@pytest.mark.parametrize(("options", "count"), [((), 7), (("--limit", "5"), 5)])
def test_a_limit_is_kept_over_all_pages(
    by_two: CommandLine, dead: Tasks, tasks: Tasks, died: datetime, *, options: tuple[str, ...], count: int
) -> None:  # fmt: skip
    bury(dead, open_letters(died, 7))

    assert by_two.done("dlq", "redrive", "--all", *options, "--json").json["redriven"] == count
    assert tasks.count_documents({}) == count


def test_with_a_rate_tasks_become_due_one_after_the_other(
    operator: CommandLine, dead: Tasks, tasks: Tasks, died: datetime
) -> None:
    bury(dead, open_letters(died, 3))

    operator.done("dlq", "redrive", "--all", "--rate", "0.1")

    due = sorted(raw["due_at"] for raw in tasks.find({}, {"due_at": 1}))
    assert [later - earlier for earlier, later in pairwise(due)] == [timedelta(seconds=10)] * 2


def test_letters_whose_turn_would_be_too_far_away_are_told(deploy: Callable[[Answer], CommandLine]) -> None:
    counts = {"examined": 3, "redriven": 2, "refused": {"too_far_ahead": 1}, "unregistered": {}, "examples": []}
    operator = deploy(lambda _: {"now": iso_timestamp(T0), "database": "db", "dry_run": False, "next": None} | counts)

    said = operator("dlq", "redrive", "--all", "--rate", "0.001")

    assert said.status == 1
    assert "- 1 too_far_ahead: at this --rate they would become due in more than a year" in said.lines


def test_on_a_terminal_a_bar_tells_how_far_it_is(
    operator: CommandLine, dead: Tasks, tasks: Tasks, died: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(dead, open_letters(died, 5))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")

    assert operator("dlq", "redrive", "--all", "--json").json["redriven"] == 5

    assert "redriving" in terminal.getvalue()
    assert "5/5" in terminal.getvalue()
    assert tasks.count_documents({}) == 5


# Too early


@pytest.mark.parametrize(
    ("page", "error", "told"),
    [
        (0, KeyboardInterrupt(), ["0 redriven for certain, up to 1000 more may have been", COMPLETED, GOES_ON]),
        (2, KeyboardInterrupt(), ["4 redriven for certain, up to 1000 more may have been", COMPLETED, GOES_ON]),
        (0, UnavailableError("away"), ["0 redriven for certain, up to 1000 more may have been", COMPLETED, GOES_ON]),
        (1, RefusedError("13"), ["2 redriven for certain, up to 1000 more may have been", COMPLETED, GOES_ON]),
        (1, InvokeError("no answer"), ["2 redriven for certain, up to 1000 more may have been", COMPLETED, GOES_ON]),
        (1, RefusedByFunctionError("away", code="unavailable"),
         ["2 redriven for certain, up to 1000 more may have been", COMPLETED, GOES_ON]),
        (1, RefusedByFunctionError("no", code="not_allowed"), ["2 redriven so far", GOES_ON]),
        (1, InvalidRequestError([Problem("cursor", "is none")]), ["2 redriven so far", GOES_ON]),
        (1, NotInvokedError("no credentials"), ["2 redriven so far", GOES_ON]),
        (0, InvalidRequestError([Problem("cursor", "is none")]), None),
        (0, SettingsError("MONGODB_URI is missing"), None),
        (0, NotInvokedError("no credentials"), None),
    ],
)  # fmt: skip
def test_where_it_ends_too_early_it_says_what_is_certain_and_what_may_be(
    by_two: CommandLine, dead: Tasks, tasks: Tasks, died: datetime,
    interruption: Interruption, *, page: int, error: BaseException, told: list[str] | None
) -> None:  # fmt: skip
    bury(dead, open_letters(died, 7))
    interruption.set(page, error)

    said = by_two("dlq", "redrive", "--all")

    is_interrupted = isinstance(error, KeyboardInterrupt)
    assert (said.status, said.out) == (130 if is_interrupted else 1, "")
    stopped = [] if told is None else ["stopped early: " + "; ".join(told)]
    assert said.err.splitlines() == [f"tidemill: {one}" for one in stopped + ([] if is_interrupted else [str(error)])]
    assert tasks.count_documents({}) == 2 * page


def test_one_id_may_have_done_no_more_than_one(
    by_two: CommandLine, dead: Tasks, died: datetime, interruption: Interruption
) -> None:
    ids = [str(one) for one in bury(dead, open_letters(died, 3))]
    interruption.set(1, UnavailableError("away"))

    said = by_two("dlq", "redrive", *ids)

    assert "stopped early: 1 redriven for certain, up to 1 more may have been; " in said.err


def test_who_goes_on_with_a_limit_is_told_that_it_counts_anew(
    by_two: CommandLine, dead: Tasks, died: datetime, interruption: Interruption
) -> None:
    bury(dead, open_letters(died, 7))
    interruption.set(2, KeyboardInterrupt())

    said = by_two("dlq", "redrive", "--all", "--limit", "5")

    assert said.err.startswith("tidemill: stopped early: 4 redriven for certain, up to 1 more may have been; ")
    assert said.err.endswith(f"{GOES_ON}; --limit counts from 0 again\n")


def test_who_goes_on_with_a_rate_is_told_until_when_the_first_ones_are_spread(
    by_two: CommandLine, dead: Tasks, tasks: Tasks, died: datetime, interruption: Interruption
) -> None:
    bury(dead, open_letters(died, 7))
    interruption.set(2, KeyboardInterrupt())

    said = by_two("dlq", "redrive", "--all", "--rate", "0.01")

    told = re.search("redriven tasks become due until (.*) UTC; (.*)\n", said.err)
    assert told is not None
    assert told[2] == f"{GOES_ON}; the rate starts over from now: wait until then to keep the rate"
    last = max(raw["due_at"] for raw in map(decode, tasks.find({}, {"due_at": 1})))
    rest = 1000 * timedelta(seconds=100)  # of those that may have been redriven
    between = datetime.fromisoformat(f"{told[1]}+00:00") - last
    assert rest + timedelta(seconds=95) < between <= rest + timedelta(seconds=101)


def test_who_goes_on_with_a_rate_is_told_that_it_begins_anew(by_two: CommandLine, interruption: Interruption) -> None:
    interruption.set(0, KeyboardInterrupt())

    assert by_two("dlq", "redrive", "--all", "--rate", "5").err.endswith(
        f"; {COMPLETED}; {GOES_ON}; the rate starts over from now\n"
    )


# Nobody reads it


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_where_stdout_is_closed_stderr_says_what_was_done(
    operator: CommandLine, db: Database[Any], dead: Tasks, died: datetime, monkeypatch: pytest.MonkeyPatch, *,
    arguments: tuple[str, ...]
) -> None:  # fmt: skip
    bury(dead, open_letters(died, 2))
    monkeypatch.setattr(sys, "stdout", None)

    said = operator("dlq", "redrive", "--all", *arguments)

    assert said.status == 1
    assert said.err.splitlines() == [
        f"tidemill: 2 dead letters of {db.name} redriven",
        "tidemill: the output cannot be written: stdout is closed",
    ]


class Full(io.StringIO):
    """A stdout that takes nothing."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def flush(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status"), [(OSError(errno.ENOSPC, "No space left on device"), 1), (BrokenPipeError(), 141)]
)
def test_where_stdout_takes_nothing_stderr_says_what_was_done(
    operator: CommandLine, db: Database[Any], dead: Tasks, died: datetime, monkeypatch: pytest.MonkeyPatch, *,
    error: OSError, status: int
) -> None:  # fmt: skip
    bury(dead, open_letters(died, 2))
    monkeypatch.setattr(sys, "stdout", Full(error))

    said = operator("dlq", "redrive", "--all")

    assert said.status == status
    assert said.err.startswith(f"tidemill: 2 dead letters of {db.name} redriven\n")


# Through the function


class Refusing:
    """A client of Lambda whose function refuses each call with *code*."""

    def __init__(self, code: str) -> None:
        self._code = code

    def invoke(self, **_: Any) -> dict[str, Any]:
        error = {"code": self._code, "message": "it was like that", "details": []}
        return {"StatusCode": 200, "Payload": io.BytesIO(json.dumps({"error": error}).encode())}


@pytest.mark.parametrize(
    ("code", "told"),
    [("unavailable", ["0 redriven for certain, up to 1000 more may have been"]), ("not_found", [])],
)
def test_a_refusal_of_the_function_is_told_with_what_may_have_been_done(
    tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch, *, code: str, told: list[str]
) -> None:
    replace_lambda_client(monkeypatch, lambda: Refusing(code))

    said = tidemill("dlq", "redrive", "--all", "--function", "operate")

    stopped = [f"stopped early: {one}; {COMPLETED}; {GOES_ON}" for one in told]
    assert said.err.splitlines() == [f"tidemill: {one}" for one in [*stopped, "it was like that"]]


def test_one_id_that_the_function_does_not_find_keeps_no_other_back_and_an_outage_does(
    tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter(["not_found", "unavailable", "not_found"])
    replace_lambda_client(monkeypatch, lambda: Refusing(next(asked)))

    said = tidemill("dlq", "redrive", "a", "b", "c", "--function", "operate")

    assert (said.status, next(asked)) == (1, "not_found")
    assert "stopped early: 0 redriven for certain, up to 1 more may have been" in said.err


@pytest.mark.parametrize(
    ("kind", "is_unsent"),
    [
        (NoCredentialsError(), True),
        (EndpointConnectionError(endpoint_url="x"), True),
        (ClientError({"Error": {"Code": "AccessDeniedException"}}, "Invoke"), True),
        (ReadTimeoutError(endpoint_url="x"), False),
        (ConnectionClosedError(endpoint_url="x"), False),
    ],
)
def test_what_was_never_sent_has_done_nothing(
    tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch, *, kind: Exception, is_unsent: bool
) -> None:
    class Failing:
        def invoke(self, **_: Any) -> dict[str, Any]:
            raise kind

    replace_lambda_client(monkeypatch, Failing)

    said = tidemill("dlq", "redrive", "--all", "--function", "operate")

    assert ("stopped early" not in said.err) is is_unsent
