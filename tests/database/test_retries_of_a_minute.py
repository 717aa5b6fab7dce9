"""The retries that a queue has scheduled in a minute, from the counters of all its names."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.fixtures import T0
from tidemill.documents import QUEUE_STATS
from tidemill.store.stats import count_retried_in_minute

MINUTE = timedelta(minutes=1)


def counters(queue: str, minute: datetime, name: str, retried: object) -> dict[str, Any]:
    return {"_id": {"queue": queue, "minute": minute, "name": name}, "minute": minute, "retried": retried}


@pytest.mark.parametrize("odd", ["many", None, [7], {}])
def test_only_the_counters_of_this_queue_and_minute_are_added(db: Database[Any], odd: object) -> None:
    db[QUEUE_STATS].insert_many(
        [
            counters("default", T0, "", 1),
            counters("default", T0, "charge", 2),
            counters("default", T0, "~", 4),
            counters("default", T0, "odd", odd),
            counters("default", T0 - MINUTE, "charge", 100),
            counters("default", T0 + MINUTE, "charge", 200),
            counters("defaul", T0, "charge", 400),
            counters("eu", T0, "charge", 800),
        ]
    )

    assert count_retried_in_minute(db, "default", now=T0 + timedelta(seconds=59)) == 7
    assert count_retried_in_minute(db, "us", now=T0) == 0
