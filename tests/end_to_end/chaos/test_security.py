"""What searches for secrets finds them in every form, and what tries the guard of webhooks sees it fail."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tasks import _egress
from tools.chaos.security import guard
from tools.chaos.security.canaries import ALLOWED, EXPECTED, PLACES, Canary, Place, canaries, leaks


def in_base64(before: int) -> Callable[[str], str]:
    return lambda text: base64.b64encode(f"{'x' * before}{text}".encode()).decode()


FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in a URL": lambda text: quote(text, safe=""),
    "in JSON": json.dumps,
    "in upper case": str.upper,
    "backwards": lambda text: text[::-1],
    "in hexadecimal": lambda text: text.encode().hex(),
    **{f"in base64 behind {before}": in_base64(before) for before in range(3)},
    "in base64 for URLs": lambda text: base64.urlsafe_b64encode(f"user:{text}".encode()).decode(),
}


@pytest.fixture
def made() -> dict[str, Canary]:
    return canaries(random.Random(9))


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_in_any_form_and_is_no_other(made: dict[str, Canary], form: str) -> None:
    said = f"before {FORMS[form](made['password'].text)} after"

    assert [name for name, one in made.items() if one.is_in(said)] == ["password"]


def test_what_is_where_it_may_not_be_is_told_and_so_is_what_was_never_said(made: dict[str, Canary]) -> None:
    heard: dict[Place, str] = dict.fromkeys(PLACES, "")
    for name, place in EXPECTED.items():
        heard[place] += made[name].text
    assert leaks(made, heard) == []

    heard["log"] = f"{made['api_key'].text} {made['result'].text}"
    heard["answer"] = ""

    assert leaks(made, heard)[:2] == ["the api_key is in the log", "the result is in the log"]
    assert set(leaks(made, heard)[2:]) == {
        f"the {name} is not in the answer, so nothing was searched there"
        for name, place in EXPECTED.items()
        if place == "answer"
    }


def test_nothing_may_be_in_the_log_and_what_opens_something_is_nowhere() -> None:
    assert not any({"log", "called"} & places for places in ALLOWED.values())
    assert all(
        not ALLOWED[name]
        for name in ALLOWED
        if "password" in name or (name.endswith(("_key", "secret")) and name != "idempotency_key")
    )


def test_no_address_in_any_spelling_gets_a_webhook_to_where_it_may_not_go() -> None:
    found = guard.attack(random.Random(9), rounds=10)

    assert found.broken == []
    assert found.faults[guard.KIND] > 400


@pytest.mark.parametrize("open_to", ["127.0.0.0/8", "10.0.0.0/8", "169.254.0.0/16"])
def test_a_guard_with_a_gap_does_not_survive(monkeypatch: pytest.MonkeyPatch, open_to: str) -> None:
    kept = tuple(one for one in _egress._SPECIAL if str(one) != open_to)
    monkeypatch.setattr(_egress, "_SPECIAL", kept)

    assert guard.attack(random.Random(9), rounds=15).broken
