"""The package itself."""

from __future__ import annotations

import subprocess
import sys

IMPORT = """
import sys
sys.modules["pytest"] = None
from tidemill.testing import *
from tidemill import testing
assert set(testing.__all__) <= set(globals())
"""


def test_no_test_runner_is_needed() -> None:
    assert subprocess.run([sys.executable, "-c", IMPORT], timeout=60, check=False).returncode == 0
