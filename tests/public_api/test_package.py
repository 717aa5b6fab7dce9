"""The package itself."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tidemill
from tidemill.text import describe_missing_extra

CORE = Path(__file__).parents[2] / "layers/core"
IMPORT = """
import sys
sys.modules["pytest"] = None
from tidemill.testing import *
from tidemill import testing
assert set(testing.__all__) <= set(globals())
"""


def test_no_test_runner_is_needed() -> None:
    assert subprocess.run([sys.executable, "-c", IMPORT], timeout=60, check=False).returncode == 0


def test_the_distribution_takes_its_version_from_the_package() -> None:
    settings = tomllib.loads((CORE / "pyproject.toml").read_text())

    assert settings["project"]["dynamic"] == ["version"]
    assert settings["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "tidemill.__version__"}}


def test_the_distribution_has_the_licence_of_the_repository() -> None:
    assert (CORE / "LICENSE").read_bytes() == (CORE.parents[1] / "LICENSE").read_bytes()


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


def test_each_package_of_an_extra_is_known_to_belong_to_it() -> None:
    extras = tomllib.loads((CORE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        (re.split(r"[\[><=]", requirement)[0].replace("-", "_"), extra)
        for extra, requirements in extras.items()
        for requirement in requirements
        if not requirement.startswith(("tidemill", "fiftyone"))
    }

    assert len(named) >= 6
    for module, extra in named:
        assert describe_missing_extra("it", f"{module}.inner") == (
            f"it needs the extra {extra}, which is not installed: pip install 'tidemill[{extra}]'"
        )
    assert describe_missing_extra("it", "tasks") is None
    assert describe_missing_extra("it", None) is None


def test_without_the_extra_the_handlers_name_it() -> None:
    program = "import sys; sys.modules['aws_lambda_powertools'] = None; import tidemill.handlers.execute"
    refused = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert refused.stderr.endswith(
        "\nModuleNotFoundError: tidemill.handlers needs the extra lambda, which is not installed: "
        "pip install 'tidemill[lambda]'\n"
    )


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
