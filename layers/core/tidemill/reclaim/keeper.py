"""What a run of reclaim is given."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidemill.clock import Clock
from tidemill.model import Task
from tidemill.policies import QueueOptions, RetryPolicy
from tidemill.settlement import Settlement
from tidemill.store import Tasks

BATCH: Final = 500
"""So many documents are looked at between two looks at the clock."""


def _ignore(_: Settlement) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """What reclaiming needs.

    ``policy`` resolves a task's retries without importing its function, ``options`` tells what a queue chooses.
    ``observe`` is told of each attempt that was taken back; it must not raise.
    """

    tasks: Tasks
    clock: Clock
    policy: Callable[[Task], RetryPolicy]
    options: Callable[[str], QueueOptions]
    adopt_as: str | None = None
    observe: Callable[[Settlement], None] = _ignore
    rng: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = time.monotonic
