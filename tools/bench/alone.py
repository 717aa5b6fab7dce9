"""One section of the bench, in a process and with a server of its own."""

from __future__ import annotations

import importlib
from typing import Any

from tests.alone import found_alone
from tools.bench.figures import Scale, as_json


def measured(name: str, scale: Scale) -> dict[str, Any]:
    """Return what the section *name* found, as JSON, or why it failed; see `found_alone`."""
    return found_alone(name, _measured, name, scale)


def _measured(uri: str, name: str, scale: Scale) -> dict[str, Any]:
    return as_json(importlib.import_module(f"{__package__}.{name}").measure(uri, scale))
