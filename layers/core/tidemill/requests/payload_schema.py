"""JSON Schema of a payload: written when a task function is registered, and read to check payloads before a run.

The schema never refuses a payload that the function's own type takes. It leaves out all that only the type knows, such
as validators in Python. It is read as Pydantic reads JSON, leniently: an integer may be the text ``"1"``. Both the
function's type and the schema are checked by pydantic-core, which requests need anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from pydantic import ValidationError
from pydantic_core import SchemaError, SchemaValidator, core_schema

from tidemill.errors import Problem
from tidemill.requests.validation import below_payload, problems

MAX_SCHEMA_CHARS: Final = 64 * 1024
"""Length of a schema above which it is not stored, and payloads are checked at the run only."""

Schema: TypeAlias = dict[str, Any]

_ALIASES: Final = "x-aliases"
"""Names under which a property is looked for, in this order; ours, since JSON Schema has no such keyword."""

_BOUNDS: Final = {
    "ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum", "multiple_of": "multipleOf"
}  # fmt: skip
_FORMATS: Final[Mapping[str, tuple[str, Callable[[], Any]]]] = {
    "datetime": ("date-time", core_schema.datetime_schema),
    "date": ("date", core_schema.date_schema),
    "time": ("time", core_schema.time_schema),
    "timedelta": ("duration", core_schema.timedelta_schema),
    "uuid": ("uuid", core_schema.uuid_schema),
    "decimal": ("decimal", core_schema.decimal_schema),
}
_READERS: Final = dict(_FORMATS.values())


class PayloadSchema:
    """A stored schema, ready to check payloads."""

    def __init__(self, text: str) -> None:
        self._validator = SchemaValidator(_read_root(json.loads(text)))

    def find_problems(self, payload: object) -> list[Problem]:
        """Return the faults of *payload*, each with the path of its field; no value of it is repeated."""
        try:
            self._validator.validate_python(payload)
        except ValidationError as error:
            return [
                Problem(below_payload(problem.field), problem.message) for problem in problems(error, below="payload")
            ]
        return []


def read_schema(text: object) -> PayloadSchema | None:
    """Return the stored schema, or ``None`` if there is none that this release can read."""
    if isinstance(text, str):
        with suppress(SchemaError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return PayloadSchema(text)
    return None


def write_schema(core: Mapping[str, Any]) -> str | None:
    """Return the schema of the type with Pydantic's *core* schema as text; ``None`` if it would refuse nothing."""
    writer = _Writer()
    schema = writer.write(core)
    if writer.definitions:
        schema = schema | {"$defs": writer.definitions}
    text = json.dumps(schema, separators=(",", ":"))
    return text if schema and len(text) <= MAX_SCHEMA_CHARS else None


class _Writer:
    """Writes a core schema as JSON Schema. What it does not know becomes ``{}``, which refuses nothing."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._known: dict[str, Mapping[str, Any]] = {}
        self._names: dict[str, str] = {}
        self._configs: list[Mapping[str, Any]] = [{}]

    def write(self, core: Mapping[str, Any]) -> Schema:
        kind = core["type"]
        if kind in _FORMATS:
            return {"type": ["string", "number"], "format": _FORMATS[kind][0]}
        write: Callable[[Mapping[str, Any]], Schema] | None = getattr(self, f"_write_{kind.replace('-', '_')}", None)
        return {} if write is None else write(core)

    def _write_definitions(self, core: Mapping[str, Any]) -> Schema:
        self._known |= {definition["ref"]: definition for definition in core["definitions"]}
        return self.write(core["schema"])

    def _write_definition_ref(self, core: Mapping[str, Any]) -> Schema:
        ref = core["schema_ref"]
        if ref not in self._known:
            return {}
        if ref not in self._names:
            self._names[ref] = name = f"d{len(self._names)}"  # the type's own name has a number of this process
            configs, self._configs = self._configs, [{}]
            self.definitions[name] = self.write(self._known[ref])
            self._configs = configs
        cls = self._known[ref].get("cls")
        return {"$ref": f"#/$defs/{self._names[ref]}"} | ({"title": cls.__name__} if isinstance(cls, type) else {})

    def _write_inner(self, core: Mapping[str, Any]) -> Schema:
        return self.write(core["schema"])

    _write_function_after = _write_custom_error = _write_inner

    def _write_default(self, core: Mapping[str, Any]) -> Schema:
        return self.write(core["schema"]) if core.get("on_error", "raise") == "raise" else {}

    def _write_nullable(self, core: Mapping[str, Any]) -> Schema:
        inner = self.write(core["schema"])
        return {"anyOf": [inner, {"type": "null"}]} if inner else {}

    def _write_lax_or_strict(self, core: Mapping[str, Any]) -> Schema:
        return self.write(core["lax_schema"])

    def _write_json_or_python(self, core: Mapping[str, Any]) -> Schema:
        return self.write(core["python_schema"])

    def _write_chain(self, core: Mapping[str, Any]) -> Schema:
        return self.write(core["steps"][0])

    def _write_union(self, core: Mapping[str, Any]) -> Schema:
        choices = [self.write(choice[0] if isinstance(choice, tuple) else choice) for choice in core["choices"]]
        return {"anyOf": choices} if all(choices) else {}

    def _write_tagged_union(self, core: Mapping[str, Any]) -> Schema:
        choices = [self.write(choice) for choice in core["choices"].values() if isinstance(choice, dict)]
        return {"anyOf": choices} if all(choices) and len(choices) == len(core["choices"]) else {}

    def _write_model(self, core: Mapping[str, Any]) -> Schema:
        if core.get("custom_init"):
            return {}
        schema = self._write_with_config(core)
        return schema | {"title": core["cls"].__name__} if schema.get("type") == "object" else schema

    def _write_with_config(self, core: Mapping[str, Any]) -> Schema:
        self._configs.append(core.get("config") or {})
        schema = self.write(core["schema"])
        self._configs.pop()
        return schema

    _write_dataclass = _write_model

    def _write_model_fields(self, core: Mapping[str, Any]) -> Schema:
        fields = {name: (field, not _has_default(field["schema"])) for name, field in core["fields"].items()}
        return self._write_object(core, fields)

    def _write_dataclass_args(self, core: Mapping[str, Any]) -> Schema:
        fields = {field["name"]: (field, not _has_default(field["schema"])) for field in core["fields"]}
        if any(field.get("init") is False for field, _ in fields.values()):
            return {"type": "object"}
        return self._write_object(core, fields)

    def _write_typed_dict(self, core: Mapping[str, Any]) -> Schema:
        if core.get("config"):
            self._configs.append(core["config"])
        is_total = core.get("total", True)
        fields = {name: (field, field.get("required", is_total)) for name, field in core["fields"].items()}
        schema = self._write_object(core, fields)
        if core.get("config"):
            self._configs.pop()
        return schema

    def _write_object(self, core: Mapping[str, Any], fields: Mapping[str, tuple[Mapping[str, Any], bool]]) -> Schema:
        config = self._configs[-1]
        extra = core.get("extra_behavior") or config.get("extra_fields_behavior") or "ignore"
        properties, required, is_closed = dict[str, Schema](), list[str](), extra == "forbid"
        for name, (field, is_required) in fields.items():
            names = _list_names(name, field, config)
            if not names:
                is_closed = False
                continue
            properties[names[0]] = self.write(field["schema"])
            if len(names) > 1:
                properties[names[0]] |= {_ALIASES: names}
            required += names[:1] if is_required else []
        closed = {"additionalProperties": False} if is_closed else {}
        return {"type": "object", "properties": properties, "required": required, **closed}

    def _write_dict(self, core: Mapping[str, Any]) -> Schema:
        values = self.write(core["values_schema"]) if "values_schema" in core else {}
        return {"type": "object", "additionalProperties": values}

    def _write_list(self, core: Mapping[str, Any]) -> Schema:
        bounds = {"min_length": "minItems", "max_length": "maxItems"}
        return self._write_set(core) | {word: core[name] for name, word in bounds.items() if core.get(name) is not None}

    def _write_set(self, core: Mapping[str, Any]) -> Schema:
        return {"type": "array", "items": self.write(core["items_schema"]) if "items_schema" in core else {}}

    _write_frozenset = _write_set

    def _write_tuple(self, core: Mapping[str, Any]) -> Schema:
        if core.get("variadic_item_index") is not None:
            return {"type": "array", "items": {}}
        items = [self.write(element) for element in core["items_schema"]]
        return {"type": "array", "prefixItems": items}

    def _write_str(self, core: Mapping[str, Any]) -> Schema:
        def get(option: str) -> Any:  # noqa: ANN401
            return core.get(option.removeprefix("str_"), self._configs[-1].get(option))

        if get("coerce_numbers_to_str"):
            return {"type": ["string", "number"]}
        if any(get(option) for option in ("str_strip_whitespace", "str_to_lower", "str_to_upper")):
            return {"type": "string"}
        bounds = {"str_min_length": "minLength", "str_max_length": "maxLength"}
        return {"type": "string"} | {word: get(name) for name, word in bounds.items() if get(name) is not None}

    def _write_int(self, core: Mapping[str, Any]) -> Schema:
        return {"type": "integer"} | _write_bounds(core)

    def _write_float(self, core: Mapping[str, Any]) -> Schema:
        return {"type": "number"} | _write_bounds(core)

    def _write_bool(self, _: Mapping[str, Any]) -> Schema:
        return {"type": "boolean"}

    def _write_none(self, _: Mapping[str, Any]) -> Schema:
        return {"type": "null"}

    def _write_literal(self, core: Mapping[str, Any]) -> Schema:
        is_plain = all(type(value) in {str, int, bool} for value in core["expected"])
        return {"enum": list(core["expected"])} if is_plain else {}

    def _write_enum(self, core: Mapping[str, Any]) -> Schema:
        values = [member.value for member in core["members"]]
        is_plain = core.get("missing") is None and all(type(value) is str for value in values)
        return {"enum": values} if is_plain else {}


def _has_default(core: Mapping[str, Any]) -> bool:
    while core["type"] != "default" and isinstance(core.get("schema"), dict):
        core = core["schema"]
    return bool(core["type"] == "default")


def _list_names(name: str, field: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return the names of a property, in the order in which they are looked for; none if it may be anywhere."""
    alias = field.get("validation_alias")
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    if alias is None or (config.get("validate_by_alias") is False and by_name):
        return [name]
    paths = [[alias]] if isinstance(alias, str) else alias if isinstance(alias[0], list) else [alias]
    if any(len(path) > 1 or not isinstance(path[0], str) for path in paths):
        return []
    return [path[0] for path in paths] + ([name] if by_name else [])


def _write_bounds(core: Mapping[str, Any]) -> Schema:
    return {word: core[name] for name, word in _BOUNDS.items() if core.get(name) is not None}


def _read_root(schema: Schema) -> Any:  # noqa: ANN401 - one of many typed dictionaries
    parts: Mapping[str, Schema] = schema.get("$defs", {})
    definitions: list[Any] = [{**_read(part), "ref": f"#/$defs/{name}"} for name, part in parts.items()]
    return core_schema.definitions_schema(_read(schema), definitions) if definitions else _read(schema)


def _read(schema: Schema) -> Any:  # noqa: ANN401 - as above
    for keyword, read in _READ_BY_KEYWORD.items():
        if keyword in schema:
            return read(schema)
    kind = schema.get("type")
    read_type = _READ_BY_TYPE.get(kind) if isinstance(kind, str) else _read_text_or_number if kind else None
    return core_schema.any_schema() if read_type is None else read_type(schema)


def _read_bounded(make: Callable[..., Any]) -> Callable[[Schema], Any]:
    return lambda schema: make(**{name: schema[word] for name, word in _BOUNDS.items() if word in schema})


def _read_text(schema: Schema) -> Any:  # noqa: ANN401 - as above
    return core_schema.str_schema(min_length=schema.get("minLength"), max_length=schema.get("maxLength"))


def _read_text_or_number(_: Schema) -> Any:  # noqa: ANN401 - as above
    return core_schema.str_schema(coerce_numbers_to_str=True)


def _read_array(schema: Schema) -> Any:  # noqa: ANN401 - as above
    if "prefixItems" in schema:
        return core_schema.tuple_schema([_read(element) for element in schema["prefixItems"]])
    length = {"min_length": schema.get("minItems"), "max_length": schema.get("maxItems")}
    return core_schema.list_schema(_read(schema["items"]), **length)


def _read_choices(schema: Schema) -> Any:  # noqa: ANN401 - as above
    match schema["anyOf"]:
        case [inner, {"type": "null"}]:
            return core_schema.nullable_schema(_read(inner))
        case choices:
            # The title is the name of the choice in paths, as with a model.
            return core_schema.union_schema(
                [(_read(choice), choice["title"]) if "title" in choice else _read(choice) for choice in choices]
            )


def _read_object(schema: Schema) -> Any:  # noqa: ANN401 - as above
    if "properties" not in schema:
        return core_schema.dict_schema(values_schema=_read(schema.get("additionalProperties", {})))
    fields = {
        name: core_schema.typed_dict_field(
            _read(inner),
            required=name in schema["required"],
            validation_alias=[[alias] for alias in inner[_ALIASES]] if _ALIASES in inner else None,
        )
        for name, inner in schema["properties"].items()
    }
    is_closed = schema.get("additionalProperties") is False
    return core_schema.typed_dict_schema(fields, extra_behavior="forbid" if is_closed else "ignore")


_READ_BY_KEYWORD: Final[Mapping[str, Callable[[Schema], Any]]] = {
    "$ref": lambda schema: core_schema.definition_reference_schema(schema["$ref"]),
    "anyOf": _read_choices,
    "enum": lambda schema: core_schema.literal_schema(schema["enum"]),
    "format": lambda schema: _READERS[schema["format"]](),
}
_READ_BY_TYPE: Final[Mapping[str, Callable[[Schema], Any]]] = {
    "object": _read_object,
    "array": _read_array,
    "string": _read_text,
    "integer": _read_bounded(core_schema.int_schema),
    "number": _read_bounded(core_schema.float_schema),
    "boolean": lambda _: core_schema.bool_schema(),
    "null": lambda _: core_schema.none_schema(),
}
