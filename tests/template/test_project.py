"""The project that `tidemill init` writes: one text with the repository's template, events and pins."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from samtranslator.yaml_helper import yaml_parse

from layers.check_build import FOR_PEOPLE
from tests.template.translating import deployed
from tidemill.cli.projects import read_release
from tools.project import FOLDER, build_files, find_stale

REGION = re.compile(r">>> yours: (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The template of a project after the transform."""
    return deployed(yaml_parse(read_release().files["template.yaml"]))


def test_the_project_is_what_the_repository_says() -> None:
    assert find_stale() == [], "make project"


def test_a_change_of_the_repository_is_noticed(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(FOLDER, folder)
    (folder / "events/older.json").write_text("{}")
    (folder / "samconfig.toml").unlink()
    (folder / "template.yaml").write_text("Resources: {}\n")

    assert find_stale(folder, root) == ["events/older.json", "samconfig.toml", "template.yaml"]


def test_a_replacement_without_a_place_is_an_error(root: Path, tmp_path: Path) -> None:
    for name in ("samconfig.toml", "layers/core/requirements.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((root / name).read_bytes())
    text = (root / "template.yaml").read_text().replace("Handler: app.lambda_handler", "Handler: other.lambda_handler")
    (tmp_path / "template.yaml").write_text(text)

    with pytest.raises(ValueError, match=r"template.yaml has no .*Handler.* any more; change the replacement"):
        build_files(tmp_path)


def test_it_deploys_what_the_repository_deploys(project: dict[str, Any], template: dict[str, Any]) -> None:
    """The same resources, with the same properties but for code, handlers and the words of the example."""
    mine, theirs = name_layers(project), name_layers(template)

    assert mine.keys() == theirs.keys()
    for name in mine:
        ours, others = mine[name]["Properties"], theirs[name]["Properties"]
        different = {field for field in ours.keys() | others.keys() if ours.get(field) != others.get(field)}
        assert different <= DIFFERENT.get(mine[name]["Type"], set()), name


DIFFERENT = {
    "AWS::Lambda::Function": {"Code", "Handler", "Environment"},
    "AWS::Lambda::LayerVersion": {"Content"},
    "AWS::Scheduler::Schedule": {"Target"},
}


def name_layers(template: dict[str, Any]) -> dict[str, Any]:
    """Return the resources, with layers named without the hash of their content."""
    resources: dict[str, Any] = json.loads(re.sub(r"(Layer)[0-9a-f]{10}", r"\1", json.dumps(template["Resources"])))
    return resources


def test_each_handler_is_in_the_package(project: dict[str, Any]) -> None:
    functions = [one for one in project["Resources"].values() if one["Type"] == "AWS::Lambda::Function"]

    assert len(functions) == 5
    for function in functions:
        module, _, name = function["Properties"]["Handler"].rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_it_deploys_for_no_processor_but_the_one_that_is_built_for(project: dict[str, Any]) -> None:
    architecture = project["Parameters"]["Architecture"]

    assert architecture["AllowedValues"] == [architecture["Default"]]


def test_each_place_of_the_user_has_a_name_of_its_own(root: Path) -> None:
    for path, text in (*read_release().files.items(), ("the repository's", (root / "template.yaml").read_text())):
        names = Counter(REGION.findall(text))
        assert set(names.values()) <= {1}, path
        assert len(names) == text.count("<<< yours") - text.count('"<<< yours"'), path


def test_the_events_are_for_tasks_that_the_project_has() -> None:
    files = read_release().files
    events = "".join(text for path, text in files.items() if path.startswith("events/"))

    assert "noop" not in "".join(files.values())
    assert set(re.findall(r'\\*"name\\*": \\*"(\w+)', events)) == {"greet", "no_such_task"}
    assert '@task("greet"' in files["tasks/greet.py"]


MAKEFILES = {"build-CoreLayer": "core/Makefile", "build-TasksLayer": "tasks/Makefile"}


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        "make",
        "--dry-run",
        "--makefile",
        str(folder / MAKEFILES[arguments[0]]),
        "ARTIFACTS_DIR=/layer",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})


@pytest.mark.parametrize("target", ["build-CoreLayer", "build-TasksLayer"])
@pytest.mark.parametrize(
    ("architecture", "platform"), [("arm64", "manylinux2014_aarch64"), ("x86_64", "manylinux2014_x86_64")]
)
def test_both_layers_are_built_for_the_processor_that_the_template_names(
    tmp_path: Path, architecture: str, platform: str, target: str
) -> None:
    folder = tmp_path / "my project"
    shutil.copytree(FOLDER, folder)
    template = (folder / "template.yaml").read_text().replace("Default: arm64 #", f"Default: {architecture} #")
    (folder / "template.yaml").write_text(template)

    plan = make(folder, target)

    assert plan.returncode == 0, plan.stderr
    assert f"--platform {platform} --implementation cp --python-version 3.13" in plan.stdout


def test_an_unknown_processor_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    template = (tmp_path / "template.yaml").read_text().replace("Default: arm64 #", "Default: riscv64 #")
    (tmp_path / "template.yaml").write_text(template)

    assert "Architecture is arm64 or x86_64, not riscv64" in make(tmp_path, "build-CoreLayer").stderr


def test_the_layer_has_nothing_that_no_function_imports() -> None:
    plan = make(FOLDER, "build-CoreLayer").stdout
    removed = set(re.findall(r"tidemill/(\w+)", next(line for line in plan.splitlines() if "rm -rf tidemill/" in line)))

    assert removed >= set(FOR_PEOPLE)
