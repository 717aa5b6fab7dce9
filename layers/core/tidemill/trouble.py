"""What a log may say of an error: where and of which kind, but nothing that was asked for or worked on."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidemill.errors import InvalidRequestError, TidemillError, UnexpectedError

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


def hush_libraries() -> None:
    """Have libraries log warnings and worse only, as Python does: Lambda, asked for JSON, lets all of them say more."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("aws_lambda_powertools").setLevel(logging.WARNING)  # POWERTOOLS_DEBUG has it tell every payload


@contextmanager
def without_text() -> Iterator[None]:
    """Let only errors out whose words are ours, since Lambda writes those that a handler raises into its log.

    Raises:
        UnexpectedError: In the place of an exception that is none of this package's, with its stack.
    """
    try:
        yield
    except TidemillError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is goes on, only without what it says
        raise UnexpectedError(type(error).__name__).with_traceback(error.__traceback__) from None
