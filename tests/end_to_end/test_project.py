"""A project of one's own, from the wheel: written, tested, linted, built, and loaded as Lambda would load it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from layers.check_build import Build, problems
from tests.machine import ROOT
from tidemill import __version__

SAM = ROOT / "build/sam-venv/bin/sam"
RUNTIME_PYTHON = ROOT / "build/runtime-venv/bin/python"
ARCHITECTURE = "arm64" if platform.machine() in {"aarch64", "arm64"} else "x86_64"
WITHIN_SEC = 300
pytestmark = pytest.mark.slow
LOAD = """
import importlib, sys
for verb in ("enqueue", "execute", "reclaim", "archive", "operate"):
    assert callable(importlib.import_module(f"tidemill.handlers.{verb}").lambda_handler)
import tasks.greet, tidemill
print(tidemill.__file__)
print(tasks.__file__)
"""


def run(command: Sequence[str | Path], *, cwd: Path, variables: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=WITHIN_SEC,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = folder / "core"
    shutil.copytree(ROOT / "layers/core", sources, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sources], cwd=folder)
    shutil.rmtree(sources)
    return folder


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which Python finds the wheel, and not the repository."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-deps", "--target", site, *wheels.iterdir()], cwd=site)
    return {"PYTHONPATH": str(site)}


@pytest.fixture(scope="module")
def project(installed: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project for the processor of this machine, in a folder with a blank in its name."""
    folder = tmp_path_factory.mktemp("projects") / "my orders"
    run([sys.executable, "-m", "tidemill", "init", folder], cwd=folder.parent, variables=installed)
    template = folder / "template.yaml"
    text = template.read_text().replace("Default: arm64 #", f"Default: {ARCHITECTURE} #")
    template.write_text(text.replace("AllowedValues: [arm64]", f"AllowedValues: [{ARCHITECTURE}]"))
    return folder


def test_the_tests_of_a_project_pass(project: Path, installed: Mapping[str, str]) -> None:
    printed = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=project, variables=installed)

    assert "2 passed" in printed


def test_a_project_is_linted_and_built_with_its_own_tasks(project: Path, wheels: Path) -> None:
    (project / "tasks/own.py").write_text("import idna\n")
    (project / "tasks/requirements.txt").write_text("idna\n")
    python = run([RUNTIME_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], cwd=project).strip()
    links = f"{wheels} {os.environ.get('PIP_FIND_LINKS', '')}"
    variables = {
        "SAM_CLI_TELEMETRY": "0", "__SAM_CLI_APP_DIR": str(project.parent / "sam"), "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_CONFIG_FILE": os.devnull,
        "LAMBDA_PYTHON": python, "PYTHON": sys.executable, "PYTHON313": str(RUNTIME_PYTHON), "PIP_FIND_LINKS": links,
    }  # fmt: skip
    run([SAM, "validate", "--lint"], cwd=project, variables=variables)
    run([SAM, "build"], cwd=project, variables=variables)

    build = project / ".aws-sam/build"
    assert problems(Build(folder=build, arch=ARCHITECTURE, python=python)) == []
    core, tasks = build / "CoreLayer/python", build / "TasksLayer/python"
    assert (core / f"tidemill-{__version__}.dist-info").is_dir()
    assert {path.name for path in (tasks / "tasks").iterdir()} >= {"__init__.py", "greet.py", "own.py"}
    assert (tasks / "idna").is_dir()
    assert not (tasks / "tasks/requirements.txt").exists()
    assert list(core.glob("tidemill/__pycache__/client.*.pyc"))
    loaded = run([RUNTIME_PYTHON, "-c", LOAD], cwd=build, variables={"PYTHONPATH": f"{tasks}{os.pathsep}{core}"})
    assert loaded.splitlines() == [str(core / "tidemill/__init__.py"), str(tasks / "tasks/__init__.py")]
