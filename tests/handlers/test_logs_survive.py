"""Whatever task code does to `logging`, the lines of the executor stay, once each and as JSON. Real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document
from tests.handlers.calls import ROOT
from tidemill.testing import Mongod

START = datetime(2026, 7, 1, tzinfo=UTC)

FUNCTIONS = """
import io, logging, logging.config, os, sys, threading
from tidemill import Retry, task


def change():
    pass


CHANGE


@task("changes")
def changes(payload):
    change()
    raise Retry("once more")


@task("fails")
def fails(payload):
    raise ValueError("no")


def say():
    logging.getLogger("shop").setLevel(logging.INFO)
    logging.getLogger("shop").info("sold %d", 3, extra={"order": 7})
    logging.getLogger("shop").debug("S3cr3t")
    logging.getLogger("library").info("S3cr3t")
    logging.getLogger("library").warning("slow")
    logging.getLogger("pymongo.command").info("S3cr3t")
    try:
        {}["missing"]
    except KeyError:
        logging.getLogger("shop").exception("lost")


@task("says")
def says(payload):
    say()


@task("says_apart", isolate=True)
def says_apart(payload):
    say()


@task("mutters_apart", isolate=True)
def mutters_apart(payload):
    print("half a line", end="", flush=True)
    logging.getLogger("shop").warning("slow")


@task("closes_apart", isolate=True)
def closes_apart(payload):
    os.closerange(0, 3)
    sys.stdout = sys.stderr = None
    for _ in range(3):
        os.open(payload["file"], os.O_CREAT | os.O_RDWR)
    logging.getLogger("shop").warning("slow")
"""

INVOKE = """
import json, logging, sys


class JsonFormatter(logging.Formatter):
    def format(self, record):
        return json.dumps({"message": record.getMessage(), "logger": record.name, "level": record.levelname})


handler = logging.StreamHandler(sys.stdout)  # as Lambda's runtime has it before it imports the function
handler.setFormatter(JsonFormatter())
logging.getLogger().addHandler(handler)
logging.getLogger().setLevel(logging.INFO)
sys.path.insert(0, sys.argv[1])
import app
from tidemill.testing import FakeContext

report = app.lambda_handler({"concurrency": 1}, FakeContext(request_id="r-1"))
sys.stderr.write(str(report["claimed"]))
"""

DICT_CONFIG = """logging.config.dictConfig({
        "version": 1,
        "formatters": {"plain": {"format": "PLAIN %(message)s"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain", "stream": sys.stdout}},
        "root": {"level": "DEBUG", "handlers": ["console"]},
    })"""
FILE_CONFIG = """logging.config.fileConfig(io.StringIO('''
[loggers]
keys=root
[handlers]
keys=console
[formatters]
keys=plain
[logger_root]
level=DEBUG
handlers=console
[handler_console]
class=StreamHandler
formatter=plain
args=(sys.stdout,)
[formatter_plain]
format=PLAIN %(message)s
'''))"""
NAMES = "for logger in map(logging.getLogger, ['tidemill', 'tidemill-execute', *logging.root.manager.loggerDict]):"
RAISING = """class Raising(logging.Logger):
        def makeRecord(self, *args, **fields):
            raise RuntimeError("S3cr3t")
    logging.setLoggerClass(Raising)"""
FACTORY = """def make(*args, **fields):
        raise RuntimeError("S3cr3t")
    logging.setLogRecordFactory(make)"""
ADDING = """def make(*args, **fields):
        record = logging.LogRecord(*args, **fields)
        record.payload = "S3cr3t"
        return record
    logging.setLogRecordFactory(make)"""
BROKEN = """class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError("S3cr3t")
    logging.getLogger().handlers[:] = [Broken()]
    logging.getLogger("tidemill-execute").handlers[:] = [Broken()]"""

CHANGES = {
    "dictConfig": DICT_CONFIG,  # N47
    "fileConfig": FILE_CONFIG,
    "basicConfig": "logging.basicConfig(force=True, stream=sys.stdout, format='PLAIN %(message)s')",  # N47b
    "no handler of the root": "logging.getLogger().handlers.clear()",
    "a handler of the root that raises": BROKEN,
    "disabled loggers": f"{NAMES} logger.disabled = True",
    "levels": f"{NAMES} logger.setLevel(logging.CRITICAL)",
    "no handlers and no parents": f"{NAMES} logger.handlers.clear(); logger.propagate = False",
    "shutdown": "logging.shutdown()",
    "disable": "logging.disable()",
    "a class of loggers": RAISING,
    "a factory of records that raises": FACTORY,
    "a factory of records that adds a field": ADDING,
    "coloured level names": "logging.addLevelName(logging.WARNING, '\\033[33mwarn\\033[0m')",
}


class Container:
    """A container of execute, with the task functions above and one change."""

    def __init__(self, path: Path, mongod: Mongod, db: Database[Any]) -> None:
        self._path, self._mongod, self._db = path, mongod, db

    def invoke(self, *names: str, source: str = FUNCTIONS, **fields: Any) -> list[str]:
        """Run one task of each name in one invocation; return the lines of the log that are not metrics."""
        package = self._path / "tasks"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "functions.py").write_text(source)
        for priority, name in enumerate(reversed(names)):
            self._db.tasks.insert_one(document(START, name=name, priority=priority, max_retries=5, **fields))
        ended = subprocess.run(
            [sys.executable, "-c", INVOKE, str(ROOT / "functions/execute")],
            env={
                "PYTHONPATH": f"{self._path}:{ROOT / 'layers/core'}",
                "MONGODB_URI": self._mongod.uri,
                "MONGODB_DATABASE": self._db.name,
                "LINGER_SEC": "0",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.stderr == str(len(names)), ended.stderr
        assert "S3cr3t" not in ended.stdout
        return [line for line in ended.stdout.splitlines() if line and "_aws" not in line]


@pytest.fixture
def container(tmp_path: Path, mongod: Mongod, db: Database[Any]) -> Container:
    return Container(tmp_path, mongod, db)


def parse(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("when", ["at its import", "in a task"])
def test_the_executors_lines_stay_whatever_a_task_module_does_to_logging(  # N47, N47b
    container: Container, when: str, change: str
) -> None:
    source = FUNCTIONS.replace("    pass\n", f"    {change}\n", 1)
    source = source.replace("CHANGE\n", "change()\n" if when == "at its import" else "")
    names = ["fails"] if when == "at its import" else ["changes", "fails"]

    lines = parse(container.invoke(*names, source=source))

    assert [(line["message"], line["level"]) for line in lines] == [
        *[("attempt", "WARNING")] * len(names),
        ("executed", "INFO"),
    ]
    assert {line["request_id"] for line in lines} == {"r-1"}
    assert not any("payload" in line for line in lines)


def test_an_isolated_function_logs_what_a_plain_one_logs_as_json(container: Container) -> None:  # N11c
    lines = parse(container.invoke("says", "says_apart", source=FUNCTIONS.replace("CHANGE\n", "")))
    said = [line for line in lines if "logger" in line]
    apart = [line for line in said if "timestamp" in line]
    plain = [line for line in said if "timestamp" not in line]

    expected = [("shop", "INFO", "sold 3"), ("library", "WARNING", "slow"), ("shop", "ERROR", "lost")]
    assert [(line["logger"], line["level"], line["message"]) for line in plain] == expected
    assert [(line["logger"], line["level"], line["message"]) for line in apart] == expected
    [sold, _, lost] = apart
    assert sold["order"] == 7
    assert datetime.fromisoformat(sold["timestamp"]).utcoffset() is not None
    assert (lost["errorType"], lost["errorMessage"]) == ("KeyError", "'missing'")
    assert "in say" in "".join(lost["stackTrace"])


def test_half_a_line_that_an_isolated_function_prints_spoils_no_line_of_its_log(container: Container) -> None:  # N11c
    lines = container.invoke("mutters_apart", source=FUNCTIONS.replace("CHANGE\n", ""))

    assert lines[0] == "half a line"
    assert parse(lines[1:2])[0]["message"] == "slow"


def test_the_log_of_an_isolated_function_goes_into_no_file_that_took_the_place_of_standard_output(  # N11c
    container: Container, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"

    source = FUNCTIONS.replace("CHANGE\n", "")
    lines = parse(container.invoke("closes_apart", source=source, payload={"file": str(theirs)}))

    assert "slow" in [line["message"] for line in lines]
    assert theirs.read_text() == ""


def test_a_task_module_that_configures_logging_configures_it_for_isolated_functions_too(  # N11c
    container: Container,
) -> None:
    source = FUNCTIONS.replace("    pass\n", f"    {DICT_CONFIG}\n", 1).replace("CHANGE\n", "change()\n")

    lines = container.invoke("mutters_apart", source=source)

    assert [line for line in lines if not line.startswith("{")] == ["half a linePLAIN slow"]
    assert [line["message"] for line in parse(lines[1:])] == ["executed"]
