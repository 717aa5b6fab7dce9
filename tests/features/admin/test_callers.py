"""Rights of API keys: granted, revoked and listed by an operator, and stored in one document."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from tests.fixtures import ManualClock
from tidemill.admin.api import operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.control.callers import CALLERS_CACHE_SEC, CallerRights
from tidemill.errors import InvalidRequestError
from tidemill.policy.retry import DEFAULT
from tidemill.store.mark import require_mark


@pytest.fixture
def context(db: Database[Any], clock: ManualClock) -> AdminContext:
    return AdminContext(db=db, clock=clock, retry=DEFAULT)


def do(context: AdminContext, op: str, **fields: Any) -> dict[str, Any]:
    """The answer to an operation."""
    return operate(read_operation({"op": op, **fields}), context).document()


def test_no_key_has_a_right_until_one_is_granted(context: AdminContext) -> None:
    # S06
    assert do(context, "caller.list")["callers"] == []
    assert not CallerRights(context.db).has_right("k9", "queues.read")

    granted = do(context, "caller.grant", key_id="k9", right="queues.read")

    assert granted["caller"] == {"key_id": "k9", "rights": ["queues.read"]}
    assert do(context, "caller.list")["callers"] == [granted["caller"]]
    rights = CallerRights(context.db)
    assert (rights.has_right("k9", "queues.read"), rights.has_right("k8", "queues.read")) == (True, False)
    assert context.db["control"].find_one({"_id": "callers"}) == {"_id": "callers", "k9": ["queues.read"]}


def test_a_repeat_changes_nothing_and_a_revoked_key_leaves_no_trace(context: AdminContext) -> None:
    for _ in range(2):
        do(context, "caller.grant", key_id="k9", right="queues.read")
    do(context, "caller.grant", key_id="k8", right="queues.read")
    assert len(do(context, "caller.list")["callers"]) == 2

    revoked = [do(context, "caller.revoke", key_id="k9", right="queues.read")["caller"] for _ in range(2)]

    assert revoked == [{"key_id": "k9", "rights": []}] * 2
    assert context.db["control"].find_one({"_id": "callers"}) == {"_id": "callers", "k8": ["queues.read"]}


def test_a_change_is_seen_a_minute_later_at_the_latest(context: AdminContext) -> None:
    at = [100.0]
    rights = CallerRights(context.db, monotonic=lambda: at[0])
    assert not rights.has_right("k9", "queues.read")
    do(context, "caller.grant", key_id="k9", right="queues.read")

    at[0] += CALLERS_CACHE_SEC
    assert not rights.has_right("k9", "queues.read")
    at[0] += 0.1
    assert rights.has_right("k9", "queues.read")


@pytest.mark.parametrize("stored", ["queues.read", {"queues.read": True}, [["queues.read"]], [7, None], None, []])
def test_rights_that_were_edited_by_hand_grant_nothing_and_can_be_granted(context: AdminContext, stored: Any) -> None:
    context.db["control"].insert_one({"_id": "callers", "k9": stored})

    assert not CallerRights(context.db).has_right("k9", "queues.read")
    assert do(context, "caller.list")["callers"] == []
    assert do(context, "caller.grant", key_id="k9", right="queues.read")["caller"]["rights"] == ["queues.read"]


@pytest.mark.parametrize("key_id", ["", "_id", "$set", "a.b", "x" * 20, "é", "k 9", "k9\n", "\x00"])
def test_what_is_no_id_of_a_key_is_refused_and_not_repeated(context: AdminContext, key_id: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        do(context, "caller.grant", key_id=key_id, right="queues.read")

    [problem] = refused.value.problems
    assert (problem.field, "not the value of the key" in problem.message) == ("key_id", True)
    assert list(context.db["control"].find({"_id": "callers"})) == []


def test_an_unknown_right_is_refused_with_those_there_are(context: AdminContext) -> None:
    with pytest.raises(InvalidRequestError, match=r"right: .*queues\.read"):
        do(context, "caller.grant", key_id="k9", right="queues.write")


def test_a_database_with_rights_but_without_a_mark_is_known_as_ours(context: AdminContext) -> None:
    do(context, "caller.grant", key_id="k9", right="queues.read")
    context.db["control"].delete_many({"_id": "tidemill"})

    require_mark(context.db)

    assert context.db["control"].count_documents({"_id": "tidemill"}) == 1
