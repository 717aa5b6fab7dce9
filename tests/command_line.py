"""What the commands for people who measure and attack share."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType
from typing import Any, Final, NoReturn

from pymongo import MongoClient

from tidemill.testing import Mongod

WIDTH: Final = 140
"""Columns, at least: a narrower terminal folds a line, which loses less than narrower cells."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"tidemill: {message}\n")


def said(sentence: str, *, status: int = 0) -> int:
    """Tell who watches; return *status*."""
    print(f"tidemill: {sentence}", file=sys.stderr, flush=True)  # noqa: T201 - what people watch
    return status


def stop_as_by_ctrl_c() -> None:
    """Let SIGTERM end this process as Ctrl-C does, with all that it has started."""
    signal.signal(signal.SIGTERM, _stopped)


def server_version() -> str:
    """Return the version of the MongoDB that is measured or attacked."""
    with Mongod() as server, MongoClient[dict[str, Any]](server.uri) as client:
        version: str = client.server_info()["version"]
        return version


def _stopped(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
