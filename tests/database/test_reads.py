"""Questions that the driver does not repeat."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from tests.faults import failing
from tidemill.store.connection import Tasks, majority_read, run_server_command


@pytest.mark.parametrize("how", [{"closeConnection": True}, {"errorCode": 10107}, {"errorCode": 91}])
def test_a_question_is_asked_twice_and_no_more(mine: Tasks, how: dict[str, Any]) -> None:
    with failing(mine, "ping", times=1, **how):
        assert run_server_command(mine.database, "ping")["ok"] == 1
    with failing(mine, "ping", times=2, **how), pytest.raises(AutoReconnect):
        run_server_command(mine.database, "ping")


def test_a_read_is_confirmed_though_a_connection_was_lost_before(mine: Tasks) -> None:
    with failing(mine, "ping", closeConnection=True), majority_read(mine) as (lasting, session):
        assert lasting.count_documents({}, session=session) == 0
