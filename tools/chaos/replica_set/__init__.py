"""Three MongoDB servers that lose their primary again and again, and executors that are killed each second."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.chaos.found import Found


def survive(uri: str, *, seconds: float, seed: int) -> Found:  # noqa: ARG001 - it needs three servers of its own
    """Attack for *seconds*, and return what was found."""
    from tools.chaos.replica_set.attack import attack  # noqa: PLC0415 - who runs a task alone imports this package, too

    return attack(seconds=seconds, seed=seed)
