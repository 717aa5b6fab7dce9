"""Somebody with an API key against the others, a network against webhooks, and everything that is said searched."""

from __future__ import annotations

import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient

from tools.chaos.found import Found
from tools.chaos.security import full_run, guard, outsider
from tools.chaos.security.canaries import canaries, leaks

LONG_SEC: Final = 20.0
"""With so much time, servers that are away are waited for."""

RESERVED_SEC: Final = 2.0
"""What is left for the end: accepted tasks are run, and all is searched."""


def survive(uri: str, *, seconds: float, seed: int) -> Found:
    """Attack for *seconds*, with what *seed* makes of it."""
    until = time.monotonic() + seconds - RESERVED_SEC
    rng = random.Random(seed)
    made = canaries(rng)
    with (
        MongoClient[dict[str, Any]](uri, tz_aware=True) as client,
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(1) as beside,
    ):
        running = beside.submit(full_run.run, client, made, Path(folder), is_long=seconds >= LONG_SEC)
        found = guard.attack(rng, rounds=max(1, int(seconds * 2)))
        found.add(outsider.attack(client, Path(folder), rng=rng, until=until))
        heard = running.result()
    found.add(_told(heard, leaks(made, heard.texts)))
    return found


def _told(heard: full_run.Heard, leaked: list[str]) -> Found:
    size = sum(map(len, heard.texts.values())) // 1024
    found = Found(
        broken=leaked, notes=[f"{heard.calls} calls with secrets in them; {size} KiB of what was said searched"]
    )
    found.faults["calls with secrets"] = heard.calls
    return found
