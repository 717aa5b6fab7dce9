"""What an execution holds leases of: by claim, not by task."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import T0
from tests.unit.make import a_claimed_task
from tidemill.executor.held import Held
from tidemill.model import Malformed, Task


def claimed(task_id: Any, token: str = "token") -> Task:
    return a_claimed_task(_id=task_id, lease={"token": token, "owner": "A", "expires_at": T0})


@pytest.mark.parametrize("task_id", [1, "a", None, {"day": 1}, [1, 2], 1.5])
def test_what_is_claimed_is_held_until_it_is_dropped_whatever_its_id(task_id: Any) -> None:
    task, held = claimed(task_id), Held()
    held.add([task])
    assert (held.tasks, held.ids, len(held), task in held) == ([task], [task.id], 1, True)

    held.drop([task])

    assert (held.tasks, held.ids, len(held), task in held) == ([], [], 0, False)


def test_what_is_not_held_may_be_dropped() -> None:
    held = Held()
    held.drop([claimed(1)])
    assert len(held) == 0


def test_a_claim_that_was_lost_does_not_take_the_next_one_of_the_same_task_with_it() -> None:
    lost, current, held = claimed(1, "lost"), claimed(1, "current"), Held()
    held.add([lost])
    held.add([current])

    held.drop([lost])

    assert held.tasks == [current]
    assert (lost in held, current in held) == (False, True)


def test_a_document_that_is_no_task_is_held_and_not_extended() -> None:
    held, document = Held(), Malformed(id=1, problem="no name", lease=None)
    held.add([document])

    assert (held.ids, held.tasks) == ([1], [])
