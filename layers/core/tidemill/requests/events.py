"""What starts the functions that are not called by people."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from tidemill.model import Lane
from tidemill.policies import Selection
from tidemill.requests.problems import Request
from tidemill.requests.tasks import QUEUE_PATTERN

MAX_CONCURRENCY: Final = 256
"""Slots are threads, of which Lambda gives a function a thousand."""

Source: TypeAlias = Literal["tick", "wake", "backlog"]
"""Why an executor was started: by a schedule, by an enqueue, by another executor or the death of one."""


class ExecuteRequest(Request):
    """What starts an executor; ``{}`` is a tick with the deployment's choices."""

    source: Source = "tick"
    queues: list[Annotated[str, Field(pattern=QUEUE_PATTERN)]] = Field(default=[], max_length=100)
    lane: Lane | None = None
    selection: Selection | None = None
    batch_size: int | None = Field(default=None, ge=1, le=1000)
    concurrency: int | None = Field(default=None, ge=1, le=MAX_CONCURRENCY)


class SweepRequest(Request):
    """What starts reclaim by schedule, or archive: nothing to choose."""


def dead_owner(event: object) -> str | None:
    """Return the owner whose death AWS reports in *event*, or ``None`` where it is no such report.

    Lambda sends it to the destination for failures; the request id is what the executor's leases are held under.
    """
    context = event.get("requestContext") if isinstance(event, dict) else None
    if not isinstance(context, dict) or not {"requestId", "functionArn", "condition"} <= context.keys():
        return None
    owner = context["requestId"]
    return owner if isinstance(owner, str) and owner else None
