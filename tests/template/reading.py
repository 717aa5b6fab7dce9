"""What a program looks for in its environment, and what stands in a template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Asked(dict[str, str]):
    """An empty environment that remembers what was looked for, in *names*."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return default


def texts(value: object) -> Iterator[str]:
    """Yield every string in *value*, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(key)
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
