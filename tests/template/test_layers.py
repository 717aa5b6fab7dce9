"""How the two layers are declared and built. Building them for real takes the network: `sam build`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

LAYERS = {"CoreLayer": "layers/core", "TasksLayer": "layers/tasks"}
each_layer = pytest.mark.parametrize(("name", "folder"), LAYERS.items())


def make(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--directory", str(folder), f"build-{name}", *arguments]
    environment = {"PATH": os.environ["PATH"]}  # not what `make test` hands down, nor a person's ARCH
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@each_layer
def test_a_layer_is_built_by_its_makefile(source: dict[str, Any], root: Path, name: str, folder: str) -> None:
    layer = source["Resources"][name]

    assert layer["Properties"]["ContentUri"] == folder
    assert layer["Metadata"] == {"BuildMethod": "makefile", "BuildArchitecture": {"Ref": "Architecture"}}
    assert f"\nbuild-{name}:\n" in (root / folder / "Makefile").read_text()


@pytest.mark.parametrize("folder", LAYERS.values())
def test_a_layer_fits_the_functions(resources: dict[str, Any], folder: str) -> None:
    [layer] = [
        r["Properties"] for r in resources.values() if r["Properties"].get("LayerName", {}) == layer_name(folder)
    ]

    assert layer["CompatibleRuntimes"] == ["python3.13"]
    assert layer["CompatibleArchitectures"] == [{"Ref": "Architecture"}]


def layer_name(folder: str) -> dict[str, str]:
    return {"Fn::Sub": "${AWS::StackName}-" + folder.rpartition("/")[2]}


def test_every_function_has_the_core_and_executors_have_the_tasks(resources: dict[str, Any]) -> None:
    layers = {
        name: [re.sub(r"[0-9a-f]{10}$", "", layer["Ref"]) for layer in r["Properties"]["Layers"]]
        for name, r in resources.items()
        if r["Type"] == "AWS::Lambda::Function"
    }

    assert layers.pop("ExecuteFunction") == ["CoreLayer", "TasksLayer"]
    assert set(map(tuple, layers.values())) == {("CoreLayer",)}


@each_layer
def test_a_layer_takes_only_pinned_wheels_from_wherever_pip_is_told(root: Path, name: str, folder: str) -> None:
    recipe = make(root / folder, name, "--dry-run", "ARTIFACTS_DIR=/layer").stdout

    assert "--require-hashes" in recipe
    assert "--only-binary=:all:" in recipe
    assert "--python-version 3.13" in recipe
    assert '--target "/layer/python" -r requirements.txt' in recipe
    assert re.search(r"https?:|index-url|find-links|trusted-host", recipe) is None


@each_layer
@pytest.mark.parametrize(
    ("arguments", "platform"),
    [
        ([], "manylinux2014_aarch64"),
        (["ARCH=arm64"], "manylinux2014_aarch64"),
        (["ARCH=x86_64"], "manylinux2014_x86_64"),
    ],
)
def test_a_layer_is_built_for_the_processor_asked_for(
    root: Path, name: str, folder: str, arguments: list[str], platform: str
) -> None:
    recipe = make(root / folder, name, "--dry-run", "ARTIFACTS_DIR=/layer", *arguments).stdout

    assert f"--platform {platform} " in recipe


@each_layer
def test_an_unknown_processor_is_refused(root: Path, tmp_path: Path, name: str, folder: str) -> None:
    built = make(root / folder, name, f"ARTIFACTS_DIR={tmp_path}", "ARCH=riscv64")

    assert built.returncode != 0
    assert "ARCH is arm64 or x86_64, not riscv64" in built.stderr


def test_the_core_is_shipped_without_what_people_use(root: Path, tmp_path: Path) -> None:
    built = make(root / "layers/core", "CoreLayer", f"ARTIFACTS_DIR={tmp_path}", "PYTHON=true")

    assert built.returncode == 0, built.stderr
    package = tmp_path / "python" / "tidemill"
    assert (package / "errors.py").is_file()
    assert [path for path in package.rglob("*") if path.name in {"cli", "testing", "__pycache__"}] == []


def test_the_task_functions_are_shipped_as_a_package_of_their_own(root: Path, tmp_path: Path) -> None:
    built = make(root / "layers/tasks", "TasksLayer", f"ARTIFACTS_DIR={tmp_path}", "PYTHON=true")

    assert built.returncode == 0, built.stderr
    shipped = {path.name for path in (tmp_path / "python" / "tasks").glob("*.py")}
    assert shipped == {path.name for path in (root / "layers/tasks/tasks").glob("*.py")}
