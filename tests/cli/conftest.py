"""The command line in this process: its `main`, on the test's database."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import pytest
from pymongo.database import Database

from tests.handlers.calls import app
from tests.handlers.lambda_api import replace_lambda_client
from tests.handlers.warm import cool_down
from tidemill.cli import main
from tidemill.clock import ServerClock
from tidemill.testing import Mongod


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """Runs commands with *options* of its own and keeps what they print, up to 100 columns wide."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *options: str) -> None:
        self._capsys = capsys
        self._options = options

    def __call__(self, *arguments: str) -> Said:
        self._capsys.readouterr()
        status = main((*arguments, *self._options))
        out, err = self._capsys.readouterr()
        return Said(status=status, out=out, err=err)

    def done(self, *arguments: str) -> Said:
        """Run a command that has to succeed."""
        said = self(*arguments)
        assert (said.status, said.err) == (0, "")
        return said

    def refused(self, *arguments: str) -> str:
        """Return the one line with which a command has to fail."""
        said = self(*arguments)
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith("tidemill: ")
        assert said.err.count("\n") == 1
        return said.err.removeprefix("tidemill: ").rstrip("\n")


class Terminal(io.StringIO):
    """What a terminal shows."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class OnTerminal(CommandLine):
    """Runs commands whose stdout is a terminal."""

    def __call__(self, *arguments: str) -> Said:
        with redirect_stdout(Terminal()) as terminal:
            said = super().__call__(*arguments)
        return replace(said, out=terminal.getvalue())


Answer: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


class Function:
    """A client of Lambda whose operate function gives the answers of *answer*."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def invoke(self, **how: Any) -> dict[str, Any]:
        answer = self._answer(json.loads(how["Payload"]))
        return {"StatusCode": 200, "Payload": io.BytesIO(json.dumps(answer).encode())}


@pytest.fixture
def tidemill(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """The command line where nothing says where a database is."""
    for name in ("MONGODB_URI", "MONGODB_SECRET_ARN", "MONGODB_DATABASE", "RETRY_POLICY", "ARCHIVE_BUCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    cool_down()
    yield CommandLine(capsys)
    cool_down()


@pytest.fixture
def operator(tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch, mongod: Mongod, db: Database[Any]) -> CommandLine:
    """The command line on the test's database, where an executor has registered something."""
    db["task_types"].insert_one({"_id": "registered"})
    monkeypatch.setenv("MONGODB_URI", mongod.uri)
    monkeypatch.setenv("MONGODB_DATABASE", db.name)
    return tidemill


@pytest.fixture
def terminal(
    operator: CommandLine,  # noqa: ARG001 - its environment
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> CommandLine:
    """The command line on a terminal of 80 columns, without colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    return OnTerminal(capsys)


@pytest.fixture
def died(db: Database[Any]) -> datetime:
    """An hour ago, as the server has it."""
    return ServerClock(db).now() - timedelta(hours=1)


@pytest.fixture
def deploy(
    operator: CommandLine,  # noqa: ARG001 - its environment
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[Answer], CommandLine]:
    """Put a function in place; what comes back is the command line that calls it."""

    def put_in_place(answer: Answer) -> CommandLine:
        replace_lambda_client(monkeypatch, lambda: Function(answer))
        return CommandLine(capsys, "--function", "operate")

    return put_in_place


class Interruption:
    """The error that ends one call of the function, counted from 0, before it does anything."""

    def __init__(self) -> None:
        self._errors: Iterator[BaseException | None] = iter(())

    def set(self, call: int, error: BaseException) -> None:
        """Let *error* end that call, of those from now on."""
        self._errors = iter([*[None] * call, error])

    def check(self) -> None:
        """Raise the error, if it is time to."""
        error = next(self._errors, None)
        if error is not None:
            raise error


@pytest.fixture
def interruption() -> Interruption:
    """What ends a call of `by_two`: nothing, until a test sets it."""
    return Interruption()


@pytest.fixture
def by_two(
    deploy: Callable[[Answer], CommandLine], interruption: Interruption, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line that calls the real function, of which each call has time for two dead letters."""
    for handler in app("operate").logger.handlers:
        monkeypatch.setattr(handler, "stream", io.StringIO())

    def answer(event: dict[str, Any]) -> Mapping[str, Any]:
        interruption.check()
        done: dict[str, Any] = app("operate").lambda_handler(event | {"limit": min(event["limit"], 2)}, None)
        return done

    return deploy(answer)
