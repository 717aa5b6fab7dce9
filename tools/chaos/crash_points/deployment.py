"""The functions as they are deployed, each in a container that has just been started."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any, Final, NoReturn
from unittest.mock import patch

import pytest
from pymongo.database import Database

from tests.crash_points import Crash
from tests.handlers.conftest import VARIABLES, Deployed
from tidemill.testing import FakeContext
from tools.chaos.crash_points.cloud import BUCKET, EXECUTOR

PACKAGE: Final = "tools.chaos.crash_points.task_package"


class Deployment:
    """Their handlers on one database; the first call starts them, and so does the first after `end`."""

    def __init__(self, db: Database[Any]) -> None:
        self._db = db
        self._started = ExitStack()
        self._deployed: Deployed | None = None

    def invoke(self, function: str, event: object, *, request_id: str) -> Any:
        """Call the handler of *function*; one that ends its process crashes."""
        if self._deployed is None:
            self._deployed = self._start()
        with patch.object(os, "_exit", _exit):
            return self._deployed.invoke(function, event, FakeContext(request_id=request_id))

    def end(self) -> None:
        """End all containers, whatever is left of them."""
        if self._deployed is not None:
            self._deployed.cool_down()
            self._deployed = None
            self._started.close()

    def _start(self) -> Deployed:
        environment = self._started.enter_context(pytest.MonkeyPatch.context())
        for name in VARIABLES:
            environment.delenv(name, raising=False)
        deployed = Deployed(environment)
        host, port = self._db.client.address or ("", 0)
        deployed.set(
            MONGODB_URI=f"mongodb://{host}:{port}/?directConnection=true",
            MONGODB_DATABASE=self._db.name,
            TASK_PACKAGE=PACKAGE,
            DEFAULT_TASK="ends",
            LINGER_SEC="0",
            ARCHIVE_BUCKET=BUCKET,
            AWS_LAMBDA_FUNCTION_NAME="this",
            EXECUTE_FUNCTION=EXECUTOR,
        )
        return deployed


def _exit(_: int) -> NoReturn:
    raise Crash
