"""Chains of invocations, as Lambda's recursive loop detection follows them: by the trace header that clients pass on.

Lambda counts in the header's part ``Lineage`` how often each function was invoked in the chain that began with one
event; botocore sends the header of the invocation it runs in with each request to AWS.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from typing import Final

MAX_INVOCATIONS: Final = 16
"""So many invocations of one function Lambda lets one event cause, where the function does not allow more."""

_LINEAGE: Final = re.compile(r"Lineage=([0-9a-f:,]+)")


def new_trace() -> str:
    """Return the trace header of an event that no function has caused."""
    return f"Root=1-{int(time.time()):08x}-{secrets.token_hex(12)};Parent={secrets.token_hex(8)};Sampled=0"


def count_invocations(trace: str, arn: str) -> int:
    """Return how often the function *arn* was invoked in the chain of *trace*."""
    return _counts(trace).get(_key(arn), 0)


def extend_trace(trace: str, arn: str) -> str:
    """Return the trace header of one more invocation of the function *arn* in the chain of *trace*."""
    counts = _counts(trace)
    counts[_key(arn)] = counts.get(_key(arn), 0) + 1
    root = trace.partition(";")[0]
    lineage = ",".join(f"{key}:{count}" for key, count in counts.items())
    return f"{root};Parent={secrets.token_hex(8)};Sampled=0;Lineage={lineage}"


def _counts(trace: str) -> dict[str, int]:
    found = _LINEAGE.search(trace)
    parts = found[1].split(",") if found else []
    return {key: int(count) for key, _, count in (part.partition(":") for part in parts)}


def _key(arn: str) -> str:
    return hashlib.sha256(arn.encode()).hexdigest()[:8]
