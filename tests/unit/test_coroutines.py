"""Functions that are async: run to their end like any other, and cleared of what they leave running."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import logging
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.make import eventually
from tidemill import TaskTimeoutError
from tidemill.runner.call import Coroutines, run_function, run_to_end
from tidemill.runner.results import Raised, Returned

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("SEEN", default="nothing")


@pytest.fixture
def coroutines() -> Iterator[Coroutines]:
    with contextlib.closing(Coroutines()) as made:
        yield made


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is logged, and nothing is left that would say anything when it is collected."""
    with caplog.at_level(logging.DEBUG):
        yield
        gc.collect()
    assert [one.getMessage() for one in caplog.records if _is_ours(one)] == []


def _is_ours(record: logging.LogRecord) -> bool:
    """Tell it from what asyncio says of its selector, and the driver of the servers that other tests use."""
    return "selector" not in record.getMessage() and not record.name.startswith("pymongo")


async def loop_of_mine() -> int:
    await asyncio.sleep(0)
    return id(asyncio.get_running_loop())


async def forever(stopped: list[str] | None = None) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0)  # an end takes a moment, which is granted
        if stopped is not None:
            stopped.append("stopped")


async def stubborn(swallows: int, refused: list[BaseException]) -> None:
    while len(refused) < swallows:
        try:
            await asyncio.sleep(3600)
        except BaseException as error:  # noqa: BLE001 - just that
            refused.append(error)


def left_by(coroutines: Coroutines, *left: Awaitable[Any]) -> Any:
    """Run a function that leaves these running, and return its result."""

    async def leaves() -> str:
        kept = [asyncio.ensure_future(one) for one in left]
        await asyncio.sleep(0)  # they begin
        return f"left {len(kept)}"

    return coroutines.run_to_end(leaves)


# What is run


class Lazy:
    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work().__await__()


async def adds(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


async def forgets_to_await() -> Any:
    return adds(2)


@pytest.mark.parametrize(
    "function",
    [lambda: adds(2), functools.partial(adds, 2), forgets_to_await, lambda: Lazy(lambda: adds(2)), lambda: 3],
    ids=["passed on", "async", "forgotten", "awaitable", "not async"],
)
def test_what_can_be_awaited_is_run_to_its_end(coroutines: Coroutines, function: Callable[[], Any]) -> None:
    assert coroutines.run_to_end(function) == 3
    assert run_to_end(function) == 3


def test_a_generator_is_a_result_like_any_other(coroutines: Coroutines) -> None:  # F49
    generator = (n for n in "abc")

    assert coroutines.run_to_end(lambda: generator) is generator


def test_a_result_is_not_asked_whether_it_can_be_awaited(coroutines: Coroutines) -> None:  # F49
    def leave(*_: object) -> Any:
        raise SystemExit("hostile")

    meta = type("Meta", (type,), {"__getattribute__": leave, "__instancecheck__": leave})
    hostile: Any = meta("Hostile", (), {"__class__": property(leave), "__getattribute__": leave})

    result = hostile()

    assert coroutines.run_to_end(lambda: result) is result


def test_one_loop_is_used_again_and_none_is_made_for_what_needs_none(
    coroutines: Coroutines, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[asyncio.AbstractEventLoop] = []
    make_loop = asyncio.new_event_loop

    def count_loops() -> asyncio.AbstractEventLoop:
        made.append(make_loop())
        return made[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", count_loops)
    assert coroutines.run_to_end(lambda: 1) == 1
    assert made == []

    first, second = coroutines.run_to_end(loop_of_mine), coroutines.run_to_end(loop_of_mine)

    assert first == second == id(*made)


def test_a_call_sees_its_own_context_and_none_of_another(coroutines: Coroutines) -> None:  # F53
    async def looks() -> str:
        seen = SEEN.get()
        SEEN.set("left behind")
        return seen

    def wrapped() -> Any:
        SEEN.set("by the wrapper")
        return looks()

    SEEN.set("of the thread")

    assert [coroutines.run_to_end(one) for one in (wrapped, looks, SEEN.get)] == [
        "by the wrapper",
        "nothing",
        "nothing",
    ]
    assert SEEN.get() == "of the thread"


def test_a_process_can_be_started_and_awaited_off_the_main_thread() -> None:
    async def asks() -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('hello')", stdout=asyncio.subprocess.PIPE
        )
        told, _ = await process.communicate()
        return told

    told: list[bytes] = []
    thread = threading.Thread(target=lambda: told.append(run_to_end(asks)))
    thread.start()
    thread.join(30)

    assert told == [b"hello\n"]


# However it ends


class OwnError(BaseException):
    pass


async def fails(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def is_left_by(error: BaseException) -> None:
    """Awaits something for ever while a task of it raises *error*."""
    failing = asyncio.ensure_future(fails(error))
    await asyncio.sleep(3600)
    await failing


async def stops_its_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(3600)


async def cancels_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(3600)


def recursing() -> None:
    recursing()


async def recurses() -> None:
    recursing()


ENDS: dict[str, tuple[Callable[[], Any], str]] = {
    "exit 0": (lambda: fails(SystemExit(0)), "SystemExit"),
    "exit": (lambda: fails(SystemExit("bye")), "SystemExit"),
    "interrupt": (lambda: fails(KeyboardInterrupt()), "KeyboardInterrupt"),
    "cancelled": (lambda: fails(asyncio.CancelledError()), "CancelledError"),
    "generator exit": (lambda: fails(GeneratorExit()), "GeneratorExit"),
    "memory": (lambda: fails(MemoryError()), "MemoryError"),
    "own": (lambda: fails(OwnError()), "OwnError"),
    "stop iteration": (lambda: fails(StopIteration()), "RuntimeError"),
    "timeout of its own": (lambda: fails(TaskTimeoutError()), "TaskTimeoutError"),
    "group": (lambda: fails(BaseExceptionGroup("many", [SystemExit(), KeyboardInterrupt()])), "BaseExceptionGroup"),
    "recursion": (recurses, "RecursionError"),
    "exit of a task": (lambda: is_left_by(SystemExit("bye")), "SystemExit"),
    "interrupt of a task": (lambda: is_left_by(KeyboardInterrupt()), "KeyboardInterrupt"),
    "stops its loop": (stops_its_loop, "RuntimeError"),
    "cancels all": (cancels_all, "CancelledError"),
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_a_coroutine_raises_is_concluded_and_the_next_three_run(  # F48
    coroutines: Coroutines, end: str
) -> None:
    function, code = ENDS[end]

    def concluded_by(run: Callable[[Callable[[], Any]], Any]) -> object:
        return run_function(lambda: run(function))

    concluded = concluded_by(coroutines.run_to_end)

    assert isinstance(concluded, Raised)
    assert concluded.failure.code == code
    for _ in range(3):
        assert run_function(lambda: coroutines.run_to_end(lambda: adds(2))) == Returned(3)
    assert concluded_by(run_to_end) == concluded


# What it leaves running


def test_tasks_that_are_left_are_cancelled_and_end_before_the_next_call(coroutines: Coroutines) -> None:
    stopped: list[str] = []
    loop = coroutines.run_to_end(loop_of_mine)

    assert left_by(coroutines, forever(stopped), forever(stopped)) == "left 2"

    assert stopped == ["stopped", "stopped"]
    assert coroutines.run_to_end(loop_of_mine) == loop


def test_what_is_left_and_fails_is_not_heard_of(coroutines: Coroutines) -> None:
    for error in (ValueError("a secret"), SystemExit("a secret"), KeyboardInterrupt()):
        assert left_by(coroutines, *(fails(error) for _ in range(4))) == "left 4"
        assert coroutines.run_to_end(lambda: adds(2)) == 3


def test_a_task_that_is_left_and_exits_when_it_is_cancelled_ends_nothing_else(coroutines: Coroutines) -> None:
    async def exits() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            sys.exit("hostile")

    stopped: list[str] = []

    assert left_by(coroutines, exits(), exits(), forever(stopped)) == "left 3"
    assert coroutines.run_to_end(lambda: adds(2)) == 3


@pytest.mark.parametrize("swallows", [1, 2, 3, 4])
def test_a_task_that_is_left_and_will_not_end_is_cut_off(coroutines: Coroutines, swallows: int) -> None:
    refused: list[BaseException] = []

    assert left_by(coroutines, stubborn(swallows, refused)) == f"left {1}"

    assert len(refused) == swallows
    assert isinstance(refused[0], asyncio.CancelledError)
    assert coroutines.run_to_end(lambda: adds(2)) == 3


def test_a_task_that_starts_others_without_end_is_cut_off(coroutines: Coroutines) -> None:
    async def hydra() -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(3600)
        finally:
            loop.create_task(hydra())  # noqa: RUF006 - just that

    assert left_by(coroutines, hydra()) == "left 1"
    assert coroutines.run_to_end(lambda: adds(2)) == 3


async def counting(closed: list[str], name: str) -> AsyncIterator[int]:
    try:
        for n in range(1000):
            yield n
    finally:
        await asyncio.sleep(0.001)
        closed.append(name)


def test_generators_that_are_left_are_closed_before_the_next_call(coroutines: Coroutines) -> None:
    closed: list[str] = []
    kept: list[AsyncIterator[int]] = []

    async def leaves() -> int:
        kept.append(counting(closed, "kept"))
        async for n in kept[0]:
            if n == 2:
                break
        async for n in counting(closed, "dropped"):
            if n == 3:
                break
        return n

    loop = coroutines.run_to_end(loop_of_mine)

    assert coroutines.run_to_end(leaves) == 3

    assert sorted(closed) == ["dropped", "kept"]
    assert coroutines.run_to_end(loop_of_mine) == loop


def test_a_generator_that_is_dropped_once_its_loop_is_gone_is_no_trouble() -> None:
    kept: list[Any] = []

    async def refuses() -> AsyncIterator[int]:
        try:
            yield 1
        except GeneratorExit:
            yield 2

    async def leaves() -> None:
        kept.append(refuses())
        await anext(kept[0])

    run_to_end(leaves)

    generator = weakref.ref(kept[0])
    kept.clear()
    gc.collect()
    assert generator() is None


def test_calls_on_threads_that_are_left_do_not_hinder_the_next(coroutines: Coroutines) -> None:
    gate, begun, ended = threading.Event(), list[int](), list[int]()

    def works(n: int) -> None:
        begun.append(n)
        gate.wait(10)
        ended.append(n)

    async def leaves() -> int:
        loop = asyncio.get_running_loop()
        return len([loop.run_in_executor(None, works, n) for n in range(100)])

    assert coroutines.run_to_end(leaves) == 100
    assert coroutines.run_to_end(lambda: asyncio.to_thread(lambda: "free")) == "free"

    assert ended == []
    gate.set()
    assert eventually(lambda: sorted(ended) == sorted(begun))
    assert len(begun) < 100  # those that had to wait for a thread are never begun


def test_a_loop_that_was_closed_is_replaced(coroutines: Coroutines) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def shows() -> None:
        loops.append(asyncio.get_running_loop())

    coroutines.run_to_end(shows)
    coroutines.run_to_end(loops[0].close)

    assert coroutines.run_to_end(lambda: adds(2)) == 3


# The system


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files where Linux shows them")
def test_nothing_stays_open() -> None:
    gc.collect()
    before = open_files()

    for name in ENDS:
        run_function(lambda name=name: run_to_end(ENDS[name][0]))  # type: ignore[misc]

    assert open_files() <= before  # what earlier tests left may have gone meanwhile


class GivenUp(contextlib.AbstractContextManager[None]):
    def __enter__(self) -> None:
        raise TaskTimeoutError

    def __exit__(self, *_: object) -> None:
        """Never comes to that."""


def test_what_cannot_begin_is_closed_unheard() -> None:
    begun: list[str] = []

    with contextlib.closing(Coroutines(GivenUp)) as coroutines, pytest.raises(TaskTimeoutError):
        coroutines.run_to_end(lambda: forever(begun))

    assert begun == []


def test_nothing_is_cancelled_where_nothing_runs(coroutines: Coroutines) -> None:
    assert not coroutines.cancel()
    coroutines.run_to_end(lambda: adds(2))
    assert not coroutines.cancel()


def test_what_runs_can_be_cancelled_from_another_thread(coroutines: Coroutines) -> None:
    stopped: list[str] = []
    begun = threading.Event()

    async def runs() -> None:
        begun.set()
        await forever(stopped)

    def cancels() -> None:
        begun.wait(5)
        assert coroutines.cancel()

    thread = threading.Thread(target=cancels)
    thread.start()

    with pytest.raises(asyncio.CancelledError):
        coroutines.run_to_end(runs)
    thread.join()
    assert stopped == ["stopped"]


def test_the_debug_mode_of_asyncio_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    refused: list[BaseException] = []

    with contextlib.closing(Coroutines()) as coroutines:
        assert left_by(coroutines, stubborn(3, refused), fails(ValueError("a secret"))) == "left 2"
        assert coroutines.run_to_end(lambda: adds(2)) == 3
