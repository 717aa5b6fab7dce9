"""Task functions by name, and how they are called."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping  # noqa: F401 - Mapping is an annotation of a test
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from tests.unit.make import a_context
from tidemill import Fail, RetryPolicy, TaskContext
from tidemill.errors import RegistrationError
from tidemill.policy.failures import classify
from tidemill.registry import Registry, TaskType
from tidemill.task_functions import Signature

CTX = a_context()


class Mail(BaseModel):
    model_config = ConfigDict(extra="forbid")

    to: str
    copies: int = 1


def registered(function: Callable[..., Any], name: str = "noop", **options: Any) -> TaskType:
    registry = Registry()
    registry.task(name, **options)(function)
    found = registry.get(name)
    assert found is not None
    return found


def payload_type(task_type: TaskType) -> object:
    found = task_type.signature.payload_type
    return found and found.annotation


def refused(function: Any, name: Any = "noop", **options: Any) -> str:
    registry = Registry()
    with pytest.raises(RegistrationError) as caught:
        registry.task(name, **options)(function)
    assert len(registry) == 0
    return str(caught.value)


def noop(_: dict[str, Any]) -> None:
    """Does nothing."""


def test_a_function_stays_as_it_is_and_is_found_by_its_name() -> None:
    registry = Registry()

    assert registry.task("noop", timeout=1.5, retry=RetryPolicy(max_retries=0), http=True, isolate=True)(noop) is noop

    [found] = registry
    assert found is registry.get("noop")
    assert found == TaskType(
        name="noop",
        function=noop,
        timeout=timedelta(seconds=1.5),
        retry=RetryPolicy(max_retries=0),
        http=True,
        isolate=True,
        signature=Signature(takes_context=False),
    )
    assert registry.get("os.system") is None  # F23


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (lambda payload: payload, {"a": 1}),
        (lambda payload, ctx: (payload, ctx), ({"a": 1}, CTX)),
        (lambda payload, ctx=None: (payload, ctx), ({"a": 1}, CTX)),
        (lambda payload, /, ctx: (payload, ctx), ({"a": 1}, CTX)),
        (lambda payload, ctx, other=1: (payload, ctx, other), ({"a": 1}, CTX, 1)),
        (lambda payload, *, option=2: (payload, option), ({"a": 1}, 2)),
        (lambda payload, **rest: (payload, rest), ({"a": 1}, {})),
    ],
)
def test_a_function_gets_the_payload_and_where_it_takes_one_the_context(
    function: Callable[..., Any], result: object
) -> None:
    assert registered(function).call({"a": 1}, CTX) == result


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda *args: args,
        lambda **rest: rest,
        lambda payload, ctx, more: None,  # noqa: ARG005 - what it takes is the point
        lambda payload, *, site: None,  # noqa: ARG005
        5,
        "os.system",
        None,
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused(function: object) -> None:  # F22
    assert "must be callable as function(payload) or function(payload, ctx)" in refused(function)


@pytest.mark.parametrize("name", ["", "a b", "../x", "1a", "Tâche😀", "x" * 101, "a\n", None, 5, noop, True, ["a"]])
def test_a_name_that_no_task_could_have_is_refused(name: object) -> None:  # F23
    assert ("needs a name" if name is noop else "is no name for a task") in refused(noop, name)


def test_a_decorator_without_its_name_is_refused_where_it_stands() -> None:
    with pytest.raises(RegistrationError, match="a task function needs a name"):
        Registry().task(noop)  # type: ignore[arg-type]


async def async_generator(_: dict[str, Any]) -> AsyncIterator[int]:
    yield 1


def generator(_: dict[str, Any]) -> Iterator[int]:
    yield 1


class Yielding:
    def __call__(self, _: dict[str, Any]) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    "function",
    [async_generator, generator, Yielding(), functools.partial(generator), functools.partial(Yielding())],
    ids=["async generator", "generator", "object", "partial", "partial of an object"],
)
def test_a_function_whose_call_would_run_nothing_is_refused(function: object) -> None:
    assert "yields, so that calling it does nothing" in refused(function)


async def coroutine(payload: Mail, *, extra: int = 0) -> int:
    return payload.copies + extra


class Called:
    async def __call__(self, payload: Mail) -> int:
        return payload.copies


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (coroutine, 3),
        (Called(), 3),
        (functools.partial(coroutine, extra=1), 4),
        (functools.partial(Called()), 3),
    ],
    ids=["function", "object", "partial", "partial of an object"],
)
def test_an_async_function_is_registered_like_any_other(function: Callable[..., Any], result: int) -> None:
    found = registered(function)

    assert payload_type(found) is Mail
    assert asyncio.run(found.call({"to": "a@b", "copies": 3}, CTX)) == result


def test_objects_and_partials_are_told_apart_though_they_are_made_in_one_place() -> None:  # F54
    for made in (lambda: functools.partial(noop), Called):
        registry, first = Registry(), made()
        registry.task("noop")(first)
        registry.task("noop")(first)

        with pytest.raises(RegistrationError, match="two functions are registered as 'noop'"):
            registry.task("noop")(made())


def test_a_name_is_given_once() -> None:  # F54
    def other(_: dict[str, Any]) -> None: ...

    registry = Registry()
    registry.task("noop")(noop)

    with pytest.raises(RegistrationError, match=r"two functions are registered as 'noop': .*\.noop .* and .*\.other "):
        registry.task("noop")(other)
    assert registry.get("noop") is not None
    assert registry.get("noop").function is noop  # type: ignore[union-attr]


def test_a_name_is_given_once_also_to_functions_that_are_called_alike() -> None:
    registry = Registry()

    def run(_: dict[str, Any]) -> int:
        return 1

    registry.task("noop")(run)

    def run(_: dict[str, Any]) -> int:  # type: ignore[no-redef]
        return 2

    with pytest.raises(RegistrationError, match="two functions are registered as 'noop'"):
        registry.task("noop")(run)


def test_a_module_that_is_loaded_again_registers_its_functions_again() -> None:
    registry = Registry()
    source = "@task('noop')\ndef run(payload): ...\n"

    for _ in range(2):
        exec(source, {"task": registry.task, "__name__": "mine"})  # the same lines, a new function

    assert len(registry) == 1


SOURCE = "@task('noop')\ndef run(payload): ...\n"


def test_a_module_that_is_imported_under_two_names_is_named(tmp_path: Path) -> None:  # N39
    registry = Registry()
    code = compile(SOURCE, str(tmp_path / "mails.py"), "exec")
    exec(code, {"task": registry.task, "__name__": "tasks.mails"})

    with pytest.raises(RegistrationError) as caught:
        exec(code, {"task": registry.task, "__name__": "app.tasks.mails"})

    assert str(caught.value) == (
        "the module of 'noop' is imported twice, as tasks.mails and as app.tasks.mails: import it under one name only"
    )


def test_a_cell_of_a_notebook_that_was_edited_registers_its_function_again() -> None:  # N39
    registry = Registry()
    for cell in (1, 2):
        source = "\n" * cell + SOURCE
        exec(compile(source, f"<ipython-input-{cell}>", "exec"), {"task": registry.task, "__name__": "__main__"})

    [found] = registry
    assert found.function.__code__.co_filename == "<ipython-input-2>"


def test_two_functions_of_one_script_are_two() -> None:  # N39
    registry = Registry()

    with pytest.raises(RegistrationError, match="two functions are registered as 'noop'"):
        exec(compile(SOURCE * 2, "script.py", "exec"), {"task": registry.task, "__name__": "__main__"})


@pytest.mark.parametrize("function", [functools.partial(noop), type("Callable", (), {"__call__": lambda _, p: p})()])
def test_what_is_callable_but_no_function_is_registered_or_refused_in_words(function: Callable[..., Any]) -> None:
    registry = Registry()
    try:
        registry.task("noop")(function)
    except RegistrationError as error:
        assert "cannot be resolved" in str(error)  # noqa: PT017 - either is fine


def test_a_payload_with_a_model_is_validated_first() -> None:
    def send(payload: Mail) -> Mail:
        return payload

    task_type = registered(send)

    assert payload_type(task_type) is Mail
    assert task_type.call({"to": "ann", "copies": 2}, CTX) == Mail(to="ann", copies=2)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({}, "to"),
        ({"to": 1}, "to"),
        ({"to": "ann", "copies": "S3cr3t"}, "copies"),
        ({"to": "ann", "S3": "S3cr3t"}, "S3"),
    ],
)
def test_a_payload_that_does_not_fit_is_not_retried_and_not_shown(  # F22, F81
    payload: dict[str, Any], field: str
) -> None:
    def send(payload: Mail, ctx: TaskContext) -> None:
        raise AssertionError((payload, ctx))

    with pytest.raises(Fail, match=f"the payload does not fit Mail: {field}: ") as caught:
        registered(send).call(payload, CTX)

    failure = classify(caught.value)
    assert (failure.retryable, failure.code) == (False, "ValidationError")
    assert "S3cr3t" not in failure.message
    assert len(failure.message) < 2000


def test_a_type_error_inside_the_function_is_retried() -> None:  # F22
    def send(payload: dict[str, Any]) -> None:
        payload["a"]()

    with pytest.raises(TypeError) as caught:
        registered(send).call({"a": 1}, CTX)

    assert classify(caught.value).retryable


@pytest.mark.parametrize("annotation", ["Missing", "math.Missing", "not python", "1 / 0"])
def test_an_annotation_that_cannot_be_resolved_is_refused(annotation: str) -> None:
    def send(payload: Any) -> Any:
        return payload

    send.__annotations__["payload"] = annotation

    assert "the annotation of 'payload' of" in refused(send)


@pytest.mark.parametrize("annotation", [dict, Any, object, "dict[str, Any]", "Mapping[str, object]", dict[Any, Any]])
def test_a_plain_object_as_the_annotation_leaves_the_payload_as_it_is(annotation: object) -> None:
    def send(payload: Any) -> Any:
        return payload

    send.__annotations__["payload"] = annotation

    assert registered(send).signature == Signature(takes_context=False)


def test_the_time_that_remains_is_never_below_zero() -> None:
    assert a_context(deadline=0.0).remaining() == timedelta(0)
    assert a_context().remaining() > timedelta(days=1)
    assert not CTX.cancelled()
