"""A nursery of hostile functions, shared by all tests that leave it whole, and ways to run them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import pytest

from tests.isolation.runs import PACKAGE, PLAIN, MakeNursery, Package, Run, Trace, runner
from tidemill.isolation import Nursery

collect_ignore = [] if sys.platform == "linux" else ["test_linux.py"]


PATIENT = timedelta(seconds=60)  # where everything runs at once, a process may take its time


@pytest.fixture(scope="session")
def shared() -> Iterator[Nursery]:
    """A nursery that lives on: no test may hurt it."""
    with closing(Nursery(PACKAGE, begin_within=PATIENT)) as nursery:
        yield nursery


@pytest.fixture(scope="session", params=[PACKAGE, PLAIN], ids=["with the system's help", "without it"])
def everywhere(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    """A nursery that lives on, for what has to hold on other systems than Linux, too."""
    with closing(Nursery(request.param, begin_within=PATIENT)) as nursery:
        yield nursery


@pytest.fixture
def make_nursery() -> Iterator[MakeNursery]:
    """Makes nurseries that a test may hurt."""
    with ExitStack() as stack:

        def make(package: str = PACKAGE, **spans: timedelta) -> Nursery:
            return stack.enter_context(closing(Nursery(package, **{"begin_within": PATIENT} | spans)))

        yield make


@pytest.fixture
def nursery(make_nursery: MakeNursery) -> Nursery:
    """A nursery that the test may hurt."""
    return make_nursery()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Makes a package of one module, for a helper to import."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str) -> str:
        folder = tmp_path / f"tasks_{tmp_path.name}"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "module.py").write_text(source)
        return folder.name

    return make


@pytest.fixture
def run(shared: Nursery) -> Run:
    """Runs a function, by the last part of its name, in the shared nursery."""
    return runner(shared)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Where a function tells which processes there are."""
    return Trace(tmp_path)
