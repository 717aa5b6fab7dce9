"""What each command prints, and with which status it ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.buried import bury, letter
from tests.golden.folding import Folding
from tests.golden.golden import check
from tests.golden.scenarios import LATELY, LATER, World
from tidemill.cli import main
from tidemill.cli.output import clean
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import open_tasks

SECRET: Final = "s3cret-of-a-customer"
ID: Final = "65f0c1a2b3d4e5f607182930"
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "help": ("--help",),
    "ops_help": ("ops", "--help"),
    "dlq_help": ("dlq", "--help"),
    "task_ls_help": ("ops", "task", "ls", "--help"),
    "redrive_help": ("dlq", "redrive", "--help"),
    "queue_set_help": ("ops", "queue", "set", "--help"),
    "work_help": ("work", "--help"),
    "queue_ls": ("ops", "queue", "ls"),
    "queue_status": ("ops", "queue", "status", "default"),
    "queue_declare": ("ops", "queue", "declare", "us"),
    "queue_pause": ("ops", "queue", "pause", "eu"),
    "queue_pause_unknown": ("ops", "queue", "pause", "ue"),
    "queue_set": ("ops", "queue", "set", "eu", "--retry-share", "0.5"),
    "task_ls": ("ops", "task", "ls"),
    "task_ls_of_a_status": ("ops", "task", "ls", "--status", "processing", "--queue", "eu"),
    "task_show": ("ops", "task", "show", ID),
    "task_explain": ("ops", "task", "explain", ID),
    "task_explain_json": ("ops", "task", "explain", ID, "--json"),
    "task_retry": ("ops", "task", "retry", "delayed"),
    "task_cancel": ("ops", "task", "cancel", ID),
    "task_cancel_unknown": ("ops", "task", "cancel", "nobody"),
    "stats": ("ops", "stats"),
    "dlq_ls": ("dlq", "ls"),
    "dlq_ls_letters": ("dlq", "ls", "--items"),
    "dlq_show": ("dlq", "show", "dead"),
    "dlq_redrive": ("dlq", "redrive", "--all", "--dry-run"),
    "dlq_purge": ("dlq", "purge", "--all", "--dry-run"),
    "policy_list": ("policy", "list"),
    "policy_show": ("policy", "show", "patient"),
    "indexes": ("indexes",),
    "no_such_command": ("queue", "ls"),
    "no_such_option": ("ops", "task", "ls", "--nme", "x"),
}
HELP: Final = (
    "", "ops", "ops queue", "ops queue ls", "ops queue declare", "ops queue status", "ops queue pause",
    "ops queue resume", "ops task", "ops task show", "ops task explain", "ops task retry", "ops task cancel",
    "ops stats", "dlq ls", "dlq show", "dlq purge", "dlq export", "dlq restore", "policy", "policy ls", "policy show",
    "simulate", "simulate starvation", "indexes",
)  # fmt: skip
WRONG_USAGE: Final = (
    "", "idnexes", "ops", "ops tsk ls", "ops queue", "ops queue declare", "ops queue status eu us", "ops task show",
    "ops task cancel x --forc", "ops task ls --limit 0", "ops task ls --limit=", "ops task ls --limit 1001",
    "ops task ls --limit 1.5", "ops task ls --limit ٣", "ops task ls --status don", "ops stats --since 0h",
    "ops stats --since 1w", "ops stats --since 99999d", "ops stats --since ٣h", "ops queue ls --function é",
    "ops queue ls --function ../x", "ops queue set eu", "ops queue set eu --retry-share half",
    "ops queue set eu --max-in-flight-retries 1.5", "ops queue set eu --selection random",
    "ops queue set eu --adaptive yes", "ops queue set eu --budget-per-minute many", "ops queue set eu --retry 0.5",
    "dlq", "dlq drop", "dlq show", "dlq restore", "dlq ls --since yesterday", "dlq ls --until 2031-02-30",
    "dlq ls --since=", "dlq redrive", "dlq redrive --dry-run", "dlq redrive --all x", "dlq redrive --all --name x",
    "dlq redrive x --queue x", "dlq redrive x y --redrives 1", "dlq redrive --all --limit 0",
    "dlq redrive --all --rate 0", "dlq redrive --all --rate nan", "dlq redrive --all --rate 1e9", "dlq purge --yes",
    "policy list", "policy show", "simulate", "indexes now", "indexes --retention-days soon", "work --queue=",
    "work --lane slow", "work --selection newest_first", "work --concurrency 257", "work --batch-size many",
    "work --tasks=", "work --tasks ./tasks", "work --until", "work now",
)  # fmt: skip
POLICIES: Final = (
    "policy ls", "policy ls --json", "policy show patient", "policy show standard --json", "policy show one_shot",
    "policy show one_shot --json", "policy show patiant", "policy show xyz",
)  # fmt: skip
SESSIONS: Final[dict[str, tuple[str, ...]]] = {
    "nothing_is_there": (
        "ops queue ls", "ops task ls", "ops task ls --status done", "ops task ls --json", "ops task ls --queue defalt",
        "ops task ls --cursor x", "ops task show nobody", "ops task explain nobody", "ops task retry a\x1bb",
        "ops task cancel nobody", "ops stats --queue e\x1bu --since 90m", "dlq ls", "dlq ls --items",
        "dlq ls --redriven", "dlq ls --name x --since 2h", "dlq ls --since 2001-01-02 --until 2001-01-01",
        "dlq show nobody", "dlq redrive --all", "dlq redrive --fingerprint x", "dlq purge --all", "dlq export",
        "dlq --function f restore x",
    ),
    "queues": (
        "ops queue declare us", "ops queue declare .", "ops queue status", "ops queue status us --json",
        "ops queue status ue", "ops queue status nowhere", "ops queue resume ue", "ops queue pause nowhere",
        "ops queue set eu --selection weighted --max-in-flight-retries 9 --adaptive-scale 20 --adaptive-cap 90.5",
        "ops queue set eu --budget-per-minute 50 --budget-factor 1.5",
        "ops queue pause eu", "ops queue status eu", "ops queue ls", "ops queue resume eu",
        "ops queue set eu --selection deployment --max-in-flight-retries none --adaptive off --budget off",
        "ops queue set eu --retry-share 1.5", "ops queue set eu --adaptive-cap inf",
        "ops queue set eu --budget off --budget-factor 2", "ops stats", "ops stats --json", "ops stats --queue us",
    ),
    "tasks": (
        "ops task ls", "ops task ls --limit 2 --name returns", "ops task show running", "ops task show failed-twice",
        "ops task show odd", "ops task show done", "ops task show dead", "ops task show not-archived --json",
        "ops task explain dead", "ops task explain delayed", "ops task retry delayed", "ops task retry delayed",
        "ops task retry paused", "ops task cancel running", "ops task cancel running --force",
        "ops task cancel running", "ops task cancel lost-worker", "ops task cancel odd", "ops task cancel done",
        f"ops task cancel {ID}", f"ops task cancel {ID}", "ops task show -- -f",
    ),
    "dead_letters": (
        "dlq ls", "dlq ls --limit 1", "dlq ls --items", "dlq ls --name retired --json", "dlq ls --redriven",
        "dlq show dead", "dlq show twice", "dlq show twice --redrives 0", "dlq show refused", "dlq show odd-letter",
        "dlq show retried --json", "dlq redrive --all --dry-run --rate 2", "dlq redrive dead nobody",
        "dlq redrive --all", "dlq redrive --all --drop-expiry --json", "dlq purge --all --dry-run",
        "dlq purge --all", "dlq purge dead --yes", "dlq purge --all --yes --json",
    ),
}  # fmt: skip
_PART: Final = r"\d+(\.\d+)? ?(ms|s|min|m|h|d)\b"
_SPAN: Final = re.compile(rf"\b{_PART}( {_PART})*")  # "5 min" at one time is "5 min 1 s" a second later
_RULE: Final = re.compile(r"-{3,}[- ]*")


@pytest.fixture
def operated(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A database with a task of each kind, and an operator's terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.argv", ["tidemill"])
    world.operate("queue.declare", queue="eu")
    failure: dict[str, Any] = {"message": "no such order 7", "code": "gone", "at": LATELY}
    world.add(_id="dead", status="failed", reason="not_retryable", finished_at=LATELY, attempts=1, error=failure)
    world.functions.invoke("archive")
    world.add(_id=ObjectId(ID), queue="eu", priority=5)
    world.add(_id="delayed", due_at=LATER, next_retry_at=LATER)
    world.add(_id="failed-twice", lane="retry", attempts=2, due_at=LATER, next_retry_at=LATER, error=failure)
    world.add_leased(_id="running", queue="eu")
    return world


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """No database, and 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("MONGODB_URI", "MONGODB_SECRET_ARN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize("command", ["help", "wrong_usage", "policies"])
def test_what_needs_no_database_is_printed_as_it_always_was(capsys: pytest.CaptureFixture[str], command: str) -> None:
    commands = {"help": [f"{path} --help" for path in HELP], "wrong_usage": WRONG_USAGE, "policies": POLICIES}

    check(f"command_line/{command}_of_each", _play(commands[command], capsys))


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_prints_what_it_always_did(world: World, capsys: pytest.CaptureFixture[str],
                                             monkeypatch: pytest.MonkeyPatch, name: str) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "10000")  # how a line is wrapped would depend on the time
    if name != "nothing_is_there":
        _fill(world)

    found = _play(SESSIONS[name], capsys)

    world.functions.cool_down()
    check(f"command_line/session_{name}", _fold(found))


def _fill(world: World) -> None:
    """Store a task and a dead letter in each state."""
    world.operate("queue.declare", queue="eu")
    world.operate("queue.declare", queue="closed")
    world.operate("queue.pause", queue="closed")
    now = datetime.now(UTC).replace(microsecond=0)
    failure: dict[str, Any] = {"message": "no such order 7", "code": "gone", "at": LATELY}
    log = [
        {"attempt": number, "status": "failed", "started_at": LATELY, "duration_ms": 1500, "note": "503"}
        for number in (1, 4)
    ]
    world.add(_id=ObjectId(ID), queue="eu", priority=5)
    world.add(_id="delayed", due_at=LATER, next_retry_at=LATER)
    world.add(_id="paused", queue="closed", due_at=LATER, next_retry_at=LATER)
    world.add(
        _id="failed-twice", lane="retry", attempts=4, due_at=LATER, next_retry_at=LATER, error=failure, attempt_log=log
    )
    world.add_leased(_id="running", queue="eu")
    world.add_leased(_id="lost-worker", expires_at=LATELY)
    world.add(
        _id="done", status="done", finished_at=LATELY, attempts=1, result={"secret": SECRET}, trace={"source": "me"}
    )
    world.add(_id="not-archived", status="failed", finished_at=LATELY, archive_error="MongoDB refuses it (code 121)")
    world.add(_id="odd", name=7, payload={"secret": SECRET}, attempt_log=log)
    world.add(_id="-f")
    hour = timedelta(hours=1)
    letters = [
        letter(now - hour / 2, _id="dead", name="returns", payload={"secret": SECRET}, attempt_log=log),
        letter(now - 3.5 * hour, _id="twice", name="returns", redrives=1),
        letter(now - 9.5 * hour, _id="twice", name="returns", reason="worker_lost", redriven_at=now - 8.5 * hour),
        letter(now - 2.5 * hour, _id="refused", name="retired", export_attempts=3, export_error="TooLarge"),
        letter(now - 2.5 * hour, _id="odd-letter", name=7),
        letter(now - 4.5 * hour, _id="late", name="returns", expires_at=LATELY, fingerprint="b" * 16),
        letter(now - 5.5 * hour, _id="retried", name="returns", redrive_started_at=now, archived_at=now - hour),
        letter(now - 6.5 * hour, _id="running", name="returns", archived_at=now - hour),
    ]  # fmt: skip
    bury(open_tasks(world.db, DEAD_LETTERS), letters)
    minute = now.replace(second=0)
    counts = {
        "retry_runs": 8,
        "retry_successes": 6,
        "exhausted": 1,
        "retried": 4,
        "backoff_ms": 20_000,
        "saved_ms": 900,
    }
    key = {"queue": "default", "minute": minute, "name": "returns"}
    world.db.queue_stats.insert_one({"_id": key, "minute": minute, **counts})


def _play(commands: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run *commands* one after the other; return what a terminal would have shown."""
    shown = []
    for command in commands:
        capsys.readouterr()
        status = main(command.split(" ") if command else [])
        out, err = capsys.readouterr()
        assert SECRET not in out + err, command
        shown.append(
            f"$ tidemill {clean(command)}\n{out}{''.join(f'! {line}' for line in err.splitlines(keepends=True))}"
        )
        shown.append(f"[{status}]\n" if status else "")
    return "".join(shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_always_did(operated: World, capsys: pytest.CaptureFixture[str], name: str) -> None:
    capsys.readouterr()

    status = main(COMMANDS[name])

    out, err = capsys.readouterr()
    operated.functions.cool_down()
    fold = str if name.startswith("policy") else _fold  # nothing of a policy depends on the time
    folded = "".join(f"=== {kind}\n{fold(text)}" for kind, text in (("stdout", out), ("stderr", err)))
    check(f"command_line/{name}", f"$ tidemill {' '.join(COMMANDS[name])}\n{folded}=== status {status}\n")


def _fold(text: str) -> str:
    """Fold what differs from run to run, and the blanks that its width brings."""
    lines = Folding().fold_text(text).splitlines()
    return "".join(
        f"{re.sub(r' {2,}', '  ', _RULE.sub('---', _SPAN.sub('<span>', line))).rstrip()}\n" for line in lines
    )
