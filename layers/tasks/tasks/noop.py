"""Task that does nothing."""

from __future__ import annotations

from typing import Any

from tidemill import TaskContext, task


@task("noop", http=True)
def noop(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Do nothing. A done task of this name proves that the queue works."""
