"""What stands in for a section in the tests of the bench: its process dies, and leaves another."""

from __future__ import annotations

import os
import subprocess
from typing import Final, NoReturn

from tools.bench.figures import Scale

LEFT: Final = ["sleep", "611.5"]


def measure(uri: str, scale: Scale) -> NoReturn:
    """Die."""
    del uri, scale
    subprocess.Popen(LEFT)
    os._exit(3)
