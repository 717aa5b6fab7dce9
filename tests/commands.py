"""What a client sends to the server."""

from __future__ import annotations

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
