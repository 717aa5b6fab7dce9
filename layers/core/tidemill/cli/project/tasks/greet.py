"""An example: replace it by tasks of your own."""

from __future__ import annotations

import os
from typing import Any

from tidemill import task


@task("greet", http=True, timeout=20)
def greet(payload: dict[str, Any]) -> dict[str, str]:
    """Greet a person. The word comes from the variable GREETING, which template.yaml sets for the execute function."""
    word = os.environ.get("GREETING", "Hello")
    return {"greeting": f"{word} {payload.get('name', 'world')}"}
