"""The async twins of the client are those of their sync sources."""

from __future__ import annotations

from tools.async_twins import write_twins


def test_the_twins_are_those_of_their_sources() -> None:
    differing = [path.name for path, text in write_twins().items() if path.read_text(encoding="utf-8") != text]

    assert differing == [], "run: make twins"
