"""Ctrl-C while the driver is making something: no word of what was half made."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.conftest import CommandLine
from tidemill.cli import commands


class HalfMade:
    """As the driver's transaction is where a signal comes while it is made."""

    def __del__(self) -> None:
        raise AttributeError("conn_mgr")


def test_what_was_half_made_says_nothing(tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        made = HalfMade()
        raise KeyboardInterrupt(made is None)

    monkeypatch.setattr(commands, "run_command", interrupted)

    said = tidemill("ops", "queue", "ls")

    assert (said.status, said.out, said.err) == (130, "", "")
