"""What `make build` and `make e2e` run. Running it takes the network and a minute: the gate does that once."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

LOCKS = [
    *("layers/core", "layers/tasks", "requirements/dev", "requirements/runtime", "requirements/sam"),
    *("requirements/deployed", "requirements/deployed-source", "requirements/release"),
]


def planned(root: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """What make would run, without running it."""
    command = ["make", "--dry-run", "--directory", str(root), *arguments]
    environment = {"PATH": os.environ["PATH"], **environ}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("arch", ["arm64", "x86_64"])
def test_all_of_a_build_is_for_the_processor_asked_for(root: Path, arch: str) -> None:
    plan = planned(root, "build", f"ARCH={arch}").stdout

    assert f'ARCH="{arch}" LAMBDA_PYTHON="3.13"' in plan
    assert f'sam build --build-dir ".aws-sam/build" --parameter-overrides "Architecture={arch}"' in plan
    assert f'build_folder.py after ".aws-sam/build" "{arch}"' in plan
    assert f'check_build.py ".aws-sam/build" "{arch}" "3.13"' in plan


def test_a_build_is_for_what_the_template_deploys_by_default(root: Path) -> None:
    assert planned(root, "build").stdout == planned(root, "build", "ARCH=arm64").stdout


def test_what_is_built_is_linted_first_and_checked_last(root: Path) -> None:
    plan = planned(root, "build").stdout

    steps = [
        "build_folder.py before",
        "sam validate --lint",
        "sam build",
        "build_folder.py after",
        "check_build.py",
        'translate.py ".aws-sam/build" "build/translated.json"',
    ]
    assert [plan.count(step) for step in steps] == [1] * len(steps)
    assert sorted(steps, key=plan.index) == steps


def test_a_build_asks_aws_nothing_and_tells_it_nothing(root: Path) -> None:
    plan = planned(root, "build").stdout
    calls = [line for line in plan.replace("\\\n", " ").splitlines() if re.search(r"/bin/sam (validate|build) ", line)]

    assert len(calls) == 2
    for call in calls:
        assert "SAM_CLI_TELEMETRY=0" in call
        assert "AWS_EC2_METADATA_DISABLED=true" in call
        assert "AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_CONFIG_FILE=/dev/null" in call


def test_an_image_of_another_python_does_not_change_what_is_built(root: Path) -> None:
    plan = planned(root, "build", PYTHON_VERSION="3.11.7", BUILD="nightly").stdout

    assert plan == planned(root, "build").stdout


def test_the_folder_of_the_repository_may_have_blanks_in_its_name(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my tidemill"
    folder.mkdir()
    (folder / "Makefile").write_bytes((root / "Makefile").read_bytes())
    for sources in ("requirements", "layers/core"):
        (folder / sources).parent.mkdir(exist_ok=True)
        (folder / sources).symlink_to(root / sources)

    plan = planned(folder, "build")

    assert plan.returncode == 0, plan.stderr
    for line in plan.stdout.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        assert [word for word in words if word.endswith("/my") or word.startswith("tidemill/")] == []
    assert f'PYTHON="{folder}/build/sam-venv/bin/python"' in plan.stdout


def test_an_unknown_processor_is_refused_before_anything_is_installed(root: Path) -> None:
    refused = planned(root, "build", "--always-make", "ARCH=riscv64")

    assert refused.returncode != 0
    assert "ARCH is arm64 or x86_64, not riscv64" in refused.stderr
    assert "venv.sh" not in refused.stdout


def test_the_end_to_end_tests_build_for_this_machine_beside_what_is_deployed(root: Path) -> None:
    plan = planned(root, "e2e").stdout

    machine = "arm64" if os.uname().machine in {"aarch64", "arm64"} else "x86_64"
    assert f"build BUILD=build/e2e TRANSLATED=build/e2e.json ARCH={machine} " in plan
    assert plan.index("check_build.py") < plan.index(" tests/end_to_end/deployed")


def test_a_package_that_cannot_be_installed_is_told_in_a_sentence(root: Path, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n[ "$2" = pip ] && exit 1\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = ["sh", "requirements/venv.sh", str(tmp_path), "requirements/runtime.txt"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)

    assert done.returncode == 1
    assert "tidemill: what requirements/runtime.txt names could not be installed" in done.stderr


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_with_hashes_and_no_address(root: Path, lock: str) -> None:
    text = lock_file(root, lock).read_text()

    requirements = re.findall(r"^[a-z].*", text, re.MULTILINE)
    assert all("==" in requirement and requirement.endswith("\\") for requirement in requirements)
    assert re.search(r"://|^-|^ *-(?!-hash=sha256:)", text, re.MULTILINE) is None


@pytest.mark.parametrize("layer", ["layers/core", "layers/tasks"])
def test_what_is_tested_is_what_a_layer_brings(root: Path, layer: str) -> None:
    assert pins(root, layer).items() <= pins(root, "requirements/dev").items()


def test_the_layers_agree_where_they_bring_the_same_package(root: Path) -> None:
    core, tasks = pins(root, "layers/core"), pins(root, "layers/tasks")

    assert {name: core[name] for name in core.keys() & tasks.keys()} == {
        name: tasks[name] for name in core.keys() & tasks.keys()
    }


def pins(root: Path, lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock_file(root, lock).read_text(), re.MULTILINE))


def lock_file(root: Path, lock: str) -> Path:
    return root / (f"{lock}/requirements.txt" if lock.startswith("layers/") else f"{lock}.txt")
