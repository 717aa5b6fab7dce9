"""How a load is made to fit into the seconds it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidemill.control.queues import OPTIONS_CACHE_SEC
from tools.chaos.load.work import PAUSED, QUEUES, SLOW

TICKS: Final = 1800
"""What an executor's schedule of every second would bring in half an hour."""

PAUSED_SHARE: Final = 0.45
"""Of the time: executors hear of a change only after some seconds."""

_OTHERS: Final = ("default", PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes and seconds of one load.

    Attributes:
        executors: The queues of each container that executes and lives on.
        others: The functions of each other container.
        mortal: How often a further executor is killed.
        calibrating: So long everything runs as fast as it can.
        loaded: Then so long at a share of that.
        calming: And so long at most until all is done.
        pauses: How often a queue is paused meanwhile.
        is_judged: Memory is judged, too: it takes hundreds of invocations to settle.
    """

    executors: Mapping[str, tuple[str, ...]]
    others: Mapping[str, tuple[str, ...]]
    mortal: int
    calibrating: float
    loaded: float
    calming: float
    pauses: int
    is_judged: bool

    @property
    def cycle_sec(self) -> float:
        """Every how many seconds a queue is paused: once in each third of a load that is judged."""
        return self.loaded / self.pauses

    @property
    def pause_sec(self) -> float:
        """How long it is paused then."""
        return self.cycle_sec * PAUSED_SHARE

    @property
    def unserved_sec(self) -> float:
        """How long executors do not serve it then: they hear of its end only after `OPTIONS_CACHE_SEC`."""
        return self.pause_sec + OPTIONS_CACHE_SEC

    @property
    def tick_sec(self) -> float:
        """Every how many seconds an executor is invoked, so that all of them are, together, `TICKS` times."""
        return self.loaded * (len(self.executors) + bool(self.mortal)) / TICKS if self.is_judged else 0.05


def plan_for(seconds: float) -> Plan:
    """Return what fits: all of it from a minute on, a toy below five seconds."""
    if seconds >= 60:
        return Plan(
            executors={"first": _OTHERS, "second": _OTHERS, "slow": (SLOW,)},
            others={"front": ("enqueue",), "reclaim": ("reclaim",), "archive": ("archive", "operate")},
            mortal=round(seconds / 25),
            calibrating=0.06 * seconds,
            loaded=0.75 * seconds,
            calming=0.18 * seconds,
            pauses=3,
            is_judged=True,
        )
    is_toy = seconds < 5
    everything = ("execute", "enqueue", "reclaim", "archive", "operate")
    return Plan(
        executors={"all" if is_toy else "first": QUEUES},
        others={"all": everything} if is_toy else {"others": everything[1:]},
        mortal=0 if is_toy else 1,
        calibrating=0.1 * seconds,
        loaded=0.3 * seconds,
        calming=30,
        pauses=1,
        is_judged=False,
    )
