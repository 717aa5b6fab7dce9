"""The threads of a load: all of them end together, and none fails unheard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from tools.chaos.load.machinery import Course

MOST_THREADS: Final = 32

Start: TypeAlias = Callable[..., Future[None]]


@contextmanager
def threads(course: Course) -> Iterator[Start]:
    """Give what starts a thread; at the end, or when one of them raises, all end, and what it raised is raised."""
    futures: list[Future[None]] = []
    with ThreadPoolExecutor(MOST_THREADS) as pool:

        def start(work: Callable[..., None], *given: Any, **named: Any) -> Future[None]:
            future = pool.submit(work, *given, **named)
            future.add_done_callback(lambda ended: course.end() if ended.exception() else None)
            futures.append(future)
            return future

        try:
            yield start
        finally:
            course.end()
    for one in futures:
        one.result()
