from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient

from tidemill.testing import Mongod
from tools.bench import archive


def test_it_compares_moving_and_exporting_with_the_bare_driver(mongod: Mongod) -> None:
    found = archive.measure(mongod.uri, "toy")

    assert [one.name for one in found.figures] == ["move 20 failed tasks", "export 20 dead letters, but for S3"]
    assert all(one.value > 0 and one.unit == "of the floor" for one in found.figures)


def test_a_step_that_leaves_some_is_no_measurement(client: MongoClient[dict[str, Any]]) -> None:
    with pytest.raises(RuntimeError, match="19 of 20 were taken"):
        archive._timed(client, 20, (lambda _db: 19,))
