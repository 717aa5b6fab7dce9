"""The command line, as an operator types it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, document
from tests.fixtures import T0
from tidemill import indexes
from tidemill.store.connection import Tasks
from tidemill.testing import Mongod

ALL = len(indexes.INDEXES)
COMMAND = (sys.executable, "-m", "tidemill")


def without(package: str) -> tuple[str, ...]:
    """The command where *package* is not installed."""
    code = f"import sys; sys.modules['{package}'] = None; from tidemill.cli import main; sys.exit(main())"
    return sys.executable, "-c", code


def tidemill(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with nothing in its environment but what is given."""
    return run((*COMMAND, *arguments), environment)


def run(command: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env(environment), capture_output=True, text=True, timeout=60, check=False)


def env(environment: dict[str, str]) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **environment}


@pytest.fixture
def where(mongod: Mongod, db: Database[Any]) -> dict[str, str]:
    return {"MONGODB_URI": mongod.uri, "MONGODB_DATABASE": db.name}


def test_indexes_makes_what_is_missing_and_says_so(db: Database[Any], where: dict[str, str]) -> None:
    db["tasks"].drop_index("claim")

    first, second = tidemill("indexes", **where), tidemill("indexes", **where)

    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines() == ["creating claim of tasks", f"{ALL} indexes exist, 1 of them new"]
    assert second.stdout.splitlines() == [f"{ALL} indexes exist, 0 of them new"]
    assert indexes.find_missing(db) == ()


def test_indexes_changes_the_retention_only_where_it_is_told_to(
    client: MongoClient[Any], db: Database[Any], where: dict[str, str]
) -> None:
    def kept() -> list[float]:
        collections = [client[db.name][name] for name in ("tasks", "tasks_dlq")]
        return [one.index_information()["retention"]["expireAfterSeconds"] / 86400 for one in collections]

    tidemill("indexes", RETENTION_DAYS="1", DEAD_LETTER_RETENTION_DAYS="2", **where)
    assert kept() == [7, 30]
    told = tidemill("indexes", "--retention-days", "14", **where)
    assert kept() == [14, 30]
    assert (
        told.stdout.splitlines()[0]
        == "done and cancelled tasks are kept for 14d, until reclaim sets its RETENTION_DAYS"
    )
    told = tidemill("indexes", "--dead-letter-retention-days", "60", **where)
    assert kept() == [14, 60]
    assert (
        told.stdout.splitlines()[0]
        == "dead letters that may be removed are kept for 60d, until reclaim sets its DEAD_LETTER_RETENTION_DAYS"
    )


@pytest.mark.parametrize("option", ["--retention-days", "--dead-letter-retention-days"])
@pytest.mark.parametrize("days", ["0", "soon", "-1"])
def test_a_retention_that_is_none_is_refused(where: dict[str, str], option: str, days: str) -> None:
    refused = tidemill("indexes", option, days, **where)

    assert refused.returncode == 2
    assert "must be a number from 0.001 to 3650" in refused.stderr


def test_declare_lets_a_queue_be_used(db: Database[Any], where: dict[str, str]) -> None:
    assert tidemill("ops", "queue", "declare", "eu", **where).stdout == f"queue eu of {db.name} is declared\n"
    assert db["queues"].find_one({"_id": "eu"}) is not None


def test_a_queue_with_no_name_for_one_is_refused_in_a_sentence(where: dict[str, str]) -> None:
    refused = tidemill("ops", "queue", "declare", "e u", **where)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "tidemill: queue: use up to 63 letters, digits, _ . and -\n"


def test_without_an_address_it_names_the_variable() -> None:
    refused = tidemill("indexes")

    assert refused.returncode == 1
    assert refused.stderr.startswith("tidemill: MONGODB_URI is missing")


def test_a_server_that_is_not_there_is_told_within_seconds_and_without_its_address() -> None:
    started = time.monotonic()
    refused = tidemill("indexes", MONGODB_URI="mongodb://user:s3cret@127.0.0.1:9/")

    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "MongoDB was not reached (connection refused" in refused.stderr
    assert "s3cret" not in refused.stderr
    assert time.monotonic() - started < 10


def test_what_is_not_understood_is_answered_with_the_usage() -> None:
    refused = tidemill("idnexes")

    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("Usage: tidemill")


def test_an_argument_that_is_no_text_is_refused() -> None:
    refused = tidemill("ops", "task", "show", "\udcff")

    assert refused.returncode == 2
    assert refused.stderr.endswith("the arguments must be UTF-8\n")


def test_the_presets_are_shown_without_a_database_and_plain_in_a_pipe() -> None:
    shown = tidemill("policy", "ls", FORCE_COLOR="1", TERM="xterm-256color")

    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("preset ")
    assert "\x1b" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_a_queue_is_set_paused_and_looked_at(db: Database[Any], where: dict[str, str]) -> None:
    changed = tidemill("ops", "queue", "set", "default", "--retry-share", "0.5", "--budget", "on", **where)
    paused = tidemill("ops", "queue", "pause", "default", **where)
    listed = tidemill("ops", "queue", "ls", **where)
    status = tidemill("ops", "queue", "status", "--json", **where)

    assert [one.returncode for one in (changed, paused, listed, status)] == [0, 0, 0, 0]
    assert "retry share        0.5" in changed.stdout
    assert listed.stdout.splitlines()[2].split() == ["default", "0", "0", "0", "0", "0", "-", "paused"]
    assert json.loads(status.stdout)["queue"]["paused"] is True
    stored = db["queues"].find_one({"_id": "default"}) or {}
    assert (stored["retry_share"], stored["paused"]) == (0.5, True)


def test_a_task_is_shown_with_its_log_and_without_its_payload(tasks: Tasks, where: dict[str, str]) -> None:
    line = {"attempt": 1, "status": "failed", "started_at": T0, "duration_ms": 1500, "note": "the receiver said 503"}
    [task_id] = add(tasks, [document(T0, attempts=1, payload={"card": "s3cret"}, attempt_log=[line])])

    shown = tidemill("ops", "task", "show", str(task_id), **where)

    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[0] == f"task      {task_id}"
    assert shown.stdout.splitlines()[-1].endswith(
        "Initial  failed  2031-07-01 09:00:00.000      1.5s  the receiver said 503"
    )
    assert "s3cret" not in shown.stdout


def test_a_task_that_is_not_there_is_told_in_one_line(where: dict[str, str]) -> None:
    refused = tidemill("ops", "task", "show", "0" * 24, **where)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        f"tidemill: there is no task {'0' * 24} in {where['MONGODB_DATABASE']}; no executor "
    )
    assert refused.stderr.count("\n") == 1


def test_where_nothing_was_counted_stats_say_so(where: dict[str, str]) -> None:
    shown = tidemill("ops", "stats", "--since", "6h", **where)

    assert (shown.returncode, shown.stdout) == (
        0,
        f"nothing was counted in {where['MONGODB_DATABASE']} in the last 6h\n",
    )


def test_a_simulation_runs() -> None:
    assert "Time saved by priority" in tidemill("simulate", "retry-priority").stdout


@pytest.mark.parametrize("arguments", [("policy", "ls"), ("--help",)])
def test_a_reader_that_has_gone_is_no_traceback(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody:
        ended = subprocess.run(
            (*COMMAND, *arguments), env=env({}), stdout=nobody, stderr=subprocess.PIPE, timeout=60, check=False
        )

    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("redirection", "reason"), [(">&-", "stdout is closed"), (">/dev/full", "No space left on device")]
)
@pytest.mark.parametrize("command", ["policy ls", "policy ls --json", "simulate retry-priority"])
def test_an_output_that_cannot_be_written_is_told_in_a_sentence(command: str, redirection: str, reason: str) -> None:
    ended = run(("/bin/sh", "-c", f'exec "$0" -m tidemill {command} {redirection}', sys.executable), {})

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"tidemill: the output cannot be written: {reason}\n"


def test_with_nothing_to_speak_on_a_failure_is_silent() -> None:
    ended = run(("/bin/sh", "-c", 'exec "$0" -m tidemill indexes 2>&-', sys.executable), {})

    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A child inherits that SIGINT is ignored, which it is in a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        uri = f"mongodb://127.0.0.1:{mute.getsockname()[1]}/"
        waiting = subprocess.Popen(
            (*COMMAND, "ops", "queue", "ls"),
            env=env({"MONGODB_URI": uri}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        mute.settimeout(30)
        connection, _ = mute.accept()
        with connection:
            waiting.send_signal(signal.SIGINT)
            out, err = waiting.communicate(timeout=30)

    assert (waiting.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize(
    ("missing", "arguments"), [("rich", "policy ls"), ("rich", "dlq export"), ("click", "indexes")]
)
def test_without_a_package_it_says_what_to_install(missing: str, arguments: str) -> None:
    refused = run((*without(missing), *arguments.split()), {})

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "tidemill: this command needs the extra cli, which is not installed: pip install 'tidemill[cli]'\n"
    )


def test_without_rich_indexes_and_queues_are_made(db: Database[Any], where: dict[str, str]) -> None:
    made = run((*without("rich"), "indexes"), where)
    declared = run((*without("rich"), "ops", "queue", "declare", "eu"), where)

    assert made.stdout == f"{ALL} indexes exist, 0 of them new\n"
    assert declared.stdout == f"queue eu of {db.name} is declared\n"
