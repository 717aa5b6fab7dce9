"""A task function that takes a while."""

from __future__ import annotations

import time
from typing import Any

from tidemill import task


@task("takes_a_while", http=True, timeout=1)
def takes_a_while(payload: dict[str, Any]) -> None:
    """Take half a second, or what *payload* says."""
    time.sleep(payload.get("sec", 0.5))
