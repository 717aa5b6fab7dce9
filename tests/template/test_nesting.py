"""The template of the page about nesting: it names Tidemill's parameters and outputs as they are."""

from __future__ import annotations

from typing import Any

import pytest
from samtranslator.yaml_helper import yaml_parse

from tests.cloudformation.translating import translated
from tests.template.reading import texts
from tidemill.cli.projects import read_release
from tools.pages import find_blocks, read_page


@pytest.fixture
def nesting() -> dict[str, Any]:
    """The template that nests a project."""
    parsed: dict[str, Any] = yaml_parse(find_blocks(read_page("docs/operate/nest.md"), "yaml")[0])
    return parsed


@pytest.fixture
def nested() -> dict[str, Any]:
    """The template of a project."""
    parsed: dict[str, Any] = yaml_parse(read_release().files["template.yaml"])
    return parsed


def test_it_gives_parameters_that_there_are_and_all_that_are_needed(
    nesting: dict[str, Any], nested: dict[str, Any]
) -> None:
    given = nesting["Resources"]["Tidemill"]["Properties"]["Parameters"].keys()
    needed = {name for name, parameter in nested["Parameters"].items() if "Default" not in parameter}

    assert needed <= given <= nested["Parameters"].keys()


def test_it_reads_outputs_that_there_are(nesting: dict[str, Any], nested: dict[str, Any]) -> None:
    read = {text.removeprefix("Outputs.") for text in texts(nesting["Outputs"]) if text.startswith("Outputs.")}

    assert read
    assert read <= nested["Outputs"].keys()


def test_the_layer_of_the_page_is_a_parameter(nested: dict[str, Any]) -> None:
    [layer] = find_blocks(read_page("docs/operate/nest.md"), "yaml")[1:]

    assert yaml_parse(layer).keys() <= nested["Parameters"].keys()


def test_it_becomes_a_nested_stack(nesting: dict[str, Any]) -> None:
    nesting["Resources"]["Tidemill"]["Properties"]["Location"] = "https://s3.amazonaws.com/bucket/template"

    resources = translated(nesting, location="s3://a-bucket-of-code")["Resources"]

    assert resources["Tidemill"]["Type"] == "AWS::CloudFormation::Stack"
    assert resources["Tidemill"]["Properties"]["Parameters"]["TaskPolicyArns"] == {"Ref": "ReadReports"}
