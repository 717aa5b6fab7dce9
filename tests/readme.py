"""Sections of the README that are written by a command, between two marks."""

from __future__ import annotations

from typing import Final

from tests.machine import ROOT

README: Final = ROOT / "README.md"


def marks(command: str) -> tuple[str, str]:
    """Return the two marks of what *command* writes."""
    return f"<!-- begin: {command} -->", f"<!-- end: {command} -->"


def placed(readme: str, section: str, *, command: str) -> str:
    """Return *readme* with *section* between the marks of *command*.

    Raises:
        ValueError: A mark is not there, or is there twice.
    """
    begin, end = marks(command)
    if readme.count(begin) != 1 or readme.count(end) != 1:
        raise ValueError(f"the README must have one {begin} and one {end}")
    before, _, rest = readme.partition(begin)
    return f"{before}{begin}\n{section}\n{end}{rest.partition(end)[2]}"


def standing(readme: str, *, command: str) -> str:
    """Return what stands between the marks of *command*."""
    begin, end = marks(command)
    return readme.partition(begin)[2].partition(end)[0].strip("\n")
