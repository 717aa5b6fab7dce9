"""What is worth telling of an attack, in short lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from tools.chaos.replica_set.verdict import Evidence

COUNTED: Final = ("claimed", "done", "retried", "failed", "lost", "unknown", "released", "timed_out", "errors")


def notes(evidence: Evidence, counts: Mapping[str, int]) -> list[str]:
    """Return them; *counts* is what the invocations of functions came to, as ``Cloud.counts`` has it."""
    answers = evidence.answers.values()
    unknown = sum(not one.ids for one in answers)
    told = Counter(what for one in answers for what in one.refused)
    longest = max((seconds for one in answers for seconds in one.seconds), default=0.0)
    stored = len(evidence.tasks) + len(evidence.letters)
    ended = [f"{count} {name}" for name, count in sorted(counts.items()) if "raised" in name or "died" in name]
    return [
        f"{len(evidence.wanted)} asked for, {len(answers) - unknown} acknowledged, {unknown} unknown, {stored} stored",
        f"callers were told {_listed(told)} instead; the longest enqueue took {longest:.1f} s",
        f"{len(evidence.runs)} runs in {counts.get('execute', 0)} invocations, which told of "
        + ", ".join(f"{counts.get(f'execute.{name}', 0)} {name}" for name in COUNTED),
        f"invocations that did not return: {', '.join(ended) or 'none'}",
    ]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common()) or "nothing"
