"""The JSON Schemas of all events, in ``events/schemas``: `make schemas` writes them from the models that read events.

They are for whoever sends events: an editor, a test, a generator of clients. The functions go by the models.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from demo import ROOT
from demo.schema_rules import FAILURE, MOMENT, OVER_HTTP, RULES, Schema
from tidemill.gateway import Batch, HttpTask
from tidemill.operations.operate import UNION
from tidemill.requests import DirectRequest, ExecuteRequest, SweepRequest

FOLDER: Final = ROOT / "events" / "schemas"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_OF_OPENAPI: Final = {"discriminator"}


def documents() -> dict[str, Schema]:
    """Return every schema by the name of its file, without the suffix."""
    return {
        "task": _document("A task: the body of POST /tasks", _of_model(HttpTask, OVER_HTTP)),
        "batch": _document("Tasks to be enqueued together: the body of POST /tasks/batch", _of_model(Batch, OVER_HTTP)),
        "direct": _document("A direct invocation of the enqueue function, or what a schedule sends it", _direct()),
        "execute": _document("What starts an executor", _of_model(ExecuteRequest, RULES)),
        "sweep": _document("What the schedules of reclaim and archive send", _of_model(SweepRequest, RULES)),
        "failure": _document("What Lambda sends to reclaim when an executor died", FAILURE),
        "operate": _document("One operation of the operate function", _completed(UNION.json_schema(), RULES)),
    }


def text(document: Schema) -> str:
    """Return *document* as its file has it."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def stale(folder: Path = FOLDER) -> list[str]:
    """Return the names of files below *folder* that are not what the models say, sorted."""
    wanted = {f"{name}.json": text(one) for name, one in documents().items()}
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def _document(title: str, schema: Schema) -> Schema:
    return {"$schema": _DIALECT, "title": title} | {name: part for name, part in schema.items() if name != "title"}


def _of_model(model: type[BaseModel], rules: Mapping[str, Schema]) -> Schema:
    shape = model.model_json_schema()
    return _completed(_ruled(model.__name__, shape, rules), rules)


def _direct() -> Schema:
    """Return the schema of one task or of many, either perhaps of a schedule, which is a key for them."""
    many = _of_model(DirectRequest, RULES)
    shapes = many.pop("$defs")
    one: Schema = shapes["NewTask"]
    occurrence = {"$ref": "#/$defs/Occurrence"}
    keyless = {"properties": {"idempotency_key": {"type": "null"}}}
    of_schedule = {"if": {"required": ["occurrence"]}}
    many["properties"]["occurrence"] = occurrence
    shapes["OneTask"] = (
        one
        | {"properties": one["properties"] | {"occurrence": occurrence}}
        | of_schedule
        | {"then": keyless, "description": "A task, as POST /tasks takes it, and its key."}
    )
    shapes["Tasks"] = many | of_schedule | {"then": {"properties": {"tasks": {"items": keyless}}}}
    return {"oneOf": [{"$ref": "#/$defs/OneTask"}, {"$ref": "#/$defs/Tasks"}], "$defs": shapes}


def _completed(schema: Schema, rules: Mapping[str, Schema]) -> Schema:
    shapes = {name: _ruled(name, one, rules) for name, one in schema.get("$defs", {}).items()}
    plain: Schema = _plain(schema | ({"$defs": shapes} if shapes else {}))
    return plain


def _ruled(name: str, shape: Schema, rules: Mapping[str, Schema]) -> Schema:
    """Return *shape* with what the rules for *name* add to it; a bound goes where the number is."""
    rule = dict(rules.get(name, {}))
    known, added = shape.get("properties", {}), rule.pop("properties", {})
    properties = known | {one: _narrowed(known[one], bound) for one, bound in added.items()}
    return shape | ({"properties": properties} if added else {}) | rule


def _narrowed(schema: Schema, rule: Schema) -> Schema:
    if "anyOf" in schema and "type" in rule:
        return {name: part for name, part in schema.items() if name not in {"anyOf", "default"}} | rule
    if "anyOf" in schema:
        return schema | {"anyOf": [one if one.get("type") == "null" else one | rule for one in schema["anyOf"]]}
    if "minimum" in rule:
        schema = {name: part for name, part in schema.items() if name != "exclusiveMinimum"}
    return schema | rule


def _plain(value: Any) -> Any:  # noqa: ANN401 - any part of a schema
    """Return *value* without the titles that Pydantic makes up, its texts on one line, its times with a pattern."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {name: part for name, part in value.items() if name not in _OF_OPENAPI}
    if isinstance(kept.get("title"), str):
        del kept["title"]
    if isinstance(kept.get("description"), str):
        kept["description"] = " ".join(kept["description"].replace("``", "`").split())
    if kept.get("format") == "date-time":
        kept["pattern"] = MOMENT
    return {name: _plain(part) for name, part in kept.items()}


def main(arguments: Sequence[str]) -> int:
    """Write the files and say which were not up to date; with ``--check`` only say it, and fail for any."""
    changed = stale()
    if "--check" in arguments:
        sys.stderr.writelines(f"events/schemas/{name} is not what the models say: make schemas\n" for name in changed)
        return 1 if changed else 0
    FOLDER.mkdir(exist_ok=True)
    wanted = {f"{name}.json": text(one) for name, one in documents().items()}
    for name in changed:
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
        print(f"events/schemas/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
