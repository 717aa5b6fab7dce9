"""What is not wiped by a build, and what a built template lets nobody choose any more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from samtranslator.yaml_helper import yaml_parse

from layers import build_folder
from layers.build_folder import for_one, main, refusal

TEMPLATE = """\
Metadata:
  AWS::CloudFormation::Interface:
    ParameterGroups:
    - Parameters:
      - Architecture
Parameters:
  Dashboard:
    Type: String
    Default: 'true'
    AllowedValues:
    - 'true'
    - 'false'
  Architecture:
    Type: String
    Description: Processor of the functions. The layers must be built for the same
      one.
    Default: arm64
    AllowedValues:
    - arm64
    - x86_64
Resources:
  EnqueueFunction:
    Type: AWS::Serverless::Function
  CoreLayer:
    Type: AWS::Serverless::LayerVersion
"""


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "template.yaml"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture
def root() -> Path:
    return Path(build_folder.__file__).parents[1]


def holding(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
    return folder


def test_a_folder_that_is_not_there_or_is_empty_is_built_into(template: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path / "new" / "one", template) is None
    assert refusal(holding(tmp_path, "empty") / "empty", template) is None


@pytest.mark.parametrize("names", [["CoreLayer"], ["EnqueueFunction", "CoreLayer"]])
def test_what_was_built_is_built_again_also_when_that_broke_off(
    template: Path, tmp_path: Path, names: list[str]
) -> None:
    assert refusal(holding(tmp_path / "build", *names), template) is None


def test_what_was_built_of_a_function_that_is_gone_is_replaced(template: Path, tmp_path: Path) -> None:
    build = holding(tmp_path / "build", "CoreLayer", "GoneFunction")
    (build / "template.yaml").write_text("Resources:\n  GoneFunction:\n    Type: AWS::Serverless::Function\n")

    assert refusal(build, template) is None


@pytest.mark.parametrize("other", ["sam-venv", ".git", "functions", "try", "Type", "Parameters"])
def test_a_folder_that_holds_anything_else_is_refused(template: Path, tmp_path: Path, other: str) -> None:
    build = holding(tmp_path / "build", "CoreLayer", other)

    assert refusal(build, template) == f"BUILD={build} holds {other}, which no build made, and building would remove it"


@pytest.mark.parametrize("folder", ["", ".", "..", "/", "layers", "layers/core", "functions", "tests/unit"])
def test_nothing_of_the_repository_is_wiped(root: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.chdir(root)

    assert "which no build made" in str(refusal(Path(folder), Path("template.yaml")))


def test_a_file_is_refused(template: Path) -> None:
    assert refusal(template, template) == f"BUILD={template} is no folder"


@pytest.mark.parametrize("arch", ["arm64", "x86_64"])
def test_a_built_template_deploys_for_what_it_was_built_for_and_nothing_else(arch: str) -> None:
    chosen = f"    Default: {arch}\n    AllowedValues:\n    - {arch}\nResources:"

    built = for_one(TEMPLATE, arch)

    assert built == TEMPLATE.replace(
        "    Default: arm64\n    AllowedValues:\n    - arm64\n    - x86_64\nResources:", chosen
    )
    assert for_one(built, arch) == built


@pytest.mark.parametrize("text", ["", "Parameters: {}\n", TEMPLATE.replace("  Architecture:", "  Processor:")])
def test_a_template_without_the_choice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Architecture"):
        for_one(text, "arm64")


@pytest.mark.parametrize("arch", ["arm64", "x86_64"])
def test_the_template_of_this_repository_has_the_choice_when_it_is_built(root: Path, template: Path, arch: str) -> None:
    source = json.loads(json.dumps(yaml_parse((root / "template.yaml").read_text(encoding="utf-8"))))
    template.write_text(yaml.safe_dump(source, sort_keys=False))  # which is how `sam build` writes it

    assert main(["after", str(template.parent), arch]) == 0

    chosen = source["Parameters"]["Architecture"]
    assert set(chosen["AllowedValues"]) == {"arm64", "x86_64"}
    chosen |= {"Default": arch, "AllowedValues": [arch]}
    assert yaml.safe_load(template.read_text()) == source


def test_the_command_refuses_in_a_sentence_anywhere_with_nothing_installed(tmp_path: Path, root: Path) -> None:
    holding(tmp_path, "precious")
    command = [sys.executable, "-ISE", build_folder.__file__, "before", str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env={})

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"tidemill: BUILD={tmp_path} holds precious, which no build made, and building would remove it\n"
    )
    assert (tmp_path / "precious").is_dir()
