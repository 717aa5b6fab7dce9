"""Pages of the documentation: their blocks, and the sections that a command writes between two marks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
BENCHMARKS: Final = DOCS / "measured/benchmarks.md"
CHAOS: Final = DOCS / "measured/chaos.md"
CAPACITY: Final = DOCS / "operate/capacity.md"
OF_PACKAGE: Final = ("layers/core/README.md", "layers/core/tidemill/cli/project/README.md")
"""The pages of the distribution, and of a project that `tidemill init` writes."""

RESOURCES: Final = DOCS / "operate/resources.md"


def list_pages() -> list[Path]:
    """Return all pages: those of ``docs``, and the ones beside it that link there."""
    beside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "events/README.md", *OF_PACKAGE)]
    return [*(page for page in beside if page.exists()), *sorted(DOCS.rglob("*.md"))]


def read_page(name: str) -> str:
    """Return the text of a page, named from the root of the repository: ``docs/guides/tasks.md``."""
    return (ROOT / name).read_text(encoding="utf-8")


def find_blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of *text* that are marked with *language*."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def make_marks(command: str) -> tuple[str, str]:
    """Return the two marks around the section that *command* writes."""
    return f"<!-- begin: {command} -->", f"<!-- end: {command} -->"


def replace_section(page: str, section: str, *, command: str) -> str:
    """Return the text of *page* with *section* between the marks of *command*.

    Raises:
        ValueError: A mark is missing, or occurs twice.
    """
    begin, end = make_marks(command)
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must have one {begin} and one {end}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{section}\n{end}{rest.partition(end)[2]}"


def read_section(page: str, *, command: str) -> str:
    """Return the section of *page* between the marks of *command*."""
    begin, end = make_marks(command)
    return page.partition(begin)[2].partition(end)[0].strip("\n")
