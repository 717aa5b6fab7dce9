"""`tidemill check`: every fault that a deployment would fail with, at its place, without a MongoDB."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Said

ROOT = Path(__file__).parents[2]
CORE = ROOT / "layers/core"
HEAD = "from tidemill import task\n\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the template of this repository and one sound module."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/__init__.py").touch()
    (tmp_path / "tasks/sound.py").write_text(f'{HEAD}@task("sound", timeout=40)\ndef sound(payload): ...\n')
    shutil.copy(ROOT / "template.yaml", tmp_path)
    shutil.copy(ROOT / "samconfig.toml", tmp_path)
    return tmp_path


def check(project: Path, *arguments: str, **environment: str) -> Said:
    """Run the command in a process of its own: what it imports stays in the process."""
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CORE), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "tidemill", "check", *arguments],
        cwd=project,
        env=given | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Said(status=run.returncode, out=run.stdout, err=run.stderr)


def replace_in(file: Path, old: str, new: str) -> int:
    """Replace *old*, which is there once, and return the number of its line."""
    text = file.read_text()
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new))
    return text.partition(old)[0].count("\n") + 1


def test_a_sound_project_has_no_fault(project: Path) -> None:
    said = check(project)

    assert (said.status, said.err) == (0, "")
    assert said.out == (
        "no fault: 1 task function of tasks; attempts of up to 50 s (ExecuteTimeout 120 of template.yaml)\n"
    )


def test_every_fault_has_a_line_with_its_place(project: Path) -> None:
    (project / "tasks/a.py").write_text(
        f"""{HEAD}print("noise")

@task("long", timeout=300)
def long(payload): ...

@task("retried", retry="often")
def retried(payload): ...

@task("two words")
def words(payload): ...

@task("twice")
def one(payload): ...
"""
    )
    (project / "tasks/b.py").write_text(f'{HEAD}@task("twice")\ndef other(payload): ...\n')
    (project / "tasks/c.py").write_text("import nowhere_to_be_found\n")
    (project / "tasks/d.py").write_text("def connect(uri):\n    raise RuntimeError(uri)\n\nconnect('se' + 'cret')\n")
    (project / "tasks/e.py").write_text("def x(:\n")
    (project / "tasks/skipped").mkdir()
    (project / "tasks/skipped/f.py").touch()
    (project / "tasks/g.old.py").touch()
    policy = replace_in(project / "template.yaml", "RETRY_POLICY: default", "RETRY_POLICY: often")
    share = replace_in(project / "template.yaml", 'RETRY_SHARE: "0.2"', 'RETRY_SHARE: "7"')

    said = check(project)

    faults = [line for line in said.out.splitlines() if not line.startswith(" ")]
    places = {line.split(": ")[0]: line.partition(": ")[2] for line in faults}
    assert said.status == 1
    assert said.err == "noise\ntidemill: 11 faults: correct them before you deploy\n"
    assert len(faults) == 11
    expected = {
        f"template.yaml:{policy}": "RETRY_POLICY must be the name of a preset",
        f"template.yaml:{share}": "RETRY_SHARE must be a number from 0 to 1",
        "tasks/a.py:5": "the timeout of 'long' is 300 s, above MAX_TASK_TIMEOUT_SEC, which is 50; lower it",
        "tasks/a.py:8": "the retry of 'retried' must be the name of a preset",
        "tasks/a.py:11": "'two words' is no name for a task",
        "tasks/b.py:3": "two functions are registered as 'twice': tasks.a.one (line 14) and tasks.b.other (line 3)",
        "tasks/c.py:1": "the task module tasks.c cannot be imported: ModuleNotFoundError",
        "tasks/d.py:2": "the task module tasks.d cannot be imported: RuntimeError",
        "tasks/e.py:1": "the task module tasks.e cannot be imported: SyntaxError",
        "tasks/skipped": "Python would skip skipped in the package tasks: it has no __init__.py",
        "tasks/g.old.py": "Python would skip g.old.py in the package tasks: its name has a dot",
    }
    assert places.keys() == expected.keys()
    for place, problem in places.items():
        assert problem.startswith(expected[place]), (place, problem)


def test_a_failed_import_shows_its_last_lines_and_no_text_of_its_error(project: Path) -> None:
    (project / "tasks/d.py").write_text("def connect(uri):\n    raise RuntimeError(uri)\n\nconnect('se' + 'cret')\n")

    said = check(project)

    assert said.out.splitlines()[1:] == [
        f'    File "{project}/tasks/d.py", line 4, in <module>',
        "      connect('se' + 'cret')",
        f'    File "{project}/tasks/d.py", line 2, in connect',
        "      raise RuntimeError(uri)",
    ]
    assert "secret" not in said.out + said.err


def test_json_has_the_same_faults(project: Path) -> None:
    (project / "tasks/c.py").write_text("print('noise')\nimport nowhere_to_be_found\n")

    said = check(project, "--json")

    document: dict[str, Any] = json.loads(said.out)
    assert said.status == 1
    [fault] = document.pop("faults")
    assert document == {"package": "tasks", "functions": ["sound"], "max_task_timeout_sec": 50}
    assert (fault["file"], fault["line"], fault["name"]) == ("tasks/c.py", 2, None)
    assert fault["problem"].startswith("the task module tasks.c cannot be imported: ModuleNotFoundError: No module")
    assert len(fault["traceback"]) == 2


OVERRIDES = "\n[{name}.deploy.parameters]\nparameter_overrides = {value}\n"


@pytest.mark.parametrize(
    ("arguments", "environment", "overrides", "limit", "source"),
    [
        (["--execute-timeout", "90"], {"MAX_TASK_TIMEOUT_SEC": "60"}, '"ExecuteTimeout=300"', 35, "ExecuteTimeout 90"),
        ([], {"MAX_TASK_TIMEOUT_SEC": "60"}, '"ExecuteTimeout=300"', 60, "this shell"),
        ([], {}, '"Concurrency=4 ExecuteTimeout=\\"300\\""', 140, "ExecuteTimeout 300 of samconfig.toml"),
        ([], {}, '["Concurrency=4", "ExecuteTimeout=180"]', 80, "ExecuteTimeout 180 of samconfig.toml"),
        ([], {}, "{ ExecuteTimeout = 600 }", 290, "ExecuteTimeout 600 of samconfig.toml"),
        (["--config-env", "test"], {}, '"ExecuteTimeout=600"', 50, "ExecuteTimeout 120 of template.yaml"),
    ],
)
def test_the_longest_timeout_is_that_of_the_deployment(  # noqa: PLR0917 - a table
    project: Path, arguments: list[str], environment: dict[str, str], overrides: str, limit: int, source: str
) -> None:
    config = project / "samconfig.toml"
    config.write_text(config.read_text().replace("resolve_s3 = true", f"parameter_overrides = {overrides}"))

    said = check(project, *arguments, **environment)

    if limit < 40:
        assert f"tasks/sound.py:3: the timeout of 'sound' is 40 s, above MAX_TASK_TIMEOUT_SEC, which is {limit};" in (
            said.out
        )
    else:
        assert f"attempts of up to {limit} s ({source})\n" in said.out


def test_the_limit_is_that_of_the_template_for_each_execute_timeout(project: Path) -> None:
    mapping = (project / "template.yaml").read_text().partition("  TimeBudget:\n")[2].partition("\n\n")[0]
    budgets = {line.split('"')[1]: line.split("MaxTaskTimeout: ")[1].split(",")[0] for line in mapping.splitlines()}

    assert len(budgets) == 6
    for timeout, limit in budgets.items():
        document = json.loads(check(project, "--json", "--execute-timeout", timeout).out)
        assert document["max_task_timeout_sec"] == float(limit)


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--tasks", "nowhere"], {}, "there is no package nowhere where Python looks"),
        (["--tasks", "tasks.sound"], {}, "tasks.sound is a single module: task modules are the files of a package"),
        ([], {"TASK_PACKAGE": "tasks.sound"}, "tasks.sound is a single module"),
    ],
)
def test_a_package_that_is_none_is_one_sentence(
    project: Path, arguments: list[str], environment: dict[str, str], sentence: str
) -> None:
    said = check(project, *arguments, **environment)

    assert (said.status, said.out) == (1, "")
    assert said.err.startswith(f"tidemill: {sentence}")
    assert said.err.count("\n") == 1


def test_a_package_without_a_function_is_a_fault(project: Path) -> None:
    (project / "tasks/sound.py").unlink()

    said = check(project)

    assert (said.status, said.out) == (1, "the modules of tasks register no task function\n")


def test_a_variable_of_the_shell_is_a_fault_without_its_value(project: Path) -> None:
    said = check(project, CONCURRENCY="secret")

    assert said.out == "CONCURRENCY must be a whole number from 1 to 256 (this shell)\n"


def test_a_file_that_is_no_toml_is_one_sentence(project: Path) -> None:
    (project / "samconfig.toml").write_text("[default")

    assert check(project).err.startswith("tidemill: samconfig.toml: is not valid TOML (")
