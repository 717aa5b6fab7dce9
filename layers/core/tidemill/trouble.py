"""What a log may say of an error: where and of which kind, but nothing that was asked for or worked on."""

from __future__ import annotations

import traceback
from typing import Final

from tidemill.errors import InvalidRequestError, TidemillError

FRAMES: Final = 5
"""So many of the innermost frames tell where it was raised."""


def told(error: BaseException) -> dict[str, str]:
    """Return the fields that a line about *error* has.

    The words of our own errors repeat nothing, but for what is wrong with a request: that names its fields, which may
    be anything. The words of others may hold anything, too, so of them it is told where they were raised.
    """
    kind = {"error_type": type(error).__name__}
    if isinstance(error, InvalidRequestError):
        return kind
    if isinstance(error, TidemillError):
        return kind | {"reason": str(error)}
    return kind | {"stack": "".join(traceback.format_tb(error.__traceback__, limit=-FRAMES))}
