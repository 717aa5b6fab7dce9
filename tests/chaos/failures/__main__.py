"""``python -m tests.chaos.failures``: the table. With ``--all``: every cell is tried, which takes half an hour."""

from __future__ import annotations

import random
import sys
import time

from tests.chaos.failures.cases import CASES
from tests.chaos.failures.run import Trial, planned
from tests.chaos.failures.table import markdown
from tests.chaos.failures.world import opened
from tidemill.testing import Mongod


def main(arguments: list[str]) -> int:
    """Print it, or try all; return the exit status."""
    if arguments != ["--all"]:
        print(markdown())  # noqa: T201 - it is asked for
        return 0
    with Mongod() as server, opened(server.uri) as world:
        plans = planned(world, CASES, seed=random.SystemRandom().randrange(2**31))
        found = Trial(world).all(plans, until=time.monotonic() + 24 * 60 * 60)
    print(*found.notes, *found.broken, sep="\n")  # noqa: T201 - as above
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
