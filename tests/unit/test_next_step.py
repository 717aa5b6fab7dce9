"""The next step of an execution, as a table: it goes on, waits or stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from tests.unit.make import a_claimed_task
from tidemill import UnavailableError
from tidemill.executor.claimer import ClaimResult
from tidemill.executor.idle import (
    MAX_CLAIMS_IN_VAIN,
    ClaimBackoff,
    Continue,
    NextStep,
    Situation,
    Stop,
    Wait,
    decide_next_step,
)
from tidemill.executor.lifetime import TIMING

EMPTY: Final = ClaimResult(answered=True, exhausted=True)
UNSURE: Final = ClaimResult(answered=True)
THOROUGH: Final = replace(UNSURE, thorough=True)
BROUGHT: Final = ClaimResult(tasks=(a_claimed_task(),), answered=True)
FAILED: Final = ClaimResult(error=UnavailableError("away"), failed=True)
TRIED: Final = ClaimResult(answered=True, tried=True, contended=True)

IDLE: Final = Situation(
    claimed=EMPTY,
    backoff=ClaimBackoff(),
    may_claim=True,
    has_returned=False,
    persists=False,
)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, Stop()),
        ({"may_claim": False, "has_returned": True}, Stop()),
        ({"may_claim": False, "claimed": UNSURE}, Stop()),
        ({"has_returned": True}, Continue()),
        ({"has_returned": True, "persists": True}, Continue()),
        ({"claimed": BROUGHT}, Continue()),
        ({"claimed": BROUGHT, "linger_sec": 2.0}, Continue()),
        ({"persists": True}, Wait(seconds=TIMING.linger_poll_sec)),
        ({"persists": True, "claimed": FAILED}, Wait(seconds=TIMING.longest_claim_pause_sec)),
        ({"linger_sec": 2.0}, Wait(seconds=TIMING.linger_poll_sec)),
        ({"linger_sec": 0.1}, Wait(seconds=0.1)),
        ({"linger_sec": 2.0, "claimed": UNSURE}, Wait(seconds=TIMING.linger_poll_sec)),
        ({"linger_sec": 2.0, "claimed": TRIED, "backoff": ClaimBackoff(contended=1)}, Wait(seconds=0.01)),
        ({"linger_sec": 2.0, "claimed": TRIED, "backoff": ClaimBackoff(contended=99)}, Wait(seconds=0.25)),
        ({"linger_sec": 2.0, "claimed": FAILED, "backoff": ClaimBackoff(failed=1)}, Continue(thorough=True)),
        ({"linger_sec": 2.0, "claimed": UNSURE, "backoff": ClaimBackoff(failed=1)}, Continue(thorough=True)),
        ({"claimed": UNSURE}, Continue(thorough=True)),
        ({"claimed": THOROUGH}, Stop()),
        ({"claimed": THOROUGH, "backoff": ClaimBackoff(contended=2)}, Wait(seconds=0.02)),
        ({"claimed": THOROUGH, "backoff": ClaimBackoff(failed=MAX_CLAIMS_IN_VAIN)}, Wait(seconds=0.25)),
        ({"claimed": THOROUGH, "backoff": ClaimBackoff(failed=MAX_CLAIMS_IN_VAIN + 1)}, Stop()),
    ],
)
def test_the_next_step_of_an_idle_execution_follows_from_the_facts(facts: dict[str, Any], expected: NextStep) -> None:
    assert decide_next_step(replace(IDLE, **facts), TIMING) == expected


@pytest.mark.parametrize(
    ("before", "result", "after"),
    [
        (ClaimBackoff(), EMPTY, ClaimBackoff()),
        (ClaimBackoff(), FAILED, ClaimBackoff(failed=1)),
        (ClaimBackoff(failed=2), FAILED, ClaimBackoff(failed=3)),
        (ClaimBackoff(failed=2), EMPTY, ClaimBackoff()),
        (ClaimBackoff(failed=2), BROUGHT, ClaimBackoff()),
        (ClaimBackoff(failed=2), replace(BROUGHT, failed=True), ClaimBackoff()),
        (ClaimBackoff(failed=2), TRIED, ClaimBackoff(contended=1)),
        (ClaimBackoff(failed=2), UNSURE, ClaimBackoff(failed=3)),
        (ClaimBackoff(), UNSURE, ClaimBackoff()),
        (ClaimBackoff(contended=3), TRIED, ClaimBackoff(contended=4)),
        (ClaimBackoff(contended=3), UNSURE, ClaimBackoff()),
    ],
)
def test_claims_in_vain_are_counted_in_a_row(before: ClaimBackoff, result: ClaimResult, after: ClaimBackoff) -> None:
    assert before.after(result) == after


def test_claims_in_vain_are_counted_for_either_reason() -> None:
    assert (ClaimBackoff().in_vain, ClaimBackoff(failed=1, contended=3).in_vain) == (0, 3)
