"""How the two layers are declared and built. Building them for real takes the network: `sam build`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from layers.check_build import FOR_PEOPLE
from tests.template.deployment import Deploy

LAYERS = {"CoreLayer": "layers/core", "TasksLayer": "layers/tasks"}
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
WITHOUT_WHEELS = "PYTHON=true"
WITHOUT_BYTECODE = "COMPILERS=true"
each_layer = pytest.mark.parametrize(("name", "folder"), LAYERS.items())


def make(folder: Path, name: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--directory", str(folder), f"build-{name}", *arguments]
    environment = {"PATH": os.environ["PATH"], **environ}  # not what `make test` hands down, nor a person's ARCH
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


def test_every_function_has_the_core_and_executors_have_the_tasks(resources: dict[str, Any], deploy: Deploy) -> None:
    stack = deploy()
    names = {arn: name for name in resources if "Layer" in name for arn in [stack.arn(name)]}
    layers = {
        name: [re.sub(r"[0-9a-f]{10}$", "", names[arn]) for arn in function["Layers"]]
        for name, function in stack.of_type("AWS::Lambda::Function").items()
    }

    assert layers.pop("ExecuteFunction") == ["CoreLayer", "TasksLayer"]
    assert set(map(tuple, layers.values())) == {("CoreLayer",)}


def test_a_layer_of_ones_own_takes_the_place_of_the_tasks(deploy: Deploy) -> None:
    arn = "arn:aws:lambda:eu-central-1:123456789012:layer:our-tasks:7"
    ours, own = deploy(), deploy(TasksLayerArn=arn)
    made = own.of_type("AWS::Lambda::LayerVersion")

    assert len(ours.of_type("AWS::Lambda::LayerVersion")) == 2
    assert [layer["LayerName"] for layer in made.values()] == ["tidemill-core"]
    assert own.of_type("AWS::Lambda::Function")["ExecuteFunction"]["Layers"] == [own.arn(next(iter(made))), arn]


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
def test_a_layer_is_the_same_whoever_builds_it(root: Path, tmp_path: Path, name: str, folder: str) -> None:
    script, record = (tmp_path / "python" / path for path in ("bin/jp.py", "jmespath-1.1.0.dist-info/RECORD"))
    for path in (script, record):  # as pip leaves them: a path of this machine, and its hash
        path.parent.mkdir(parents=True)
        path.touch()

    make(root / folder, name, f"ARTIFACTS_DIR={tmp_path}", WITHOUT_WHEELS, WITHOUT_BYTECODE)

    assert not script.exists()
    assert not record.exists()


@each_layer
def test_a_layer_is_built_for_another_python_only_where_somebody_says_so(root: Path, name: str, folder: str) -> None:
    arguments = ("--dry-run", "ARTIFACTS_DIR=/layer")

    recipe = make(root / folder, name, *arguments, LAMBDA_PYTHON="3.11").stdout
    in_an_image_of_python = make(root / folder, name, *arguments, PYTHON_VERSION="3.11.7").stdout

    assert "--python-version 3.11 " in recipe
    assert "--python-version 3.13 " in in_an_image_of_python


@each_layer
def test_bytecode_is_made_by_the_python_that_will_use_it(root: Path, tmp_path: Path, name: str, folder: str) -> None:
    compilers = f'COMPILERS=true /nowhere/python "{sys.executable}"'

    built = make(
        root / folder, name, f"ARTIFACTS_DIR={tmp_path}", WITHOUT_WHEELS, compilers, f"LAMBDA_PYTHON={THIS_PYTHON}"
    )

    assert built.returncode == 0, built.stderr
    assert "without .pyc" not in built.stdout
    sources, bytecode = (sorted(tmp_path.rglob(f"*.{suffix}")) for suffix in ("py", "pyc"))
    assert len(bytecode) == len(sources) > 0
    assert {path.read_bytes()[4:8] for path in bytecode} == {b"\x01\x00\x00\x00"}  # an unchecked hash
    assert all(b"/opt/python/" in path.read_bytes() for path in bytecode)  # the path in tracebacks
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in bytecode)


@each_layer
def test_another_python_makes_no_bytecode(root: Path, tmp_path: Path, name: str, folder: str) -> None:
    compilers = f'COMPILERS="{sys.executable}"'

    built = make(root / folder, name, f"ARTIFACTS_DIR={tmp_path}", WITHOUT_WHEELS, compilers, "LAMBDA_PYTHON=3.9")

    assert built.returncode == 0
    assert "without .pyc files: with python3.9 on the PATH, or in PYTHON313" in built.stdout
    assert list(tmp_path.rglob("*.pyc")) == []


@each_layer
def test_the_python_that_makes_bytecode_is_looked_for(root: Path, name: str, folder: str) -> None:
    recipe = make(root / folder, name, "--dry-run", "ARTIFACTS_DIR=/layer", "PYTHON=p", PYTHON313="/a/python").stdout

    assert 'for python in "p" "/a/python" python3.13;' in recipe


@each_layer
def test_the_folders_of_a_build_may_have_blanks_in_their_names(
    root: Path, tmp_path: Path, name: str, folder: str
) -> None:
    python, layer = tmp_path / "a folder" / "python", tmp_path / "my layer"
    tells_its_arguments(python, version="3.13")

    built = make(root / folder, name, f"ARTIFACTS_DIR={layer}", f"PYTHON={python}")
    by_another = make(root / folder, name, f"ARTIFACTS_DIR={layer}", "PYTHON=true", f"PYTHON313={python}")

    assert (built.returncode, built.stderr) == (by_another.returncode, by_another.stderr) == (0, "")
    assert "<-m> <pip> <install>" in built.stdout
    assert f"<--target> <{layer}/python>" in built.stdout
    for made in (built, by_another):
        assert f"<compileall> <-q> <--invalidation-mode> <unchecked-hash> <-s> <{layer}/python>" in made.stdout


def tells_its_arguments(python: Path, *, version: str, fails: int = 0) -> None:
    """Make what looks like a Python of some version, prints its arguments and ends as is said."""
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec echo {version}\nprintf "<%s> " "$@"\n[ "$2" = pip ] || exit {fails}\n'
    )
    python.chmod(0o755)


@each_layer
def test_a_python_that_cannot_make_bytecode_leaves_it_to_the_next(
    root: Path, tmp_path: Path, name: str, folder: str
) -> None:
    broken = tmp_path / "broken" / "python"
    tells_its_arguments(broken, version=THIS_PYTHON, fails=127)
    layer = (f"ARTIFACTS_DIR={tmp_path}", f"LAMBDA_PYTHON={THIS_PYTHON}", f"PYTHON={broken}")

    by_the_next = make(root / folder, name, *layer, f"PYTHON313={sys.executable}")
    by_nobody = make(root / folder, name, *layer, 'COMPILERS="$(PYTHON)"')

    assert (by_the_next.returncode, by_nobody.returncode) == (0, 0), by_the_next.stderr
    assert list(tmp_path.rglob("*.pyc")) == []  # those of the first build: the second was without
    assert "built without .pyc" not in by_the_next.stdout
    assert "built without .pyc" in by_nobody.stdout


@each_layer
def test_a_module_that_does_not_compile_ends_the_build(root: Path, tmp_path: Path, name: str, folder: str) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "wrong.py").write_text("def:\n")
    compilers = f'COMPILERS="{sys.executable}"'

    built = make(
        root / folder, name, f"ARTIFACTS_DIR={tmp_path}", WITHOUT_WHEELS, compilers, f"LAMBDA_PYTHON={THIS_PYTHON}"
    )

    assert built.returncode != 0
    assert "wrong.py" in built.stdout


def test_a_missing_package_index_is_told_in_a_sentence(root: Path, tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    arguments = (f"ARTIFACTS_DIR={tmp_path}", f"PYTHON={sys.executable}", WITHOUT_BYTECODE)

    built = make(root / "layers/core", "CoreLayer", *arguments, PIP_RETRIES="0", PIP_NO_CACHE_DIR="1", **nowhere)

    assert built.returncode != 0
    assert "tidemill: pip could not install the layer's wheels; it needs a package index" in built.stderr


@each_layer
def test_an_unknown_processor_is_refused(root: Path, tmp_path: Path, name: str, folder: str) -> None:
    built = make(root / folder, name, f"ARTIFACTS_DIR={tmp_path}", "ARCH=riscv64")

    assert built.returncode != 0
    assert "ARCH is arm64 or x86_64, not riscv64" in built.stderr


def test_the_core_is_shipped_without_what_people_use(root: Path, tmp_path: Path) -> None:
    built = make(root / "layers/core", "CoreLayer", f"ARTIFACTS_DIR={tmp_path}", WITHOUT_WHEELS, WITHOUT_BYTECODE)

    assert built.returncode == 0, built.stderr
    package = tmp_path / "python" / "tidemill"
    assert (package / "errors.py").is_file()
    assert [path for path in package.rglob("*") if path.name in {*FOR_PEOPLE, "__pycache__"}] == []


def test_the_task_functions_are_shipped_as_a_package_of_their_own(root: Path, tmp_path: Path) -> None:
    built = make(root / "layers/tasks", "TasksLayer", f"ARTIFACTS_DIR={tmp_path}", WITHOUT_WHEELS, WITHOUT_BYTECODE)

    assert built.returncode == 0, built.stderr
    shipped = {path.name for path in (tmp_path / "python" / "tasks").glob("*.py")}
    assert shipped == {path.name for path in (root / "layers/tasks/tasks").glob("*.py")}


def test_both_layers_are_built_alike_but_for_what_is_in_them(root: Path) -> None:
    """Twice the same recipe: SAM copies each folder away from the other before it calls make there."""
    core, tasks = ((root / folder / "Makefile").read_text() for folder in LAYERS.values())
    core = core.replace("CoreLayer", "TasksLayer").replace("cp -R tidemill ", "cp -R tasks ")

    assert core.replace(" tidemill/cli tidemill/dev tidemill/simulation tidemill/testing", "") == tasks
