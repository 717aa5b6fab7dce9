"""The word to stop, said by handlers of signals while the same thread waits for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from demo.serve.stop import Stop

ROOT = Path(__file__).parents[2]
STORM = """
import os, signal, subprocess, sys, threading
from demo.serve.stop import Stop

stop = Stop()
signal.signal(signal.SIGTERM, lambda *_: stop.say())
storm = f"import os, signal\\nfor _ in range(20000): os.kill({os.getpid()}, signal.SIGTERM)"
sender = subprocess.Popen([sys.executable, "-c", storm])
stop.wait()
sender.wait()
print("stopped")
"""


def test_it_is_heard_once_however_often_it_was_said() -> None:
    stop = Stop()
    for _ in range(100_000):
        stop.say()

    stop.wait()


def test_a_storm_of_signals_ends_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STORM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "stopped\n", "")
