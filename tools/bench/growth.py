"""How the cost of a claim grows with all that waits, is delayed, has finished, or was claimed a moment ago."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pymongo import MongoClient

from tools.bench.backlog import grown
from tools.bench.figures import Scale, Section
from tools.bench.recent import after_claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """So many *pending* tasks, *beside* so many others; after so many *claims*, of which some are *told*."""

    pending: Sequence[int]
    beside: int
    claims: Sequence[int]
    told: Sequence[int]
    rounds: int


SIZES: Final[Mapping[Scale, Size]] = {
    "toy": Size(pending=(100, 400), beside=300, claims=(500,), told=(500,), rounds=1),
    "quick": Size(
        pending=(1_000, 50_000),
        beside=25_000,
        claims=(30_000,),
        told=(30_000,),
        rounds=5,
    ),
    "full": Size(
        pending=(1_000, 100_000, 1_000_000),
        beside=1_000_000,
        claims=(50_000, 100_000, 150_000, 200_000, 300_000),
        told=(100_000, 300_000),
        rounds=5,
    ),
}


def measure(uri: str, scale: Scale) -> Section:
    """Return the figures and the points of the plots, for which millions of tasks are made on the server."""
    size = SIZES[scale]
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        recent, recent_points = after_claims(client, size.claims, told=size.told, rounds=size.rounds)
        backlog, backlog_points = grown(client, size.pending, beside=size.beside, rounds=size.rounds)
    return Section(
        title="Growth: a claim beside all the others",
        figures=[*backlog, *recent],
        series={"backlog": backlog_points, "recent": recent_points},
    )
