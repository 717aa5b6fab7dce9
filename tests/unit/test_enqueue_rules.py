"""Rules of each way in: problems are named as the caller wrote the fields, and all faults are listed at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tidemill.control.task_types import Declarations
from tidemill.enqueue.rules import (
    EnqueueRules,
    Invocation,
    find_problems,
    find_time_problems,
    make_direct_rules,
    make_http_rules,
    make_submission,
)
from tidemill.requests.tasks import NewTask
from tidemill.requests.validation import MAX_PROBLEMS

NOW = datetime(2026, 7, 1, tzinfo=UTC)
KNOWN = Declarations(read_at=0.0, types={"noop": {"http": True}}, queues=frozenset({"default"}))
NONE = Declarations(read_at=0.0, types={}, queues=frozenset({"default"}))
UNKNOWN = NewTask(name="missing", payload={}, timeout_sec=60, expires_at=NOW)
LONGEST = timedelta(seconds=50)
INVOCATION = Invocation(request_id="r-1", may_be_repeat=False)
HTTP, HTTP_BATCH = (make_http_rules("me", is_single=is_single, max_timeout=LONGEST) for is_single in (True, False))
DIRECT, DIRECT_BATCH = (
    make_direct_rules(INVOCATION, is_single=is_single, max_timeout=LONGEST) for is_single in (True, False)
)


@pytest.mark.parametrize(
    ("rules", "prefix", "refused"),
    [
        (EnqueueRules(is_single=True), "", ["name"]),
        (EnqueueRules(), "0.", ["name"]),
        (HTTP, "", ["name", "timeout_sec"]),
        (HTTP_BATCH, "tasks.0.", ["name", "timeout_sec"]),
        (DIRECT, "", ["name", "timeout_sec"]),
        (DIRECT_BATCH, "tasks.0.", ["name", "timeout_sec"]),
    ],
)
def test_problems_have_the_path_that_the_caller_wrote(rules: EnqueueRules, prefix: str, refused: list[str]) -> None:
    submission = make_submission([UNKNOWN], rules=rules)

    assert [problem.field for problem in find_problems(submission, known=KNOWN, now=NOW)] == [
        prefix + name for name in refused
    ]
    assert [problem.field for problem in find_time_problems(submission, now=NOW)] == [f"{prefix}expires_at"]


def test_a_part_of_a_submission_keeps_the_indices_ids_and_keys_of_the_whole() -> None:
    requests = [NewTask(name="noop", payload={}), NewTask(name="missing", payload={}, idempotency_key="k")]
    whole = make_submission(requests, rules=DIRECT_BATCH, payloads=[b"0", b"1"])

    part = whole.take(1)

    assert [problem.field for problem in find_problems(part, known=KNOWN, now=NOW)] == ["tasks.1.name"]
    assert (part.ids, part.payloads) == (INVOCATION.derive_ids(2)[1:], [b"1"])
    assert [request.idempotency_key for request in part.requests] == ["direct:k"]


@pytest.mark.parametrize(("rules", "refused"), [(EnqueueRules(), 0), (DIRECT_BATCH, 0), (HTTP_BATCH, 1)])
def test_only_http_refuses_names_before_one_is_registered(rules: EnqueueRules, refused: int) -> None:
    submission = make_submission([NewTask(name="noop", payload={})], rules=rules)

    assert len(find_problems(submission, known=NONE, now=NOW)) == refused


@pytest.mark.parametrize(("rules", "last"), [(EnqueueRules(), "task"), (HTTP_BATCH, "tasks.task")])
def test_the_last_of_many_problems_says_that_there_are_more(rules: EnqueueRules, last: str) -> None:
    problems = find_problems(make_submission([UNKNOWN] * 1000, rules=rules), known=KNOWN, now=NOW)

    assert (len(problems), problems[-1].field) == (MAX_PROBLEMS + 1, last)
