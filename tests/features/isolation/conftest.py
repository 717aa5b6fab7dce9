"""A process pool of hostile functions, shared by all tests that leave it whole, and ways to run them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.features.isolation.runs import PACKAGE, PATIENT, PLAIN, MakeProcessPool, Package, Run, Trace, runner
from tidemill.runner.process_pool import ProcessPool

collect_ignore = [] if sys.platform == "linux" else ["test_linux.py"]


@pytest.fixture(scope="session")
def shared() -> Iterator[ProcessPool]:
    """A process pool that lives on: no test may hurt it."""
    with closing(
        ProcessPool(PACKAGE, directory=Path.cwd(), start_within=PATIENT, begin_within=PATIENT)
    ) as process_pool:
        yield process_pool


@pytest.fixture(scope="session", params=[PACKAGE, PLAIN], ids=["with the system's help", "without it"])
def everywhere(request: pytest.FixtureRequest) -> Iterator[ProcessPool]:
    """A process pool that lives on, for what has to hold on other systems than Linux, too."""
    with closing(
        ProcessPool(request.param, directory=Path.cwd(), start_within=PATIENT, begin_within=PATIENT)
    ) as process_pool:
        yield process_pool


@pytest.fixture
def make_process_pool() -> Iterator[MakeProcessPool]:
    """Makes process pools that a test may hurt."""
    with ExitStack() as stack:

        def make(package: str = PACKAGE, **spans: timedelta) -> ProcessPool:
            usual: Any = {"start_within": PATIENT, "begin_within": PATIENT}
            return stack.enter_context(closing(ProcessPool(package, directory=Path.cwd(), **usual | spans)))

        yield make


@pytest.fixture
def process_pool(make_process_pool: MakeProcessPool) -> ProcessPool:
    """A process pool that the test may hurt."""
    return make_process_pool()


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
def run(shared: ProcessPool) -> Run:
    """Runs a function, by the last part of its name, in the shared process pool."""
    return runner(shared)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Where a function tells which processes there are."""
    return Trace(tmp_path)
