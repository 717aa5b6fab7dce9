"""Which resource a path belongs to, as API Gateway decides it from what is deployed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A *resource* such as ``/tasks/{task_id}``, and what stands in the place of its parameters."""

    resource: str
    parameters: Mapping[str, str]


class Routes:
    """The paths and methods of an OpenAPI document; one without a parameter goes first."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        paths: Mapping[str, Mapping[str, Any]] = document["paths"]
        self._resources = [
            (_pattern(path), path, frozenset(method.upper() for method in paths[path]))
            for path in sorted(paths, key=lambda path: path.count("{"))
        ]

    def find(self, method: str, path: str) -> Route | None:
        """Return the resource, or ``None`` where there is none, or none with this method."""
        for pattern, resource, methods in self._resources:
            found = pattern.fullmatch(path)
            if found:
                return Route(resource=resource, parameters=found.groupdict()) if method in methods else None
        return None


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile("".join(_part(part) for part in _parts(path)))


def _parts(path: str) -> Iterable[str]:
    return re.split(r"(\{\w+\})", path)


def _part(part: str) -> str:
    return f"(?P<{part[1:-1]}>[^/]+)" if part.startswith("{") else re.escape(part)
