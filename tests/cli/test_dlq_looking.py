"""`tidemill dlq ls` and `show`: why tasks failed, which did, and one of them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database
from rich.cells import cell_len

from tests.builders import add, document
from tests.buried import bury, letter
from tests.cli.conftest import Answer, CommandLine, Said
from tidemill.admin.api import operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.cli.dlq_view import draw_sparkline
from tidemill.clock import ServerClock
from tidemill.dead_letters.queries import GroupLimits
from tidemill.policy.retry import DEFAULT
from tidemill.store.connection import Tasks

HOUR = timedelta(hours=1)
SECRET = "s3cret-of-a-customer"


@pytest.fixture
def died(db: Database[Any]) -> datetime:
    """Half an hour ago, as the server has it."""
    return ServerClock(db).now() - HOUR / 2


def facts(said: Said) -> dict[str, str]:
    """What stands above the first empty line."""
    header = said.lines[: said.lines.index("")]
    pairs = (line.partition("  ") for line in header)
    return {label: value.strip() for label, _, value in pairs}


# Groups


def test_where_not_all_can_be_counted_it_says_of_how_many_it_is(
    deploy: Callable[[Answer], CommandLine], db: Database[Any], dead: Tasks, died: datetime
) -> None:
    few = GroupLimits(max_counted=4, sampled_newest=3)
    context = AdminContext(db=db, clock=ServerClock(db), retry=DEFAULT, group_limits=few)
    operator = deploy(lambda event: operate(read_operation(event), context).document())
    bury(dead, [letter(died - 9 * HOUR, fingerprint=f"{n:016x}") for n in range(4)])
    newest = bury(dead, [letter(died, fingerprint="f" * 16) for _ in range(3)])

    lines = operator.done("dlq", "ls").lines

    assert [line.split()[:2] for line in lines if line.startswith("f" * 16)] == [["f" * 16, "3"]]
    assert lines[-3:] == [
        "only the newest 3 dead letters are counted:",
        "1 group, at least 3 open dead letters in total",
        "list a group with --fingerprint F",
    ]
    dead.update_many({"_id.task": {"$in": newest}}, {"$set": {"redriven_at": died}})
    none = f"there are no open dead letters among the newest 3 dead letters of {db.name}\n"
    assert operator.done("dlq", "ls").out == none


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_a_trend_is_drawn_in_plain_characters_where_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))

    assert draw_sparkline([0, 1, 50, 100]) == ".:+@"


@pytest.mark.parametrize(
    ("counts", "drawn"),
    [
        ([], ""),
        ([0, 0], "··"),
        ([1], "█"),
        ([1, 2, 3, 4, 5, 6, 7, 8, 0], "▁▂▃▄▅▆▇█·"),
        ([1, 10**9], "▁█"),
    ],
)
def test_the_largest_count_is_the_highest_and_the_least_is_seen(counts: list[int], drawn: str) -> None:
    assert draw_sparkline(counts) == drawn


@pytest.mark.parametrize(
    "text", ["名前" * 40, "e\u0301" * 90, "x" * 3_000, "ab " * 90], ids=["wide", "marks", "long", "words"]
)
def test_no_line_takes_more_than_80_cells_whatever_people_have_written(
    terminal: CommandLine, dead: Tasks, died: datetime, text: str
) -> None:
    error = {"message": text, "code": text, "at": died}
    written = {"name": text[:1_000], "fingerprint": text, "reason": text, "error": error, "export_error": text}
    task_id = text[:300].strip()
    bury(dead, [letter(died, _id=task_id, redrives=n, export_attempts=2, **written) for n in (0, 1)])
    bury(dead, [letter(died)])

    for words in (["ls"], ["ls", "--items"], ["show", task_id], ["redrive", task_id]):
        said = terminal("dlq", *words)
        assert max(map(cell_len, said.lines)) <= 80, said.out


def test_a_terminal_gets_48_cells_of_an_id_and_a_pipe_all(
    terminal: CommandLine, operator: CommandLine, dead: Tasks, died: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    [whole, longer] = bury(dead, [letter(died - HOUR, _id="w" * 24 + "W" * 24), letter(died, _id="x" * 80)])

    lines = terminal.done("dlq", "ls", "--items").lines
    shown = "".join(line.split(" ")[0] for line in lines[2:])
    assert (whole in shown, longer in shown) == (True, False)
    assert lines[-1] == "long ids are cut: --json prints whole ids"

    monkeypatch.delenv("COLUMNS")
    assert [line.split()[0] for line in operator.done("dlq", "ls", "--items").lines[2:]] == [longer, whole]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (("ConnectionError", "ConnectionError: refused (mail.py:7)"), "ConnectionError: refused (mail.py:7)"),
        (("ValueError", "ValueError (mail.py:7)"), "ValueError (mail.py:7)"),
        (("Fail", "Failed to send"), "Fail: Failed to send"),
        (("gone", "no such order"), "gone: no such order"),
        (("gone", "gone"), "gone"),
    ],
)
def test_an_error_is_named_once(
    operator: CommandLine, tasks: Tasks, dead: Tasks, died: datetime, *, error: tuple[str, str], shown: str
) -> None:
    # A03
    stored = {"code": error[0], "message": error[1], "at": died}
    bury(dead, [letter(died, _id="x", error=stored)])
    assert f"    noop: {shown}" in operator.done("dlq", "ls").lines

    [task_id] = add(tasks, [document(died, status="failed", reason="fatal", finished_at=died, error=stored)])
    for command in (("dlq", "show", "x"), ("ops", "task", "show", str(task_id))):
        assert facts(operator.done(*command))["last error"].startswith(f"{shown} (2")


@pytest.mark.parametrize("columns", ["80", "60"])
def test_a_terminal_that_is_too_narrow_for_an_error_gets_its_beginning_and_show_the_rest(
    terminal: CommandLine, monkeypatch: pytest.MonkeyPatch, dead: Tasks, died: datetime, columns: str
) -> None:
    # A04
    reason = "the receiver refused the certificate of the mail server"
    message = f"SSLError: {reason}, which expired {'a long time ago ' * 5}(/srv/tasks/mail.py:7 in send)"
    bury(dead, [letter(died, _id="x", error={"message": message, "code": "SSLError", "at": died})])
    monkeypatch.setenv("COLUMNS", columns)

    [sample] = [line for line in terminal.done("dlq", "ls").lines if "SSLError" in line]

    width = int(columns)
    assert len(sample) <= width
    assert sample.endswith(" ...")
    assert f"    noop: {message}".startswith(sample.removesuffix(" ..."))
    assert len(sample) > width - 12
    assert message in " ".join(terminal.done("dlq", "show", "x").out.split())


@pytest.mark.parametrize("command", ["dlq ls", "dlq ls --name noop", "ops queue ls", "ops task ls"])
def test_lists_keep_to_forty_columns(
    terminal: CommandLine, monkeypatch: pytest.MonkeyPatch, tasks: Tasks, dead: Tasks, died: datetime, *, command: str
) -> None:
    # A06
    bury(dead, [letter(died, _id="x")])
    add(tasks, [document(died, queue="eu-central-billing", name="noop")])
    monkeypatch.setenv("COLUMNS", "40")

    lines = terminal.done(*command.split()).lines

    assert max(len(line) for line in lines if "in total" not in line) <= 40
    assert "..." in lines[0]
    assert any(word in line.split() for line in lines for word in ("noop", "noop:", "eu-central-billing", "x"))


def test_an_error_that_is_too_long_for_a_list_is_told(operator: CommandLine, dead: Tasks, died: datetime) -> None:
    bury(dead, [letter(died, _id="x", error={"message": "m", "code": "c" * 20_000, "at": died})])

    assert "noop: too_long: the error is too long for a list" in operator.done("dlq", "ls").out
    assert "too_long" in operator.done("dlq", "ls", "--items").out
    assert "c" * 50 in operator.done("dlq", "show", "x").out


def test_what_steers_a_terminal_is_spelled_out(operator: CommandLine, dead: Tasks, died: datetime) -> None:
    evil = "\x1b[31m\nno"
    error = {"message": evil, "code": evil, "at": died}
    bury(dead, [letter(died, _id=evil, name=evil, error=error, fingerprint=evil, reason=evil)])

    for words in (["ls"], ["ls", "--items"], ["show", evil]):
        assert "\x1b" not in operator.done("dlq", *words).out


# Letters


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--items",), ["new", "old", "eu"]),
        (("--redriven",), ["gone"]),
        (("--name", "charge"), ["old"]),
        (("--queue", "eu"), ["eu"]),
        (("--since", "1h"), ["new"]),
        (("--until", "90m"), ["old", "eu"]),
        (("--since", "3h", "--until", "90m"), ["old"]),
        (("--since", "2001-01-01", "--until", "2001-01-01T00:00:00+02:00"), None),
        (("--items", "--limit", "2"), ["new", "old"]),
    ],
)
def test_filters_say_which(
    operator: CommandLine, dead: Tasks, died: datetime, arguments: tuple[str, ...], expected: list[str] | None
) -> None:
    bury(dead, [letter(died, _id="new"), letter(died - 2 * HOUR, _id="old", name="charge")])
    bury(dead, [letter(died - 9 * HOUR, _id="eu", queue="eu"), letter(died, _id="gone", redriven_at=died)])

    if expected is None:
        assert operator.refused("dlq", "ls", *arguments) == "event: since must be before until"
    else:
        listed = operator.done("dlq", "ls", *arguments, "--json").json["dead_letters"]
        assert [one["id"] for one in listed] == expected


def test_a_list_goes_on_where_one_ended(operator: CommandLine, dead: Tasks, died: datetime) -> None:
    bury(dead, [letter(died - n * HOUR, _id=f"n{n}") for n in range(5)])

    first = operator.done("dlq", "ls", "--items", "--limit", "3")
    cursor = first.lines[-1].rpartition(" ")[2]
    second = operator.done("dlq", "ls", "--items", "--cursor", cursor)

    assert first.lines[-1] == f"there are more: continue with the same options and --cursor {cursor}"
    assert [line.split()[0] for line in second.lines[2:]] == ["n3", "n4"]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2031-07-01", datetime(2031, 7, 1, tzinfo=UTC)),
        ("2031-07-01T09:30", datetime(2031, 7, 1, 9, 30, tzinfo=UTC)),
        ("2031-07-01 09:30:15", datetime(2031, 7, 1, 9, 30, 15, tzinfo=UTC)),
        ("2031-07-01T09:30:15.250+02:00", datetime(2031, 7, 1, 7, 30, 15, 250_000, tzinfo=UTC)),
        ("2031-07-01T09:30:00Z", datetime(2031, 7, 1, 9, 30, tzinfo=UTC)),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(operator: CommandLine, dead: Tasks, text: str, at: datetime) -> None:
    bury(dead, [letter(at, _id="at"), letter(at - timedelta(milliseconds=1), _id="before")])

    assert [one["id"] for one in operator.done("dlq", "ls", "--since", text, "--json").json["dead_letters"]] == ["at"]


# One


@pytest.mark.parametrize(
    ("marks", "field", "words"),
    [
        ({"archived_at": True}, "exported", "UTC (30m"),
        ({"export_attempts": 3, "export_error": "TooLarge"}, "exported", "refused 3 times, TooLarge"),
        ({"export_attempts": 3, "export_retry_at": True}, "exported", "unknown reason; next attempt"),
        ({"redriven_at": True}, "redriven", "UTC (30m"),
        ({"redrive_started_at": True}, "redriven", "in progress since"),
        ({"name": 7}, "malformed", "name is not what it has to be"),
        ({"name": 7}, "redriven", "no"),
    ],
)
def test_what_became_of_a_letter_is_told(
    operator: CommandLine, dead: Tasks, died: datetime, *, marks: dict[str, Any], field: str, words: str
) -> None:
    bury(dead, [letter(died, _id="x") | {name: died if value is True else value for name, value in marks.items()}])

    assert words in facts(operator.done("dlq", "show", "x"))[field]
