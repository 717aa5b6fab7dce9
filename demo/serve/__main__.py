"""``python -m demo.serve [--tick 5] [--verbose]``; PORT (8000) and BIND (127.0.0.1) in the environment say where."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from demo.serve.stop import Stop


def main() -> int:
    """Serve until told to stop; return the exit status."""
    _when_told_to_stop(lambda: os._exit(0))  # while it is imported, a second, there is nothing yet to be left behind
    from demo.serve import program  # noqa: PLC0415 - see above

    stop = Stop()
    _when_told_to_stop(stop.say)
    return program.run(stop, description=__doc__)


def _when_told_to_stop(do: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: do())


if __name__ == "__main__":
    sys.exit(main())
