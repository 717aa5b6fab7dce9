"""The JSON Schemas of all events, in ``events/schemas``: `make schemas` writes them from the models that read events.

Editors, tests and generators of clients use them. The functions use the models.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Union

from pydantic import BaseModel, Field, TypeAdapter

from tidemill.admin.api import OPERATION_MODELS
from tidemill.http.models import Batch, HttpTask
from tidemill.requests.events import DirectRequest, ExecuteRequest, SweepRequest
from tools.schema_rules import FAILURE, MOMENT, OVER_HTTP, RETRIES, RULES, Schema

FOLDER: Final = Path(__file__).parents[1] / "events" / "schemas"
_OPERATION: Final = TypeAdapter[Any](
    Annotated[Union[tuple(OPERATION_MODELS.values())], Field(discriminator="op")]  # noqa: UP007 - of a table
)
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_OF_OPENAPI: Final = {"discriminator"}


def documents() -> dict[str, Schema]:
    """Return every schema by the name of its file, without the suffix."""
    return {
        "task": _document("A task: the body of POST /tasks", _of_model(HttpTask, OVER_HTTP)),
        "batch": _document("Tasks to be enqueued together: the body of POST /tasks/batch", _of_model(Batch, OVER_HTTP)),
        "direct": _document("A direct invocation of the enqueue function, or what a schedule sends it", _direct()),
        "retries": _document("What the queue of retries sends to the enqueue function", RETRIES),
        "execute": _document("What starts an executor", _of_model(ExecuteRequest, RULES)),
        "sweep": _document("What the schedules of reclaim and archive send", _of_model(SweepRequest, RULES)),
        "failure": _document("What Lambda sends to reclaim when an executor died", FAILURE),
        "operate": _document("One operation of the operate function", _complete(_OPERATION.json_schema(), RULES)),
    }


def text(document: Schema) -> str:
    """Return the text of the file of *document*."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def stale(folder: Path = FOLDER) -> list[str]:
    """Return the sorted names of the files in *folder* that differ from the models."""
    wanted = {f"{name}.json": text(document) for name, document in documents().items()}
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def _document(title: str, schema: Schema) -> Schema:
    return {"$schema": _DIALECT, "title": title} | {name: part for name, part in schema.items() if name != "title"}


def _of_model(model: type[BaseModel], rules: Mapping[str, Schema]) -> Schema:
    shape = model.model_json_schema()
    return _complete(_add_rules(model.__name__, shape, rules), rules)


def _direct() -> Schema:
    """Return the schema of a single task or of many, each with an optional occurrence of a schedule."""
    many = _of_model(DirectRequest, RULES)
    shapes = many.pop("$defs")
    new_task: Schema = shapes["NewTask"]
    occurrence = {"$ref": "#/$defs/Occurrence"}
    many["properties"]["occurrence"] = occurrence
    shapes["OneTask"] = new_task | {
        "properties": new_task["properties"] | {"occurrence": occurrence},
        "description": "A task, as POST /tasks takes it, and its key.",
    }
    shapes["Tasks"] = many
    return {"oneOf": [{"$ref": "#/$defs/OneTask"}, {"$ref": "#/$defs/Tasks"}], "$defs": shapes}


def _complete(schema: Schema, rules: Mapping[str, Schema]) -> Schema:
    shapes = {name: _add_rules(name, shape, rules) for name, shape in schema.get("$defs", {}).items()}
    plain: Schema = _simplify(schema | ({"$defs": shapes} if shapes else {}))
    return plain


def _add_rules(name: str, shape: Schema, rules: Mapping[str, Schema]) -> Schema:
    """Return *shape* with the rules for *name*; a bound goes to the schema of the number."""
    rule = dict(rules.get(name, {}))
    known, added = shape.get("properties", {}), rule.pop("properties", {})
    properties = known | {field: _narrow(known[field], bound) for field, bound in added.items()}
    return shape | ({"properties": properties} if added else {}) | rule


def _narrow(schema: Schema, rule: Schema) -> Schema:
    if "anyOf" in schema and "type" in rule:
        return {name: part for name, part in schema.items() if name not in {"anyOf", "default"}} | rule
    if "anyOf" in schema:
        return schema | {
            "anyOf": [option if option.get("type") == "null" else option | rule for option in schema["anyOf"]]
        }
    if "minimum" in rule:
        schema = {name: part for name, part in schema.items() if name != "exclusiveMinimum"}
    return schema | rule


def _simplify(value: Any) -> Any:  # noqa: ANN401 - any part of a schema
    """Return *value* without the titles of Pydantic, with each text on a single line and a pattern for times."""
    if isinstance(value, list):
        return [_simplify(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {name: part for name, part in value.items() if name not in _OF_OPENAPI}
    if isinstance(kept.get("title"), str):
        del kept["title"]
    if isinstance(kept.get("description"), str):
        kept["description"] = " ".join(kept["description"].replace("``", "`").split())
    if kept.get("format") == "date-time":
        kept["pattern"] = MOMENT
    return {name: _simplify(part) for name, part in kept.items()}


def main(arguments: Sequence[str], *, folder: Path = FOLDER) -> int:
    """Write the files of *folder* that differ, and print their names. With ``--check`` only fail if any differs."""
    changed = stale(folder)
    if "--check" in arguments:
        sys.stderr.writelines(f"events/schemas/{name} is not what the models say: make schemas\n" for name in changed)
        return 1 if changed else 0
    folder.mkdir(exist_ok=True)
    wanted = {f"{name}.json": text(document) for name, document in documents().items()}
    for name in changed:
        if name in wanted:
            (folder / name).write_text(wanted[name], encoding="utf-8")
        else:
            (folder / name).unlink()
        print(f"events/schemas/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
