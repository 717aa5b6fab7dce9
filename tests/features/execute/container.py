"""The process of one function, as the platform keeps it warm: run as a module, told what to do over its stdin.

``python -m tests.features.execute.container FUNCTION``. Its clocks can be let jump, as by a freeze.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_wall, _monotonic = time.time, time.monotonic
_jumped = {"wall": 0.0, "monotonic": 0.0}
time.time = lambda: _wall() + _jumped["wall"]
time.monotonic = lambda: _monotonic() + _jumped["monotonic"]


def serve(function: str) -> None:
    """Do what each line asks for and answer with a line; what the function prints goes to stderr."""
    from datetime import timedelta  # noqa: PLC0415 - nothing may be imported before the clocks are ours

    from tests.handlers.calls import app  # noqa: PLC0415
    from tidemill.testing import FakeContext  # noqa: PLC0415

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        _jumped["wall"] += order.get("wall", 0.0)
        _jumped["monotonic"] += order.get("monotonic", 0.0)
        answer: dict[str, Any] = {}
        if "event" in order:
            context = FakeContext(timedelta(seconds=order["seconds"]), request_id=order["request_id"])
            try:
                answer["returned"] = app(function).lambda_handler(order["event"], context)
            except Exception as error:  # noqa: BLE001 - as the runtime does
                answer |= {"raised": type(error).__name__, "message": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
