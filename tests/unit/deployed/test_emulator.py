"""Nothing is left of an emulator: neither processes, whatever they did to get away, nor files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.machine import ROOT
from tests.waiting import eventually
from tools.deployed.emulator import Emulator, EmulatorError
from tools.deployed.processes import CommandError, find_processes_in, run_command

pytestmark = pytest.mark.slow

STAND_IN = f"""#!{sys.executable}
import http.server, os, subprocess, sys

folder = os.environ["TIDEMILL_RUN_FOLDER"]
os.makedirs(folder + "/code/task")
# As a function's container: in a session of its own, with a child in another.
nested = "import subprocess, sys, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", nested], cwd=folder + "/code/task", start_new_session=True)

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

host, port = os.environ["GATEWAY_LISTEN"].split(":")
http.server.HTTPServer((host, int(port)), Health).serve_forever()
"""
PROCESSES = 2  # of functions; the emulator itself works elsewhere


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Something that answers as an emulator does, and has two processes as a function's container does."""
    path = tmp_path / "python"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return path


def has_processes(folder: Path) -> bool:
    return len(list(find_processes_in(folder))) >= PROCESSES


def is_gone(folder: Path) -> bool:
    return not folder.exists() and not list(find_processes_in(folder))


def test_nothing_is_left_of_an_emulator(python: Path) -> None:
    with Emulator(python=python, runtime_python=python) as emulator:
        assert eventually(lambda: has_processes(emulator.folder), within=10)

    assert is_gone(emulator.folder)


def test_nothing_is_left_after_a_failure(python: Path) -> None:
    def fail() -> None:
        with emulator:
            assert eventually(lambda: has_processes(emulator.folder), within=10)
            raise ZeroDivisionError

    emulator = Emulator(python=python, runtime_python=python)

    with pytest.raises(ZeroDivisionError):
        fail()

    assert is_gone(emulator.folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_drive_that_is_interrupted(python: Path, number: signal.Signals) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tools.deployed.__main__ import end_by_signals\n"
        "from tools.deployed.emulator import Emulator\n"
        "end_by_signals()\n"
        "with Emulator(python=Path(sys.argv[1]), runtime_python=Path(sys.argv[1])) as emulator:\n"
        "    print(emulator.folder, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(python)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as drive:
        assert drive.stdout is not None
        folder = Path(drive.stdout.readline().strip())
        assert eventually(lambda: has_processes(folder), within=10)

        drive.send_signal(number)
        assert drive.wait(20) != 0

    assert is_gone(folder)


def test_an_emulator_that_does_not_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module named localemu\nexit 1\n")
    python.chmod(0o755)
    emulator = Emulator(python=python, runtime_python=python)

    with pytest.raises(EmulatorError, match="no module named localemu"), emulator:
        pass

    assert is_gone(emulator.folder)


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    began_at = time.monotonic()

    with pytest.raises(CommandError, match=r"was not done within 0\.5 s"):
        run_command(["sh", "-c", "sleep 600 & wait"], env={}, cwd=tmp_path, timeout_sec=0.5)

    assert time.monotonic() - began_at < 30
    assert list(find_processes_in(tmp_path)) == []


def test_a_command_that_fails_is_told_with_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="ended with status 3: no such stack"):
        run_command(["sh", "-c", "echo no such stack; exit 3"], env={}, cwd=tmp_path, timeout_sec=30)
