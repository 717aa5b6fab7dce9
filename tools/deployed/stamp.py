"""The stamp: what `make deployed` was last green with, for a machine that cannot run it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Final

DEPLOYED: Final = ("template.yaml", "functions", "layers")
"""What a deployment is made of."""

STAMP: Final = "tools/deployed/stamp"
_COMMENT: Final = "# What `make deployed` was last green with: a hash over template.yaml, functions/ and layers/."


def compute_stamp(root: Path) -> str:
    """Return the hash of what a deployment is made of: names and contents of the files that git has or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *DEPLOYED]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    digest = hashlib.sha256()
    for name in sorted({name for name in listed.split(b"\0") if name}):
        path = root / name.decode()
        if path.is_file():  # else it is deleted, and git has not been told
            content = path.read_bytes()
            digest.update(b"%s\0%d\0%s" % (name, len(content), content))
    return digest.hexdigest()


def write_stamp(root: Path, stamp: str) -> bool:
    """Write the stamp, and tell whether it is another one than before."""
    before = read_stamp(root)
    (root / STAMP).write_text(f"{_COMMENT}\n{stamp}\n")
    return before != stamp


def read_stamp(root: Path) -> str | None:
    """Return the stamp that is written, or ``None``."""
    path = root / STAMP
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((line.strip() for line in lines if line.strip() and not line.startswith("#")), None)


def find_problem(root: Path) -> str | None:
    """Return what is wrong with the stamp, and what to do, in a sentence; ``None`` where it is right."""
    if read_stamp(root) == compute_stamp(root):
        return None
    return (
        f"{STAMP} is out of date: template.yaml, functions/ or layers/ changed since `make deployed` was last green. "
        "Run `make deployed` on a machine with Python 3.13, and commit the stamp that it writes"
    )
