"""What a client sends to the server."""

from __future__ import annotations

from pymongo import monitoring


class Commands(monitoring.CommandListener):
    """Keeps the names of the commands, in order, and into which collections the updates went."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.into: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.names.append(event.command_name)
        if event.command_name == "update":
            self.into.append(event.command["update"])

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass
