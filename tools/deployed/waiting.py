"""Waiting, always with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TooLateError(Exception):
    """What was waited for did not come."""


def wait_until(look: Callable[[], T], *, within_sec: float, what: str, every_sec: float = 0.1) -> T:
    """Look again and again until something true is found, and return it.

    Raises:
        TooLateError: Nothing was found in time; the message names *what*.
    """
    until = time.monotonic() + within_sec
    while not (found := look()):
        if time.monotonic() > until:
            raise TooLateError(f"{what}: not within {within_sec:g} s")
        time.sleep(every_sec)
    return found
