"""The package itself."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tidemill

IMPORT = """
import sys
sys.modules["pytest"] = None
from tidemill.testing import *
from tidemill import testing
assert set(testing.__all__) <= set(globals())
"""


def test_no_test_runner_is_needed() -> None:
    assert subprocess.run([sys.executable, "-c", IMPORT], timeout=60, check=False).returncode == 0


def test_the_version_is_the_one_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "layers/core/pyproject.toml").read_text())["project"]

    assert tidemill.__version__ == project["version"]


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["ops", "queue", "pause"]])
def test_python_runs_the_package_as_the_command(words: list[str]) -> None:
    # kind 10
    command, module = (
        subprocess.run([sys.executable, *start, *words], capture_output=True, text=True, timeout=60, check=False)
        for start in (["-c", "import sys; from tidemill.cli import main; sys.exit(main())"], ["-m", "tidemill"])
    )

    assert (module.returncode, module.stdout, module.stderr) == (command.returncode, command.stdout, command.stderr)
    assert words != ["--version"] or module.stdout == f"tidemill {tidemill.__version__}\n"


WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None; from tidemill.cli import main; sys.exit(main())"


@pytest.mark.parametrize("missing", ["click", "rich"])
@pytest.mark.parametrize(
    "words", [["policy", "ls"], ["simulate"], ["dlq", "export", "--dry-run"]], ids=lambda words: words[0]
)
def test_without_the_extra_the_command_names_it(missing: str, words: list[str]) -> None:
    # A12
    refused = subprocess.run(
        [sys.executable, "-c", WITHOUT, missing, *words], capture_output=True, text=True, timeout=60, check=False
    )

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "tidemill: this command needs the extra cli, which is not installed: pip install 'tidemill[cli]'\n"
    )
