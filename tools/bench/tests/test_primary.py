"""What a task costs the primary: the section at toy size."""

from __future__ import annotations

from tidemill.testing import Mongod
from tools.bench.primary import measure


def test_every_step_has_its_cost(mongod: Mongod) -> None:
    found = {figure.name: figure.value for figure in measure(mongod.uri, "toy").figures}

    assert all(value > 0 for name, value in found.items() if not name.startswith("processor, to"))
    # An insert, a claim and a settle: an entry for each, with what it writes, and nothing but that.
    assert 800 < found["oplog, from enqueue to done"] < 2500
