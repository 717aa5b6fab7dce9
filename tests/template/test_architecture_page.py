"""The page about the architecture names files, functions and rows that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "layers/core/tidemill"
PAGE = (ROOT / "docs/understand/architecture.md").read_text()


def names_of(file: Path) -> set[str]:
    """Return the functions, classes, methods and constants of a module, methods as ``Class.method``."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.ClassDef(name=name, body=body):
                found |= {name, *(f"{name}.{part.name}" for part in body if isinstance(part, ast.FunctionDef))}
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case _:
                pass
    return found


def test_each_path_of_the_page_exists() -> None:
    paths = set(re.findall(r"`([a-z_]+(?:/[a-z_*]+)*(?:/|\.py))`", PAGE))
    assert len(paths) > 50

    missing = [path for path in paths if not any([*PACKAGE.glob(path), *ROOT.glob(path)])]
    assert missing == []


@pytest.mark.parametrize(
    ("path", "names"),
    re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`\s+((?:`[A-Za-z_.]+`(?:,\s+| and\s+)?)+)", PAGE),
)
def test_each_name_after_a_path_is_in_that_file(path: str, names: str) -> None:
    told = {name for name in re.findall(r"`([A-Za-z_.]+)`", names) if not name.endswith(".py")}
    assert told <= names_of(PACKAGE / path)


def test_the_rows_of_the_page_are_those_that_are_enforced() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)

    told = [
        {name.strip("/").removesuffix(".py") for name in re.findall(r"`([a-z_]+(?:/|\.py))`", row)} for _, row in rows
    ]
    assert told == [set(layer.split(" : ")) for layer in layers]
