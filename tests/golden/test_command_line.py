"""What each command prints, and with which status it ends."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.golden.folding import Folding
from tests.golden.golden import check
from tests.golden.scenarios import LATELY, LATER, World
from tidemill.cli import main

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
