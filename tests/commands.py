"""What a client sends to the server."""

from __future__ import annotations

from typing import Any

from pymongo import monitoring


class Commands(monitoring.CommandListener):
    """Keeps the names of the commands, in order, and of the updates where they went and what each was to change."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.into: list[str] = []
        self.changes: list[object] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.names.append(event.command_name)
        if event.command_name == "update":
            self.into.append(event.command["update"])
            self.changes += [one["u"] for one in event.command["updates"]]

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


class CapturedUpdates(monitoring.CommandListener):
    """Keeps the findAndModify commands of a client, so that a test has the server apply them again, later."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name == "findAndModify":
            names = ("findAndModify", "query", "update", "upsert", "new")
            self.updates.append({name: event.command[name] for name in names if name in event.command})

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass
