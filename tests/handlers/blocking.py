"""An `AsyncQueue` that tests call as a `Queue`, on one event loop: so the same tests run on both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, cast

from pymongo import AsyncMongoClient
from pymongo.database import Database

from tidemill import AsyncHandle, AsyncQueue, Queue
from tidemill.clock import Clock


class MakeQueue(Protocol):
    """Makes a queue of the kind that a test is run with, on the database of a sync client."""

    def __call__(self, db: Database[Any], *, clock: Clock | None = None) -> Queue: ...


class BlockingQueue:
    """Runs each method of an async object to its end."""

    def __init__(self, wrapped: Any, runner: asyncio.Runner) -> None:
        self._wrapped = wrapped
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._wrapped, name)
        return self._block(attribute) if inspect.iscoroutinefunction(attribute) else attribute

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockingQueue) and bool(self._wrapped == other._wrapped)

    def __hash__(self) -> int:
        return hash(self._wrapped)

    def __repr__(self) -> str:
        return repr(self._wrapped).removeprefix("Async")

    def _block(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            returned = self._runner.run(method(*arguments, **options))
            if isinstance(returned, list):
                return [self._wrap(element) for element in returned]
            return self._wrap(returned)

        return call

    def _wrap(self, value: Any) -> Any:
        return BlockingQueue(value, self._runner) if isinstance(value, AsyncHandle) else value


class AsyncClock:
    """The clock of a test, for event loops."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def now(self) -> datetime:
        return self._clock.now()


def make_blocking_queue(
    runner: asyncio.Runner, client: AsyncMongoClient[Any], db: Database[Any], *, clock: Clock | None = None
) -> Queue:
    """Return a queue on the database that *client* has for *db*, with the options of *db*."""
    own = client.get_database(
        db.name,
        codec_options=db.codec_options,
        read_preference=db.read_preference,
        write_concern=db.write_concern,
        read_concern=db.read_concern,
    )
    queue = AsyncQueue(own, clock=None if clock is None else AsyncClock(clock))
    return cast("Queue", BlockingQueue(queue, runner))
