"""The pages of the documentation, their sections and blocks, and the parts of them that a command writes."""

from __future__ import annotations

import re
from typing import Final

from tests.machine import ROOT

README: Final = ROOT / "README.md"
DOCS: Final = ROOT / "docs"
BENCHMARKS: Final = DOCS / "measured/benchmarks.md"
CHAOS: Final = DOCS / "measured/chaos.md"


def read_page(name: str) -> str:
    """Return the text of a page, named from the root of the repository: ``docs/guides/tasks.md``."""
    return (ROOT / name).read_text(encoding="utf-8")


def find_blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of *text* that are marked with *language*."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def marks(command: str) -> tuple[str, str]:
    """Return the two marks around the part that *command* writes."""
    return f"<!-- begin: {command} -->", f"<!-- end: {command} -->"


def placed(page: str, section: str, *, command: str) -> str:
    """Return *page* with *section* between the marks of *command*.

    Raises:
        ValueError: A mark is missing, or occurs twice.
    """
    begin, end = marks(command)
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must have one {begin} and one {end}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{section}\n{end}{rest.partition(end)[2]}"


def standing(page: str, *, command: str) -> str:
    """Return the part of *page* between the marks of *command*."""
    begin, end = marks(command)
    return page.partition(begin)[2].partition(end)[0].strip("\n")
