"""``python -m tools.guards``: break each guard of a write or read in ``store/`` once, and see a test fail.

A guard is an entry of a dictionary in the code: a field that a filter names, or that an update sets. The tests of a
round run once to see which of them reach which function. Then each guard is left out in a copy of the working tree,
where the tests that reach its function are run; what none of them misses goes to the next round. A guard that no test
misses is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

from coverage import CoverageData

from tidemill.testing import Mongod
from tidemill.testing.mongod import TEST_URI

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = Path("layers/core/tidemill")
FOLDERS: Final = ("store",)
COPIES: Final = 2
"""So many are tried at the same time."""

ROUNDS: Final = (
    ("tests/golden", "tests/database"),
    (
        "tests/unit/test_settlement.py",
        "tests/features/admin",
        "tests/features/execute/test_execute.py",
        "tests/features/execute/test_lingering.py",
        "tests/features/execute/test_statistics.py",
        "tests/features/retry/test_pressure.py",
        "tests/features/worker/test_long_lived.py",
        "tests/handlers/test_idempotency.py",
        "tests/handlers/test_queue_lookups.py",
    ),
)
"""Tests that run in each round."""

NEEDS_GIT: Final = "tests/golden/test_names_in_strings.py"
WITHIN_SEC: Final = 1200.0
OUTPUT: Final = ".output"
REACHED: Final = ".reached"
"""Name of the file that says which lines each test reaches."""

Reach: TypeAlias = dict[Path, dict[int, list[str]]]
"""The tests that reach a line, by file of the package and number of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One entry of a dictionary: where it is, and what it says."""

    path: Path
    line: int
    text: str
    start: int
    end: int
    function: range | None
    """Lines of the function around it; ``None``: it is outside of all functions."""

    def __str__(self) -> str:
        return f"{self.path.relative_to(PACKAGE)}:{self.line} {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy of the working tree, and a server of its own: tests tell a server to fail."""

    tree: Path
    uri: str


def find_guards(root: Path, folders: Sequence[str] = FOLDERS) -> Iterator[Guard]:
    """Yield every entry whose key is a text, of every dictionary in *folders*."""
    for folder in folders:
        for path in sorted((root / PACKAGE / folder).glob("*.py")):
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
            functions = [
                range(node.lineno, (node.end_lineno or node.lineno) + 1)
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef)
            ]
            for node in ast.walk(tree):
                if isinstance(node, ast.Dict) and node.keys:
                    function = next((lines for lines in functions if node.lineno in lines), None)
                    yield from _guards_of(node, source, path.relative_to(root), function)


def find_tests(guard: Guard, reach: Reach) -> list[str]:
    """Return the tests that reach the function of *guard*; outside of all functions, those of the first round."""
    if guard.function is None:
        return list(ROUNDS[0])
    reached = reach.get(guard.path, {})
    return sorted({test for line in guard.function for test in reached.get(line, ())})


def break_guard(source: str, guard: Guard) -> str:
    """Return *source* without the entry."""
    return source[: guard.start] + source[guard.end :]


def main() -> int:
    """Return the exit status: 0 where each guard is missed."""
    parser = argparse.ArgumentParser(prog="python -m tools.guards", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="only guards whose line has this text")
    chosen = parser.parse_args()
    guards = [guard for guard in find_guards(ROOT) if chosen.only in str(guard)]
    survivors = guards
    with tempfile.TemporaryDirectory(prefix="guards-") as folder, ExitStack() as servers:
        copies = [
            Copy(tree=_copy_tree(Path(folder) / str(number)), uri=servers.enter_context(Mongod()).uri)
            for number in range(COPIES)
        ]
        for tests in ROUNDS:
            survivors = _find_survivors(survivors, tests, copies) if survivors else []
    print(f"{len(guards)} guards broken, {len(survivors)} missed by no test", *survivors, sep="\n  ")
    return 1 if survivors else 0


def _find_survivors(guards: Sequence[Guard], tests: Sequence[str], copies: Sequence[Copy]) -> list[Guard]:
    reach = _read_reach(copies[0], tests)
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def is_missed(guard: Guard) -> bool:
        copy = free.get()
        try:
            return _is_missed(guard, find_tests(guard, reach), copy)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        missed = list(pool.map(is_missed, guards))
    return [guard for guard, is_seen in zip(guards, missed, strict=True) if not is_seen]


def _guards_of(node: ast.Dict, source: str, path: Path, function: range | None) -> Iterator[Guard]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    starts = [
        _offset(source, key.lineno, key.col_offset)
        if key is not None
        else source.rindex("**", 0, _offset(source, value.lineno, value.col_offset))
        for key, value in zip(node.keys, node.values, strict=True)
    ]
    ends = [*starts[1:], _offset(source, node.end_lineno, node.end_col_offset) - 1]
    for key, start, end in zip(node.keys, starts, ends, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            text = " ".join(source[start:end].split()).rstrip(",")
            yield Guard(path=path, line=key.lineno, text=text, start=start, end=end, function=function)


def _offset(source: str, line: int, column: int) -> int:
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())


def _copy_tree(copy: Path) -> Path:
    kept = ("layers", "functions", "tests", "events", "pyproject.toml", "conftest.py", "tools", "demo")
    for name in kept:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy / name)
    return copy


def _read_reach(copy: Copy, tests: Sequence[str]) -> Reach:
    """Run *tests* once in *copy*, and return which of them reach which line."""
    options = ["--cov=tidemill.store", "--cov-context=test", "--cov-report=", f"--ignore={NEEDS_GIT}"]
    if _run([*options, *tests], copy):
        raise SystemExit(f"the tests fail without a broken guard:\n{(copy.tree / OUTPUT).read_text(encoding='utf-8')}")
    data = CoverageData(str(copy.tree / REACHED))
    data.read()
    return {
        Path(path).relative_to(copy.tree): {
            line: [test.partition("|")[0] for test in tests if test] for line, tests in lines.items()
        }
        for path in data.measured_files()
        for lines in [data.contexts_by_lineno(path)]
    }


def _is_missed(guard: Guard, tests: Sequence[str], copy: Copy) -> bool:
    path = copy.tree / guard.path
    source = path.read_text(encoding="utf-8")
    path.write_text(break_guard(source, guard), encoding="utf-8")
    named = copy.tree / ".tests"
    named.write_text("\n".join(tests), encoding="utf-8")
    try:
        seen = bool(tests) and _run(["-x", f"@{named}"], copy) != 0
    except subprocess.TimeoutExpired:
        seen = True
    finally:
        path.write_text(source, encoding="utf-8")
    print(f"{'missed by a test' if seen else 'SURVIVED':16}  {guard}  ({len(tests)} tests)", flush=True)
    return seen


def _run(options: Sequence[str], copy: Copy) -> int:
    """Run pytest in *copy*, and return its exit status."""
    environment = os.environ | {
        TEST_URI: copy.uri,
        "PYTHONPATH": f"{copy.tree / 'layers/core'}:{copy.tree / 'layers/tasks'}:{copy.tree}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COVERAGE_FILE": str(copy.tree / REACHED),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *options]
    with (copy.tree / OUTPUT).open(
        "wb"
    ) as output:  # not a pipe, which a process that a test left behind would hold open
        done = subprocess.run(
            command, cwd=copy.tree, env=environment, stdout=output, stderr=output, timeout=WITHIN_SEC, check=False
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
