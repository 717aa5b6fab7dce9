"""``python -m localapi [--tick 5] [--verbose]``; PORT (8000) and BIND (127.0.0.1) in the environment say where."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from queue import SimpleQueue


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    _handle_signals(lambda *_: os._exit(0))  # the imports take a second, and leave nothing behind
    from localapi import program  # noqa: PLC0415 - see above

    stops = SimpleQueue[None]()  # unlike an event it takes no lock that the interrupted thread may hold
    _handle_signals(lambda *_: stops.put(None))
    status = program.run(wait_for_stop=stops.get, description=__doc__)
    _handle_signals(signal.SIG_IGN)  # a further Ctrl-C does not change the status
    return status


def _handle_signals(handler: Callable[..., object] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
