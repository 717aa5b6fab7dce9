"""Processes of the drive: each in a group of its own, none of which is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

SWEEPS: Final = 50
"""How often it is looked for processes that another one of them has started meanwhile."""


class CommandError(Exception):
    """A command failed; the message has the end of what it printed."""


def run_command(
    command: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, timeout_sec: float, is_quiet: bool = False
) -> str:
    """Run *command* and return what it printed; without its errors where *is_quiet*.

    Raises:
        CommandError: It failed, or took too long.
    """
    words = [str(word) for word in command]
    process = subprocess.Popen(
        words,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if is_quiet else subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    name = " ".join(Path(word).name for word in words[:3])
    try:
        output, errors = process.communicate(timeout=timeout_sec)
    except subprocess.TimeoutExpired:
        raise CommandError(f"{name} was not done within {timeout_sec:g} s") from None
    finally:
        end_group(process)
    if process.returncode:
        raise CommandError(f"{name} ended with status {process.returncode}: {read_end(errors or output)}")
    return output


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill a process that leads a group, and all of the group; close what leads to it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def end_processes_in(folder: Path) -> int:
    """Kill all processes that work in *folder*, or below it; return how many there were."""
    killed: set[int] = set()
    for _ in range(SWEEPS):
        found = list(find_processes_in(folder))
        if not found:
            break
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        time.sleep(0.02)
    return len(killed)


def find_processes_in(folder: Path) -> Iterator[int]:
    """Yield the ids of the living processes whose working directory is *folder*, or below it."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it is gone, or a zombie
                place = (entry / "cwd").readlink()
                if place.is_relative_to(folder):
                    yield int(entry.name)


def read_end(text: str, *, lines: int = 12) -> str:
    """Return the last lines of *text*."""
    return "\n".join(text.rstrip().splitlines()[-lines:])
