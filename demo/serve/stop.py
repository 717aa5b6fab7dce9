"""The word to stop, from a signal to whoever waits."""

from __future__ import annotations

import os


class Stop:
    """Said any number of times, at any moment; heard once.

    A pipe, since it is said by handlers of signals: one that took a lock would wait for what it has interrupted.
    """

    def __init__(self) -> None:
        self._heard, self._said = os.pipe()
        os.set_blocking(self._said, False)

    def say(self) -> None:
        """Have `wait` return."""
        try:
            os.write(self._said, b".")
        except BlockingIOError:  # it was said thousands of times, and is heard by the first
            return

    def wait(self) -> None:
        """Return once it was said."""
        os.read(self._heard, 1)
