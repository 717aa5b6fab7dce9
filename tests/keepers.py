"""What reclaim is given, as tests want it, and lost tasks for it to find."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.builders import MINUTE, document
from tidemill.clock import Clock
from tidemill.control.queues import OptionsReader
from tidemill.model import RetryPolicy, Task
from tidemill.policy.retry import DEFAULT, resolve_policy
from tidemill.reclaim import ReclaimContext, reclaim
from tidemill.store.connection import Tasks

LONG_SEC = 60.0


def a_keeper(
    tasks: Tasks,
    clock: Clock,
    *,
    policy: Callable[[Task], RetryPolicy] | None = None,
    adopt_as: str | None = "noop",
    monotonic: Callable[[], float] = time.monotonic,
) -> ReclaimContext:
    """A keeper in whose deployment the default policy holds."""
    return ReclaimContext(
        tasks=tasks,
        clock=clock,
        policy=policy or (lambda task: resolve_policy(task, registered=None, deployment=DEFAULT)),
        options=OptionsReader(tasks.database).options,
        adopt_as=adopt_as,
        rng=random.Random(7),
        monotonic=monotonic,
    )


def reclaimed(tasks: Tasks, clock: Clock, *, dead_owner: str | None = None, **options: Any) -> dict[str, int]:
    """Reclaim once, with all the time it needs; return its report."""
    reclaim_context = a_keeper(tasks, clock, **options)
    return reclaim(reclaim_context, until=reclaim_context.monotonic() + LONG_SEC, dead_owner=dead_owner)


def lost(now: datetime, **fields: Any) -> dict[str, Any]:
    """A task under a lease of ``dead`` that ended a minute before *now*."""
    lease = {"token": "t", "owner": "dead", "expires_at": now - MINUTE}
    return document(now, status="processing", attempts=1, lease=lease) | fields
