"""Golden files: what is seen from outside, kept as text. They change only in commits that change nothing else."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "files"
WRITES: Final = bool(os.environ.get("WRITE_GOLDEN"))
"""``make golden`` sets it: what is found is written instead of compared."""


def check(name: str, found: str) -> None:
    """Compare *found* with the golden file *name*."""
    path = FOLDER / f"{name}.txt"
    if WRITES:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
        return
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    if kept != found:
        lines = difflib.unified_diff(kept.splitlines(), found.splitlines(), "kept", "found", lineterm="", n=2)
        raise AssertionError(f"{path.name} differs; `make golden` writes it anew\n" + "\n".join(lines))
