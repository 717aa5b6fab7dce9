"""One section of the chaos, in a process and with a server of its own."""

from __future__ import annotations

import importlib
from typing import Any, Final

from tests.alone import found_alone

LATE: Final = 1.25
"""A section that takes so much longer than it was given,"""

GRACE_SEC: Final = 300.0
"""and this, has got stuck. It is longer than what sections bound themselves, which say what they waited for."""


def survived(name: str, *, seconds: float, seed: int) -> dict[str, Any]:
    """Return what the section *name* found, as JSON, or why it could not do its work; see `found_alone`."""
    return found_alone(name, _survived, name, seconds, seed, within_sec=seconds * LATE + GRACE_SEC)


def _survived(uri: str, name: str, seconds: float, seed: int) -> dict[str, Any]:
    section = importlib.import_module(f"{__package__}.{name}")
    found: dict[str, Any] = section.survive(uri, seconds=seconds, seed=seed).as_json()
    return found
