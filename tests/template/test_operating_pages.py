"""What the pages below ``docs/operate`` name is in the template, and the files that they lead to are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs/operate").glob("*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
NOT_OURS = {
    "DependsOn",
    "RoleArn",
    "Version",
    "AsyncEventsDropped", "DestinationDeliveryFailures", "RecursiveInvocationsDropped", "Errors", "Invocations",
    "Throttles", "Allow", "RecursiveLoop", "Globals", "MethodSettings", "CfnInclude", "Queue", "Tidemill",
}  # fmt: skip
"""What stands in a template or in CloudWatch, or is of another tool."""


def names(template: dict[str, Any]) -> set[str]:
    return {*template["Parameters"], *template["Resources"], *template["Outputs"]}


@each_page
def test_what_a_page_calls_by_name_is_in_the_template(template: dict[str, Any], page: Path) -> None:
    text = page.read_text()
    quoted = re.findall(r"`([A-Z][a-z]+(?:[A-Z][A-Za-z]*)?)(?:=[^`]*)?`", text)
    looked_up = re.findall(r'(?:get_resource\(|outputs\[)"(\w+)"', text)
    chosen = re.findall(r'\b([A-Z]\w+)"?\s*[:=] (?:secret_arn|var\.|"\d")', text)

    assert {*quoted, *looked_up, *chosen} - names(template) - NOT_OURS == set()


@each_page
def test_a_file_that_a_page_leads_to_is_there(root: Path, page: Path) -> None:
    text = page.read_text()
    links = [page.parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    files = [root / path for path in re.findall(r"`((?:tests|layers|docs)/[\w./]+)`", text)]

    assert [path for path in (*links, *files) if not path.exists()] == []


@each_page
def test_a_page_says_how_it_is_tested(page: Path) -> None:
    assert "tests/" in page.read_text()
