"""Changes of the Python files of a project, without its virtual environments and its tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from watchfiles import PythonFilter, watch

LOOK_SEC: Final = 1.0
"""Time between two looks at the entries of the project's folder itself."""

_UNWATCHED: Final = frozenset({"node_modules", "build", "dist", "site-packages", "test", "tests", "__pycache__"})

Snapshot: TypeAlias = Mapping[Path, int]
"""Python files, with their times of change in nanoseconds."""


@contextmanager
def watch_files(
    folder: Path, *, on_change: Callable[[list[str]], object], on_error: Callable[[str], object]
) -> Iterator[None]:
    """Call *on_change* with the names of the files below *folder* that changed after now, until the block ends.

    New entries of *folder* itself are looked for once a second, so that no virtual environment need be watched. If the
    system refuses to watch, *on_error* gets the reason once.
    """
    stopping = threading.Event()
    before = _list_files(folder, _list_folders(folder))

    def run() -> None:
        try:
            _watch(folder, before, on_change, stopping)
        except (OSError, RuntimeError) as error:  # a RuntimeError of the library, like a limit of the system
            on_error(str(error))

    thread = threading.Thread(target=run, name="tidemill-watch-files", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _watch(folder: Path, before: Snapshot, on_change: Callable[[list[str]], object], stopping: threading.Event) -> None:
    while not stopping.is_set():
        folders = _list_folders(folder)
        is_first_look = True
        for paths in _iterate(folders, stopping):
            if is_first_look:  # files may have changed before the watch began
                now = _list_files(folder, folders)
                is_first_look = False
            else:
                now = {path: at for path, at in before.items() if path.parent != folder} | _list_files(folder, ())
            changed = paths | {path for path, _ in before.items() ^ now.items()}
            before = now
            if changed:
                on_change(sorted(os.path.relpath(path, folder) for path in changed))
            if _list_folders(folder) != folders:
                before = _list_files(folder, folders)
                break


def _iterate(folders: Sequence[Path], stopping: threading.Event) -> Iterator[set[Path]]:
    """Yield changed files in *folders*, and an empty set each `LOOK_SEC` without changes."""
    if folders:
        for changes in watch(
            *folders,
            watch_filter=PythonFilter(),
            stop_event=stopping,
            rust_timeout=int(LOOK_SEC * 1000),
            yield_on_timeout=True,
            raise_interrupt=False,
        ):
            yield {Path(path) for _, path in changes}
    while not stopping.wait(LOOK_SEC):
        yield set()


def _list_folders(folder: Path) -> list[Path]:
    """Return the folders in *folder* that may hold modules."""
    found = []
    for path in sorted(folder.iterdir()):
        is_hidden = path.name.startswith(".") or path.name in _UNWATCHED
        if not is_hidden and path.is_dir() and not (path / "pyvenv.cfg").exists():
            found.append(path)
    return found


def _list_files(folder: Path, folders: Sequence[Path]) -> dict[Path, int]:
    """Return the Python files of *folder* itself, and all those below *folders*."""
    files: dict[Path, int] = {}
    for path in (*folder.glob("*.py"), *(path for each in folders for path in each.rglob("*.py"))):
        with suppress(OSError):  # it was removed meanwhile
            files[path] = path.stat().st_mtime_ns
    return files
