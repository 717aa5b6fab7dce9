"""The schema of a payload: it refuses what is surely wrong, and nothing that the function's own type takes."""

from __future__ import annotations

import dataclasses
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    OnErrorOmit,
    PlainValidator,
    PydanticUserError,
    RootModel,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    WrapValidator,
    create_model,
    model_validator,
)
from typing_extensions import TypedDict

from tidemill.requests.payload_schema import PayloadSchema, read_schema, write_schema


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Lenient(Enum):
    OTHER = "other"

    @classmethod
    def _missing_(cls, _: object) -> Lenient:
        return cls.OTHER


class Person(BaseModel):
    name: str = Field(max_length=5)
    age: int | None = Field(default=None, ge=0)


class Tree(BaseModel):
    n: int
    children: list[Tree] = Field(default=[], max_length=2)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0
    label: str = dataclasses.field(default="", init=False)


@dataclasses.dataclass
class Pair:
    left: int
    right: str = "r"


class Parcel(TypedDict):
    to: str
    weight: NotRequired[float]


class Swapped(BaseModel):
    n: int

    @model_validator(mode="before")
    @classmethod
    def _take_text(cls, value: Any) -> Any:
        return {"n": len(value)} if isinstance(value, str) else value


class Own(BaseModel):
    n: int

    def __init__(self, **_: Any) -> None:
        super().__init__(n=1)


class Numbers(RootModel[list[int]]):
    pass


EVEN: Any = Annotated[int, Field(ge=1, lt=10, multiple_of=2)]
SHORT: Any = Annotated[str, Field(min_length=2, max_length=4)]
FEW: Any = Annotated[list[int], Field(min_length=1, max_length=2)]

TYPES: list[Any] = [
    int, float, bool, str, Decimal, date, datetime, time, timedelta, UUID, bytes, Color, Size, Lenient, Any, None,
    int | None, list[int], set[int], frozenset[str], tuple[int, str], tuple[int, ...], dict[str, int], dict[int, float],
    Literal["a", "b"], Literal[1, "1"], Literal[True], Literal[Color.RED], int | str, list[Person | int], Person, Tree,
    Point, Pair, Parcel, Swapped, Own, Numbers, list[Tree], list[OnErrorOmit[int]],
    Annotated[Cat | Dog, Field(discriminator="kind")],
    EVEN,
    Annotated[float, Field(gt=0.5, le=3)],
    SHORT,
    Annotated[str, Field(pattern="^a")],
    FEW,
    Annotated[set[int], Field(min_length=1, max_length=1)],
    Annotated[int, BeforeValidator(lambda _: 1)],
    Annotated[int, PlainValidator(lambda _: 1)],
    Annotated[int, WrapValidator(lambda _, __: 1)],
    Annotated[int, WithJsonSchema({"type": "string"})],
    Annotated[int, Field(strict=True)],
]  # fmt: skip

CONFIGS: list[Any] = [
    {}, {"extra": "forbid"}, {"extra": "allow"}, {"populate_by_name": True, "extra": "forbid"}, {"strict": True},
    {"str_strip_whitespace": True, "str_max_length": 3}, {"str_to_lower": True}, {"coerce_numbers_to_str": True},
    {"str_min_length": 2}, {"allow_inf_nan": False}, {"use_enum_values": True, "validate_default": True},
]  # fmt: skip

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([
        "", "1", "1.0", "1.5", " a ", "a", "b", "ab", "abcdef", "red", "cat", "dog", "true", "no", "2031-07-01",
        "2031-07-01T09:00:00Z", "09:00", "P1D", "1e3", "12345678-1234-5678-1234-567812345678", "  abc  ", "1_000",
    ]),
)  # fmt: skip
KEYS = st.sampled_from(
    ["f", "g", "alias", "other", "n", "name", "age", "children", "kind", "x", "y", "to", "1", "left"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
ALIASES: st.SearchStrategy[dict[str, Any]] = st.sampled_from([
    {}, {"alias": "alias"}, {"validation_alias": AliasChoices("alias", "other")}, {"validation_alias": "other"},
    {"validation_alias": AliasPath("other", 0)}, {"validation_alias": AliasChoices("alias", AliasPath("x", 1))},
])  # fmt: skip


@st.composite
def models(draw: st.DrawFn) -> Any:
    fields: dict[str, Any] = {}
    for name in ("f", "g")[: draw(st.integers(1, 2))]:
        options: dict[str, Any] = dict(draw(ALIASES))
        if draw(st.booleans()):
            options["default"] = None
        fields[name] = (draw(st.sampled_from(TYPES)), Field(**options))
    config: Any = draw(st.sampled_from(CONFIGS))
    try:
        return create_model("Made", __config__=config, **fields)
    except PydanticUserError:  # not every option suits every type
        reject()


def make_schema(kind: Any) -> PayloadSchema | None:
    return read_schema(write_schema(TypeAdapter(kind).core_schema))


def takes(model: type[BaseModel], payload: Any) -> bool:
    try:
        model.model_validate(payload)
    except ValidationError:
        return False
    return True


@settings(max_examples=200)
@given(kind=models(), payload=st.dictionaries(KEYS, VALUES, max_size=5))
def test_what_the_schema_refuses_the_model_refuses(kind: Any, payload: dict[str, Any]) -> None:
    schema = make_schema(kind)

    if schema is not None and (found := schema.find_problems(payload)):
        assert not takes(kind, payload), (found, kind.__pydantic_core_schema__)


MADE = [create_model("Made", f=(kind, ...)) for kind in TYPES]
SCHEMAS = [make_schema(model) for model in MADE]


@settings(max_examples=1000)
@given(index=st.integers(0, len(TYPES) - 1), value=VALUES)
def test_what_the_schema_of_a_field_refuses_its_type_refuses(index: int, value: Any) -> None:
    schema = SCHEMAS[index]

    if schema is not None and schema.find_problems({"f": value}):
        assert not takes(MADE[index], {"f": value})


EXACT: list[Any] = [
    int, float, bool, str, Decimal, date, datetime, time, timedelta, UUID, Color, int | None, list[int], dict[str, int],
    Literal["a", "b"], int | str, Person, Tree, Pair, Parcel, EVEN,
    SHORT, FEW,
]  # fmt: skip


@settings(max_examples=500)
@given(index=st.sampled_from([TYPES.index(kind) for kind in EXACT]), value=VALUES)
def test_of_most_types_it_refuses_all_that_they_refuse(index: int, value: Any) -> None:
    schema = SCHEMAS[index]

    assert schema is not None
    assert bool(schema.find_problems({"f": value})) == (not takes(MADE[index], {"f": value}))


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int
    buyer: Person
    lines: list[Person | int] = []


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ({"number": "7", "buyer": {"name": "Ada"}}, []),
        ({"buyer": {"name": "Ada"}}, [("payload.number", "is missing")]),
        (
            {"number": "x", "buyer": {"name": "Ada Lovelace", "age": -1}, "other": 1},
            [
                (
                    "payload.number",
                    "Input should be a valid integer, unable to parse string as an integer",
                ),
                ("payload.buyer.name", "String should have at most 5 characters"),
                ("payload.buyer.age", "Input should be greater than or equal to 0"),
                ("payload.other", "there is no such field"),
            ],
        ),
        (
            {"number": 1, "buyer": {"name": "Ada"}, "lines": [1, "x"]},
            [
                ("payload.lines.1.Person", "Input should be a valid dictionary"),
                ("payload.lines.1.int", "Input should be a valid integer, unable to parse string as an integer"),
            ],
        ),
    ],
)
def test_a_fault_is_told_with_its_path_as_the_model_tells_it(payload: Any, found: list[tuple[str, str]]) -> None:
    schema = make_schema(Order)

    assert schema is not None
    assert [(problem.field, problem.message) for problem in schema.find_problems(payload)] == found


def test_the_text_is_the_same_in_every_process_and_is_json_schema() -> None:
    text = write_schema(TypeAdapter(Tree).core_schema)

    assert text == write_schema(TypeAdapter(Tree).core_schema)
    assert json.loads(text or "") == {
        "$ref": "#/$defs/d0",
        "title": "Tree",
        "$defs": {
            "d0": {
                "title": "Tree",
                "type": "object",
                "required": ["n"],
                "properties": {
                    "n": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/d0", "title": "Tree"}, "maxItems": 2},
                },
            }
        },
    }


@pytest.mark.parametrize("kind", [Any, Swapped, Annotated[int, BeforeValidator(int)]])
def test_a_type_that_only_python_knows_has_no_schema(kind: Any) -> None:
    assert write_schema(TypeAdapter(kind).core_schema) is None


def test_a_schema_that_is_too_large_is_not_stored() -> None:
    fields: dict[str, Any] = {f"field_{n}": (int, ...) for n in range(3000)}

    assert write_schema(TypeAdapter(create_model("Large", **fields)).core_schema) is None


@pytest.mark.parametrize("text", [None, 7, "", "{", "[]", "7", '{"type":"array"}', '{"format":"later"}', '{"$ref":7}'])
def test_a_schema_that_cannot_be_read_checks_nothing(text: Any) -> None:
    assert read_schema(text) is None
