"""How long to fuzz is a number of seconds, or a sentence."""

from __future__ import annotations

import pytest

from tools.fuzz.running import seconds


@pytest.mark.parametrize(("text", "wanted"), [("", 0), ("0", 0), ("2.5", 2.5)])
def test_a_number_is_taken(text: str, wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZ_SEC", text)

    assert seconds() == wanted


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "inf", "15m"])
def test_anything_else_is_one_sentence(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZ_SEC", text)

    with pytest.raises(pytest.UsageError, match=f"^FUZZ_SEC must be a number of seconds, not '{text}'$"):
        seconds()
