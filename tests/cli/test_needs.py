"""What a command needs: a database, and modules, its own and no others; how Ctrl-C ends it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import CommandLine
from tests.handlers.lambda_api import replace_lambda_client


@pytest.mark.parametrize(
    "arguments",
    [
        ("ops", "queue", "ls"),
        ("ops", "queue", "pause", "eu"),
        ("ops", "task", "show", "x"),
        (
            "ops",
            "stats",
        ),
        ("indexes",),
        ("dlq", "ls"),
        ("dlq", "redrive", "--all"),
        ("dlq", "purge", "x", "--yes"),
        ("dlq", "export"),
        ("dlq", "restore", "x"),
    ],
)
def test_without_an_address_the_variable_is_named(tidemill: CommandLine, arguments: tuple[str, ...]) -> None:
    assert tidemill.refused(*arguments) == "MONGODB_URI is missing: set it, or MONGODB_SECRET_ARN"


@pytest.mark.parametrize(
    ("arguments", "command", "sentence"),
    [
        (("ops", "task", "ls", "--name"), "ops task ls", "option '--name' requires an argument"),
        (("ops", "task", "ls", "--json=x"), "ops task ls", "option '--json' does not take a value"),
        (("dlq", "redrive", "--rate"), "dlq redrive", "option '--rate' requires an argument"),
        (("ops", "queue", "pause", "eu", "us"), "ops queue pause", "got unexpected extra argument (us)"),
        (("ops", "task", "ls", "--nme", "x"), "ops task ls", "there is no option --nme, did you mean --name?"),
        (("ops", "tsk", "ls"), "ops", "there is no command tsk, did you mean task?"),
    ],
)
def test_wrong_usage_gets_the_usage_of_its_command(
    tidemill: CommandLine, arguments: tuple[str, ...], command: str, sentence: str
) -> None:
    # A05
    said = tidemill(*arguments)

    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"Usage: tidemill {command} [OPTIONS]")
    assert f"\ntidemill: {sentence}" in said.err


LISTED = (
    "import sys; from tidemill.cli import main; main(sys.argv[1:]); "
    "print(*sorted(name for name in sys.modules if name.startswith('tidemill.')), sep='\\n', file=sys.stderr)"
)


@pytest.mark.parametrize(
    ("command", "modules"),
    [
        ("--help", "commands output"),
        ("ops --help", "commands output"),
        ("ops queue ls", "commands operations output queues"),
        ("ops task ls", "commands operations output tasks"),
        ("dlq ls", "commands dlq dlq_paging dlq_view operations output tasks"),
        ("policy ls", "commands output policies"),
        ("work", "commands output work work_health work_log work_watch"),
        ("indexes", "commands operations output"),
    ],
)
def test_a_command_imports_what_it_needs_and_no_other_command(command: str, modules: str) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", LISTED, *command.split()],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    imported = ended.stderr.splitlines()

    assert [name.removeprefix("tidemill.cli.") for name in imported if ".cli." in name] == modules.split()
    assert ("tidemill.simulation" in imported) is (command == "policy ls")
    assert ("tidemill.executor.execution" in imported) is (command == "work")
    assert ("tidemill.bootstrap" in imported) is ("operations" in modules or command == "work")


class HalfMade:
    """As the driver's transaction is where a signal comes while it is made."""

    def __del__(self) -> None:
        raise AttributeError("conn_mgr")


def test_what_was_half_made_says_nothing(tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        made = HalfMade()
        raise KeyboardInterrupt(made is None)

    replace_lambda_client(monkeypatch, interrupt)

    said = tidemill("ops", "queue", "ls", "--function", "operate")

    assert (said.status, said.out, said.err) == (130, "", "")
