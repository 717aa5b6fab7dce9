"""Half an hour of mixed work, compressed: nothing is lost, and nothing grows."""

from __future__ import annotations

from tools.chaos.found import Found
from tools.chaos.load.plan import plan_for
from tools.chaos.load.running import run


def survive(uri: str, *, seconds: float, seed: int) -> Found:
    """Keep executors busy with tasks of every kind, and look whether anything grows, or any task is lost.

    In *seconds*, most of which are spent under load; *seed* mixes the tasks. Containers and server are looked at all
    the while; memory is judged only where there is a minute for it.
    """
    return run(uri, plan_for(seconds), seed=seed)
