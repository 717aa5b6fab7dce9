"""``python -m tools.chaos.failures``: the table. With ``--all``: every cell is tried, which takes half an hour."""

from __future__ import annotations

import random
import sys
import time

from tidemill.testing import Mongod
from tools.chaos.failures.cases import CASES
from tools.chaos.failures.run import Trial, planned
from tools.chaos.failures.table import markdown
from tools.chaos.failures.world import opened


def main(arguments: list[str]) -> int:
    """Print it, or try all; return the exit status."""
    if arguments != ["--all"]:
        print(markdown())
        return 0
    with Mongod() as server, opened(server.uri) as world:
        plans = planned(world, CASES, seed=random.SystemRandom().randrange(2**31))
        found = Trial(world).all(plans, until=time.monotonic() + 24 * 60 * 60)
    print(*found.notes, *found.broken, sep="\n")
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
