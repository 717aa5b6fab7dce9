"""Hooks around each run of a task function: what they may be, and the run inside of them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, TypeGuard

from tidemill.errors import RegistrationError
from tidemill.task_functions import TaskContext, describe_place, find_routine


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A generator function that yields once: before a run, the rest after it."""

    function: Callable[[TaskContext], Any]
    is_async: bool


def make_hook(function: object) -> Hook:
    """Return *function* as a hook.

    Raises:
        RegistrationError: It is no generator function of one parameter.
    """
    routine = find_routine(function)
    is_async = inspect.isasyncgenfunction(routine)
    if not callable(function) or not (is_async or inspect.isgeneratorfunction(routine)):
        raise RegistrationError(
            "a task hook is a def or async def that yields once: write @task_hook above def hook(ctx), without brackets"
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise RegistrationError(
            f"the task hook {describe_place(function)} must be callable as hook(ctx), with the TaskContext"
        ) from None
    return Hook(function=function, is_async=is_async)


def call_inside(hooks: Sequence[Hook], call: Callable[[], Any], ctx: TaskContext) -> Any:  # noqa: ANN401
    """Make *call* inside of *hooks* and return its value; the first hook is the outermost one.

    A value that is awaitable comes back as a coroutine. Hooks that are async run inside of all others, on the event
    loop of that coroutine; without one they do not run. A hook sees the error of the call. It may raise another one in
    its place, but not suppress it.
    """
    with ExitStack() as stack:
        for hook in hooks:
            if not hook.is_async:
                stack.enter_context(_enter(hook, ctx))
        value = call()
        if is_awaitable(value):
            return _await_inside([hook for hook in hooks if hook.is_async], value, ctx, stack.pop_all())
        return value


async def _await_inside(hooks: Sequence[Hook], value: Awaitable[Any], ctx: TaskContext, outer: ExitStack) -> Any:  # noqa: ANN401
    with outer:
        async with AsyncExitStack() as stack:
            try:
                for hook in hooks:
                    await stack.enter_async_context(_enter_async(hook, ctx))
            except BaseException:
                if isinstance(value, CoroutineType):
                    value.close()  # it will never begin
                raise
            while is_awaitable(value):
                value = await value
            return value


@contextmanager
def _enter(hook: Hook, ctx: TaskContext) -> Iterator[None]:
    manager = contextmanager(hook.function)(ctx)
    manager.__enter__()
    try:
        yield
    except BaseException as error:
        manager.__exit__(type(error), error, error.__traceback__)
        raise  # also if the hook suppresses it
    manager.__exit__(None, None, None)


@asynccontextmanager
async def _enter_async(hook: Hook, ctx: TaskContext) -> AsyncIterator[None]:
    manager = asynccontextmanager(hook.function)(ctx)
    await manager.__aenter__()
    try:
        yield
    except BaseException as error:
        await manager.__aexit__(type(error), error, error.__traceback__)
        raise  # also if the hook suppresses it
    await manager.__aexit__(None, None, None)


def is_awaitable(value: object) -> TypeGuard[Awaitable[Any]]:
    """Return whether *value* can be awaited; no code of it or of its class is run."""
    # Bypasses attribute lookup on the object and its class: both may run code of the function.
    bases = type.__dict__["__mro__"].__get__(type(value))
    return any("__await__" in type.__dict__["__dict__"].__get__(base) for base in bases)
