"""The same thing done by many in the same instant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

_T = TypeVar("_T")
_Who = TypeVar("_Who")


def at_once(those: Sequence[_Who], work: Callable[[_Who], _T]) -> list[_T]:
    """What *work* returns to each of *those*, all of whom wait for the last one before they begin."""
    together = Barrier(len(those))

    def begin(who: _Who) -> _T:
        together.wait()
        return work(who)

    with ThreadPoolExecutor(len(those)) as pool:
        return list(pool.map(begin, those))
