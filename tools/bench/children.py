"""Programs that a section starts: each ends with it, however it ends.

``python -m tools.bench.children MODULE [ARGUMENT ...]`` runs a module as ``python -m`` does, until its input ends.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ROOT: Final = Path(__file__).parents[2]


class Child:
    """A module that runs in a process with no environment but *variables*, until the context is left.

    Attributes:
        pid: The process.
    """

    def __init__(
        self, module: str, *arguments: str, variables: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.children", module, *arguments],
            pass_fds=pass_fds,
            cwd=ROOT,
            env={"PATH": os.defpath, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the section
        )
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def let_go(self) -> None:
        """Close its input, as the end of this process does."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # waits, and closes its input
            self._process.kill()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
