"""Task functions are called as their authors wrote them, or refused at registration in a sentence."""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional, Protocol, Union

import pydantic
import pytest
from pydantic import BaseModel, Field, RootModel
from typing_extensions import TypedDict

from tests.unit.make import a_context
from tidemill import Fail, Retry, TaskContext
from tidemill.errors import RegistrationError
from tidemill.registry import Registry

CTX = a_context()


class Mail(BaseModel):
    to: str


class Letter(BaseModel):
    kind: Literal["letter"]
    street: str


class Parcel(BaseModel):
    kind: Literal["parcel"]
    weight: Decimal


@dataclass
class Order:
    number: int
    note: str = ""


class Address(TypedDict):
    city: str


class OldAddress(typing.TypedDict):
    city: str


class Level(enum.Enum):
    HIGH = "high"


class HasDeadline(Protocol):
    deadline: float


def run(function: Callable[..., Any], payload: dict[str, Any] | None = None) -> Any:
    registry = Registry()
    registry.task("send")(function)
    [found] = registry
    return found.call({"to": "ann"} if payload is None else payload, CTX)


def refusal(function: object) -> str:
    registry = Registry()
    with pytest.raises(RegistrationError) as caught:
        registry.task("send")(function)  # type: ignore[type-var]
    assert len(registry) == 0
    return str(caught.value)


# Decorators: the outermost callable is what is called.


def hands_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def adds_a_site(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, site="eu", **kwargs)

    return wrapper


def takes_the_payload_only(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(payload: Any) -> Any:
        return function(payload, "site")

    return wrapper


def takes_the_context_for_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(payload: Any, ctx: Any) -> Any:
        return ctx, function(payload)

    return wrapper


def takes_the_rest(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(payload: Any, *rest: Any) -> Any:
        return function(payload, *rest)

    return wrapper


class Counted:
    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (hands_on(lambda payload: payload), {"to": "ann"}),
        (hands_on(lambda payload, ctx: (payload, ctx)), ({"to": "ann"}, CTX)),
        (hands_on(hands_on(lambda payload, ctx: ctx)), CTX),  # noqa: ARG005 - what it takes is the point, here and below
        (hands_on(lambda payload, n=5: n), 5),  # noqa: ARG005
        (takes_the_payload_only(lambda payload, site: (payload, site)), ({"to": "ann"}, "site")),
        (takes_the_context_for_itself(lambda payload: payload), (CTX, {"to": "ann"})),
        (takes_the_rest(lambda payload, ctx: ctx), CTX),  # noqa: ARG005
        (takes_the_rest(lambda payload: payload), {"to": "ann"}),
        (adds_a_site(lambda payload, *, site: site), "eu"),  # noqa: ARG005
        (adds_a_site(lambda payload, ctx, site: (ctx, site)), (CTX, "eu")),  # noqa: ARG005
        (Counted(lambda payload, ctx: ctx), CTX),  # noqa: ARG005
        (functools.lru_cache(lambda payload=None: payload), None),
        (functools.partial(lambda first, payload, ctx: (first, ctx), 1), (1, CTX)),  # noqa: ARG005
    ],
)  # fmt: skip
def test_a_decorated_function_is_called_as_its_outermost_callable_says(  # N18
    function: Callable[..., Any], result: object
) -> None:
    if result is None:  # its cache cannot hold a dict, which is the author's own mistake: it is called nevertheless
        with pytest.raises(TypeError, match="unhashable"):
            run(function)
    else:
        assert run(function) == result


def test_a_decorator_that_injects_a_typed_argument_gets_the_payload_only() -> None:  # N18
    def send(payload: dict[str, Any], site: str) -> tuple[dict[str, Any], str]:
        return payload, site

    assert run(adds_a_site(send)) == ({"to": "ann"}, "eu")


def test_a_decorator_that_hides_what_the_second_argument_is_is_refused() -> None:  # N18
    def send(payload: dict[str, Any], site) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        """It takes what its decorator adds."""

    message = "the task function 'send' has a decorator that hides whether 'site' is the context: "
    assert refusal(adds_a_site(send)) == message + "annotate 'site', with TaskContext or with its type"


def test_a_wrapper_that_takes_anything_is_refused_with_the_name_of_what_it_lacks() -> None:  # N18b
    def bare(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    assert refusal(bare(lambda payload: payload)) == (
        "the task function 'send' must be callable as function(payload) or function(payload, ctx): "
        "*args do not say so; the decorator's wrapper needs @functools.wraps(function)"
    )


# Methods and classes.


class Sender:
    def send(self, payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    @hands_on
    def send_later(self, payload: dict[str, Any], ctx: TaskContext) -> object:
        return payload, ctx

    @classmethod
    def send_all(cls, payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    @staticmethod
    def send_one(payload: dict[str, Any], ctx: TaskContext) -> object:
        return payload, ctx


@pytest.mark.parametrize(
    "function",
    [Sender.send, Sender.send_later, hands_on(Sender.send), takes_the_rest(Sender.send), Sender.send_all.__func__],  # type: ignore[attr-defined]
)  # fmt: skip
def test_a_method_without_its_object_is_refused(function: object) -> None:  # N19
    expected = "is a method without an object: register a function, or an object's method"
    assert refusal(function) == f"the task function 'send' {expected}"


def test_a_method_with_its_object_is_a_function() -> None:  # N19
    assert run(Sender().send) == {"to": "ann"}
    assert run(Sender().send_later) == run(Counted(Sender().send_later)) == ({"to": "ann"}, CTX)
    assert run(Sender.send_all) == {"to": "ann"}
    assert run(Sender.send_one) == ({"to": "ann"}, CTX)
    assert run(Sender.__dict__["send_one"]) == ({"to": "ann"}, CTX)  # as a decorator in the class sees it


@pytest.mark.parametrize("function", [Sender, Mail, Order])
def test_a_class_is_refused_because_its_call_only_makes_an_object(function: object) -> None:
    assert "is a class, so that calling it only makes an object" in refusal(function)


# The context.


def annotated(annotation: object, default: object = ...) -> Callable[..., Any]:
    def send(payload: Any, second: Any) -> Any:  # noqa: ARG001
        return second

    def send_by_default(payload: Any, second: Any = default) -> Any:  # noqa: ARG001
        return second

    function = send if default is ... else send_by_default
    function.__annotations__["second"] = annotation
    return function


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (lambda payload, n=5: n, 5),  # noqa: ARG005 - here and below, what it takes is the point
        (lambda payload, ctx=None: ctx, CTX),  # noqa: ARG005
        (lambda payload, anything: anything, CTX),  # noqa: ARG005
        (annotated(TaskContext, None), CTX),
        (annotated("TaskContext", None), CTX),
        (annotated("TaskContext | None", None), CTX),
        (annotated(Optional[TaskContext], None), CTX),  # noqa: UP045
        (annotated("tidemill_for_type_checkers.TaskContext", None), CTX),
        (annotated("tidemill_for_type_checkers.Context"), CTX),
        (annotated(Any), CTX),
        (annotated(object), CTX),
        (annotated(HasDeadline), CTX),
        (annotated(int, 5), 5),
        (annotated("int | None", None), None),
    ],
)  # fmt: skip
def test_only_a_parameter_that_is_meant_as_the_context_gets_it(function: Callable[..., Any], result: object) -> None:
    assert run(function) is result  # A10


@pytest.mark.parametrize(
    ("annotation", "written"),
    [(int, "int"), ("Mail", "Mail"), (dict[str, Any], "dict[str, Any]"), ("Sender", "Sender")],
)
def test_a_second_argument_of_another_type_is_refused(annotation: object, written: str) -> None:  # A10
    assert refusal(annotated(annotation)) == (
        f"the second argument of the task function 'send' is its TaskContext, and 'second' is annotated as {written}: "
        "give it a default, or remove it"
    )


# The type of the payload.


def taking(annotation: object) -> Callable[..., Any]:
    def send(payload: Any) -> Any:
        return payload

    send.__annotations__["payload"] = annotation
    return send


@pytest.mark.parametrize(
    ("annotation", "payload", "result"),
    [
        ("Mail | None", {"to": "ann"}, Mail(to="ann")),
        (Optional[Mail], {"to": "ann"}, Mail(to="ann")),  # noqa: UP045
        (Union[Letter, Parcel], {"kind": "parcel", "weight": "2"}, Parcel(kind="parcel", weight=Decimal(2))),  # noqa: UP007
        ("Letter | Parcel", {"kind": "letter", "street": "a"}, Letter(kind="letter", street="a")),
        (
            Annotated[Letter | Parcel, Field(discriminator="kind")],
            {"kind": "letter", "street": "a"},
            Letter(kind="letter", street="a"),
        ),
        (Order, {"number": 7}, Order(7)),
        (Address, {"city": "Rome"}, {"city": "Rome"}),
        ("dict[str, int]", {"a": 1}, {"a": 1}),
        (dict[Literal["a", "b"], Decimal], {"a": "1.5"}, {"a": Decimal("1.5")}),
        (RootModel[dict[str, int]], {"a": 1}, RootModel[dict[str, int]]({"a": 1})),
    ],
    ids=str,
)
def test_a_payload_is_validated_as_the_type_it_is_annotated_with(  # N01
    annotation: object, payload: dict[str, Any], result: object
) -> None:
    assert run(taking(annotation), payload) == result


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (Order, "Order"),
        (Address, "Address"),
        ("Mail | Order", "Mail | Order"),
        (dict[str, int], "dict[str, int]"),
        (Annotated[Letter | Parcel, Field(discriminator="kind")], "Annotated[Letter | Parcel, FieldInfo("),
    ],
)
def test_a_payload_that_does_not_fit_its_type_is_a_failure_without_its_values(  # N01
    annotation: object, name: str
) -> None:
    with pytest.raises(Fail) as caught:
        run(taking(annotation), {"secret": "S3cr3t"})

    assert caught.value.code == "ValidationError"
    assert str(caught.value).startswith(f"the payload does not fit {name}")
    assert "S3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (str, "str"),
        (list[Mail], "list[Mail]"),
        ("str | None", "str | None"),
        ("bytes", "bytes"),
        (Level, "Level"),
        (None, "NoneType"),
        (typing.Tuple[str, int], "Tuple[str, int]"),  # noqa: UP006
    ],
)
def test_an_annotation_that_no_object_fits_is_refused(annotation: object, name: str) -> None:  # N01
    message = refusal(taking(annotation))

    assert message.startswith(f"a payload is an object (a dict), which never fits {name}, the annotation of ")


def test_a_type_that_pydantic_cannot_validate_is_refused_with_its_reason() -> None:  # N01
    if sys.version_info >= (3, 12):
        assert run(taking(OldAddress), {"city": "Rome"}) == {"city": "Rome"}
        return
    message = refusal(taking(OldAddress))

    assert message.endswith("Please use `typing_extensions.TypedDict` instead of `typing.TypedDict` on Python < 3.12.")


@pytest.mark.parametrize("annotation", [Sender, types.MappingProxyType])
def test_a_class_that_pydantic_does_not_know_is_refused(annotation: type) -> None:  # N01
    message = refusal(taking(annotation))

    assert message.startswith(f"Pydantic cannot validate a payload as {annotation.__name__}, the annotation of")


def test_only_the_annotation_of_the_payload_has_to_exist() -> None:  # N05
    def send(payload: Mail, ctx: TaskContext) -> ForTypeCheckers:  # type: ignore[name-defined]  # noqa: F821
        return payload, ctx

    assert run(send) == (Mail(to="ann"), CTX)


def test_a_payload_type_that_exists_for_type_checkers_only_is_refused() -> None:  # N05
    def send(payload: ForTypeCheckers) -> None:  # type: ignore[name-defined]  # noqa: F821
        """It is never called."""

    message = refusal(send)

    assert "the annotation of 'payload' of" in message
    assert "name 'ForTypeCheckers' is not defined" in message
    assert message.endswith("a type that is imported for type checkers only cannot validate a payload")


class Unfinished(BaseModel):
    below: Missing  # type: ignore[name-defined]  # noqa: F821


def test_a_model_with_a_field_whose_type_does_not_exist_is_refused() -> None:  # N05
    assert "Pydantic cannot validate a payload as Unfinished, the annotation of" in refusal(taking(Unfinished))


def test_the_annotations_of_a_decorated_function_belong_to_its_own_module() -> None:  # N18
    elsewhere: dict[str, Any] = {"__name__": "elsewhere", "Mail": Letter}
    exec("def send(payload: 'Mail'): return payload", elsewhere)

    sent = run(hands_on(elsewhere["send"]), {"kind": "letter", "street": "a"})

    assert sent == Letter(kind="letter", street="a")


def test_a_function_that_pydantic_wraps_is_called_as_it_is() -> None:
    @pydantic.validate_call
    def send(payload: Order) -> Order:
        return payload

    assert run(send, {"number": 7}) == Order(7)


@contextlib.contextmanager
def opened(payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield payload


def test_a_builtin_is_called_or_refused_but_never_ends_the_registration_otherwise() -> None:
    assert "must be callable as function(payload)" in refusal(min)
    assert run(len) == 1
    assert refusal(Retry) and run(opened)  # noqa: PT018 - what its result means is decided when it has run
