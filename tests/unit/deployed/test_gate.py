"""The gate deploys where there is a Python 3.13, and compares the stamp elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine import ROOT

SCRIPTS = ("requirements/python.sh", "tools/deployed/gate.sh")
RUNS = '#!/bin/sh\necho "$0 $*"\n'
BROKEN = "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n"
VERSION = "{}.{}".format(*sys.version_info[:2])


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone without any Python but that of its virtual environment, and with a make that only says what it is for."""
    for name in SCRIPTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    add_program(tmp_path / "bin/make", RUNS)
    add_program(tmp_path / ".venv/bin/python", RUNS)
    return tmp_path


def add_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def add_python(path: Path, *, version: str) -> None:
    """A Python that says it is of a version; all else is true of the one that runs this."""
    code = f"import sys; sys.version_info = ({version.replace('.', ', ')}, 0)"
    add_program(path, f'#!/bin/sh\nexec "{sys.executable}" -c "{code}; exec(sys.argv.pop(1))" "$2" "$3"\n')


def run(clone: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{clone / 'bin'}:{os.defpath}", "PYENV_ROOT": str(clone / "pyenv")}
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)


def test_a_python_on_the_path_deploys(clone: Path) -> None:
    add_python(clone / "bin/python3.13", version="3.13")

    done = run(clone, "sh", "tools/deployed/gate.sh")

    assert (done.returncode, done.stdout) == (0, f"{clone}/bin/make deployed\n")


def test_a_python_of_pyenv_deploys_though_its_shim_does_not_run(clone: Path) -> None:
    add_program(clone / "bin/python3.13", BROKEN)
    add_python(clone / "pyenv/versions/3.13.0/bin/python", version="3.13")

    done = run(clone, "sh", "tools/deployed/gate.sh")

    assert (done.returncode, done.stdout) == (0, f"{clone}/bin/make deployed\n")


def test_without_one_the_stamp_is_compared(clone: Path) -> None:
    add_program(clone / "bin/python3.13", BROKEN)
    add_python(clone / "pyenv/versions/3.13.1/bin/python", version="3.12")

    done = run(clone, "sh", "tools/deployed/gate.sh")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == ".venv/bin/python -m tools.deployed --check-stamp"
    assert "Python 3.13 is needed" in done.stderr


def test_a_stamp_that_is_out_of_date_fails_the_gate(clone: Path) -> None:
    add_program(clone / ".venv/bin/python", "#!/bin/sh\nexit 1\n")

    assert run(clone, "sh", "tools/deployed/gate.sh").returncode == 1


def test_the_python_that_is_found_is_one_that_runs_this_version(clone: Path) -> None:
    add_python(clone / f"pyenv/versions/{VERSION}.0/bin/python", version="2.7")
    add_python(clone / f"pyenv/versions/{VERSION}.1/bin/python", version=VERSION)
    add_program(clone / f"bin/python{VERSION}", BROKEN)

    done = run(clone, "sh", "requirements/python.sh", VERSION)

    assert done.stdout == f"{clone}/pyenv/versions/{VERSION}.1/bin/python\n"


def test_a_missing_python_is_told_in_a_sentence(clone: Path) -> None:
    done = run(clone, "sh", "requirements/python.sh", "3.99")

    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("tidemill: Python 3.99 is needed")
    assert "pyenv install 3.99" in line
