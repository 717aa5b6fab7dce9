"""What the table calls a command: its name and collection, and what it is for where one does several things."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pymongo.monitoring import CommandStartedEvent

from tidemill.documents import CONTROL, TASKS


def named(event: CommandStartedEvent) -> str:
    """Return the name of a command."""
    collection, purpose = collection_of(event), _purpose(event)
    return " ".join(filter(None, (event.command_name, collection, purpose and f"({purpose})")))


def collection_of(event: CommandStartedEvent) -> str | None:
    """Return the collection that a command is about, if it is about one."""
    value = event.command.get("collection", event.command[event.command_name])
    return value if isinstance(value, str) else None


def _purpose(event: CommandStartedEvent) -> str | None:
    if event.command.get("findAndModify") == CONTROL:
        return str(event.command["query"]["_id"]).split(":")[0]
    if event.command.get("update") != TASKS:
        return None
    changed = {name: value for values in _values(event) for name, value in values.items()}
    if changed.get("status") == "processing":
        return "stamp"
    return "settle" if "settled_by" in changed else None


def _values(event: CommandStartedEvent) -> Iterator[Mapping[str, Any]]:
    for one in event.command["updates"]:
        stages = one["u"] if isinstance(one["u"], list) else [one["u"]]
        yield from (stage["$set"] for stage in stages if "$set" in stage)
