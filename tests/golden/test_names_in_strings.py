"""Modules that are named in text, not imported: a move that forgets one of them is seen here."""

from __future__ import annotations

import importlib
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]
_NAME: Final = re.compile(r"\btidemill(?:\.[A-Za-z_]\w*)+")
_IMPORT: Final = re.compile(r"from (tidemill[\w.]*) import ((?:\w+, )*\w+)$", re.MULTILINE)
"""A line of a program in a text."""

_TEXTS: Final = (".toml", ".yaml", ".md", ".sh", "Makefile")
NO_MODULES: Final = frozenset({
    "tidemill.headers",  # of a WSGI environment
    "tidemill.json",  # `.tidemill.json`, the record of a project
    "tidemill.dead_letter",  # the kind of an exported object
    "tidemill.get_resource", "tidemill.outputs",  # variables of examples for the CDK and Terraform
})  # fmt: skip


def test_every_name_of_ours_in_a_text_can_be_imported() -> None:
    assert [f"{path}: {name}" for path, name in _names() if not _exists(name)] == []


def _names() -> Iterator[tuple[str, str]]:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in tracked.splitlines():
        if path.endswith(".py"):
            text = "\n".join(_strings(ROOT / path))
        elif path.endswith(_TEXTS):
            text = (ROOT / path).read_text(encoding="utf-8")
        else:
            continue
        imported = [
            f"{module}.{name}"
            for module, names in _IMPORT.findall(text.replace("\\n", "\n"))
            for name in re.split(r"[,\s]+", names.strip())
        ]
        yield from ((path, name) for name in imported)
        yield from ((path, name.removesuffix("._")) for name in sorted(set(_NAME.findall(text)) - NO_MODULES))


def _strings(path: Path) -> Iterator[str]:
    """Yield the strings of a module, docstrings too; an expression in one is told as the string it stands in."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.STRING:
                yield token.string


def _exists(name: str) -> bool:
    """Tell whether *name* is a module, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False
