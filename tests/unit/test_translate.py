"""What a build writes for tools that take no SAM template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layers.translate import main

TEMPLATE = """\
AWSTemplateFormatVersion: "2010-09-09"
Transform: AWS::Serverless-2016-10-31
Metadata:
  AWS::ServerlessRepo::Application: {Name: tidemill, ReadmeUrl: ../../README.md}
  AWS::CloudFormation::Interface: {ParameterGroups: []}
Resources:
  Layer:
    Type: AWS::Serverless::LayerVersion
    Properties: {ContentUri: Layer}
  Function:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: Function
      Runtime: python3.13
      Handler: app.lambda_handler
      Role: arn:aws:iam::123456789012:role/some
      Layers: [!Ref Layer]
"""


def translated(build: Path, file: Path) -> dict[str, Any]:
    build.mkdir(parents=True)
    (build / "template.yaml").write_text(TEMPLATE)
    assert main([str(build), str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_code_is_a_path_from_the_file_that_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "build" / "translated.json"

    resources = translated(tmp_path / ".aws-sam" / "build", file)["Resources"]

    [layer] = [r for r in resources.values() if r["Type"] == "AWS::Lambda::LayerVersion"]
    assert resources["Function"]["Properties"]["Code"] == "../.aws-sam/build/Function"
    assert layer["Properties"]["Content"] == "../.aws-sam/build/Layer"
    assert capsys.readouterr().out == f"  without SAM's transform in {file}\n"


def test_neither_the_transform_nor_what_only_publishing_reads_is_left(tmp_path: Path) -> None:
    template = translated(tmp_path / "build", tmp_path / "translated.json")

    assert "Transform" not in template
    assert template["Metadata"] == {"AWS::CloudFormation::Interface": {"ParameterGroups": []}}
