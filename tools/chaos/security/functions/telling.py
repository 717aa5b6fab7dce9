"""What a payload names is returned, raised, or is the last thing that a process was about to say."""

from __future__ import annotations

import os
import signal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from tasks import deliver_webhook, noop
from tidemill import Fail, Retry, task

__all__ = ["deliver_webhook", "noop"]


class Little(BaseModel):
    """What fits has this and nothing else."""

    model_config = ConfigDict(strict=True, extra="forbid")

    number: int = 0


class Odd:
    """What cannot be stored, and says so in its own words."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


@task("tell.result", http=True)
def result(payload: dict[str, Any]) -> dict[str, Any]:
    """Return what it is to say."""
    return {"said": payload["say"]}


@task("tell.odd", http=True)
def odd(payload: dict[str, Any]) -> Odd:
    """Return what cannot be stored."""
    return Odd(str(payload))


@task("tell.failure", http=True)
def failure(payload: dict[str, Any]) -> None:
    """Fail with what it is to say."""
    raise Fail(str(payload["say"]))


@task("tell.retry", http=True, retry="one_shot")
def retry(payload: dict[str, Any]) -> None:
    """Fail for now with what it is to say."""
    raise Retry(str(payload["say"]))


@task("tell.error", http=True, retry="one_shot")
def error(payload: dict[str, Any]) -> None:
    """Break, with what it is to say in the exception and in its cause."""
    raise ValueError(payload["say"]) from KeyError(payload["say"])


@task("tell.exit", http=True, retry="one_shot", isolate=True)
def leave(payload: dict[str, Any]) -> None:
    """End its process with a text."""
    raise SystemExit(str(payload["say"]))


@task("tell.death", http=True, retry="one_shot", isolate=True)
def death(_: dict[str, Any]) -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def _look(payload: Any) -> Any:
    """Return *payload*: a validator in Python, so that only the run refuses what does not fit."""
    return payload


@task("tell.little", http=True)
def little(_: Annotated[Little, BeforeValidator(_look)]) -> None:
    """Take what fits only."""
