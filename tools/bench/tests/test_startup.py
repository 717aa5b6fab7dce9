"""The bench of start-up, as a toy: what it imports, what it counts, and what it says where nothing was built."""

from __future__ import annotations

import compileall
import sys
from pathlib import Path

import pytest

from tools.bench.startup import Case, Code, NotBuiltError, Start, built, compared, measure, without_bytecode

ENQUEUE = Case(name="enqueue", function="enqueue")


@pytest.fixture
def code(tmp_path: Path) -> Code:
    """A function with a layer of three modules, compiled as `make build` does it."""
    function, layer = tmp_path / "function", tmp_path / "layer"
    (layer / "package").mkdir(parents=True)
    (layer / "package/__init__.py").touch()
    (layer / "package/one.py").write_text("from package import two\n")
    (layer / "package/two.py").touch()
    function.mkdir()
    (function / "app.py").write_text("import package.one\n")
    compileall.compile_dir(layer, quiet=1)
    return Code(functions={"enqueue": function}, layers=[layer], python=Path(sys.executable))


def test_each_import_is_one_beside_the_same_without_bytecode(code: Code, tmp_path: Path) -> None:
    plain = without_bytecode(code, tmp_path / "plain")

    took, longer, lacking = compared(code, plain, [ENQUEUE], rounds=1).figures

    assert took.absolute.startswith("3 modules; without bytecode ")
    assert longer.unit == "times as long"
    assert (lacking.value, lacking.is_met) == (0, True)


def test_modules_of_the_layers_are_counted_and_those_that_have_bytecode(code: Code, tmp_path: Path) -> None:
    plain = without_bytecode(code, tmp_path / "plain")
    for one in [*code.layers[0].rglob("two.*.pyc")]:
        one.unlink()

    assert [_counts(ENQUEUE.imported(each)) for each in (code, plain)] == [(3, 2), (3, 0)]
    assert _counts(ENQUEUE.imported(plain)) == (3, 0)  # an import leaves nothing behind


def test_a_handler_of_this_repository_is_imported() -> None:
    took, _, _ = measure("", "toy").figures

    assert (took.name, took.unit) == ("import of enqueue", "ms")


def test_where_nothing_was_built_one_sentence_says_what_builds_it(tmp_path: Path) -> None:
    with pytest.raises(NotBuiltError, match="`make bench` builds them"):
        built(tmp_path)


def _counts(start: Start) -> tuple[int, int]:
    return start.modules, start.compiled
