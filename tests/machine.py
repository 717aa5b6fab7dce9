"""What a bench or a chaos ran on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil
import pymongo

ROOT: Final = Path(__file__).parents[1]


def machine(*, mongodb: str) -> dict[str, Any]:
    """Return the machine, the versions that matter, the day, and the commit, which is ``None`` out of a checkout.

    *mongodb* is the version of the server.
    """
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1024**3, 1),
        "os": _os(),
        "python": platform.python_version(),
        "pymongo": pymongo.version,
        "mongodb": mongodb,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, [*models, platform.processor(), platform.machine()]), "unknown")


def _os() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def _commit() -> str | None:
    """Return the commit, with a plus where files differ from it."""
    if not (git := shutil.which("git")) or not (ROOT / ".git").exists():
        return None
    asked = ("describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12")
    found = subprocess.run([git, *asked], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
