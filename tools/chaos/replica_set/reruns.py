"""The runs of one task: which of them are explained by its document, and why there was more than one. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from tidemill.store.settle import MAX_LOG_LINES
from tools.chaos.replica_set.traces import Run

UNCOUNTED: Final = "not counted"
SLACK_SEC: Final = 0.25
"""What clocks of processes may differ by."""

ORPHANED_SEC: Final = 1.0
"""A function in a process of its own ends at the latest so long after its executor."""


def broken(document: Mapping[str, Any], runs: Sequence[Run], *, deaths: Mapping[str, float]) -> list[str]:
    """Return what does not fit in *runs*, the first one first, of the task or dead letter *document*.

    *deaths* tells when containers were killed.
    """
    known = [_ended(run, deaths) for run in runs]
    return [*_of_runs(document, known), *_of_orphans(document, known, deaths), *_of_refunds(document)]


def repeated(document: Mapping[str, Any], runs: Sequence[Run], *, deaths: Mapping[str, float]) -> Counter[str]:
    """Return why the task ran more often than outcomes were written: for each of those runs, how it came about."""
    settled = _settled_lines(document)
    why: Counter[str] = Counter()
    for run in reversed(runs):  # of two in the same instant the later one was settled
        mine = [line for line in settled if _is_about(line, run)]
        if mine:
            settled.remove(mine[0])
        else:
            why[_why(document, run, died=deaths.get(run.box, math.inf))] += 1
    return why


def _why(document: Mapping[str, Any], run: Run, *, died: float) -> str:
    if run.is_child and run.ended is None:
        return "the process that it had for itself was killed"
    died_at = run.began_at + (died - run.began)
    if any(_taken_at(line) < died_at - SLACK_SEC for line in _lost_lines(document) if _is_about(line, run)):
        return "its lease was taken away while its executor lived"
    if run.ended is not None and run.ended < died:
        return "its executor was killed before it had settled"
    return "its executor was killed while it ran"


def _ended(run: Run, deaths: Mapping[str, float]) -> Run:
    """Return *run* with an end: that of its container where both died; a child that died says nothing of when."""
    if run.ended is not None:
        return run
    return replace(run, ended=run.began if run.is_child else deaths.get(run.box, run.began))


def _lost_lines(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [line for line in document["attempt_log"] if line["status"] == "lost"]


def _settled_lines(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [line for line in document["attempt_log"] if line["status"] != "lost"]


def _of_runs(document: Mapping[str, Any], runs: Sequence[Run]) -> Iterator[str]:
    name = f"{document['_id']} ({document['name']})"
    if document["status"] == "done" and not runs:
        yield f"{name} is done and has never run"
    if len(document["attempt_log"]) < MAX_LOG_LINES and len(runs) > len(document["attempt_log"]):
        yield f"{name} ran {len(runs)} times, and its log tells of {len(document['attempt_log'])}"
    for index, first in enumerate(runs):
        for second in runs[index + 1 :]:
            if first.ended is not None and second.began < first.ended and not _was_lost(document, first, second):
                yield f"{name} ran twice at once, in {first.box} and {second.box}, with two live leases"


def _of_orphans(document: Mapping[str, Any], runs: Sequence[Run], deaths: Mapping[str, float]) -> Iterator[str]:
    for run in runs:
        died = deaths.get(run.box, math.inf)
        if run.ended is not None and run.ended > died + ORPHANED_SEC:
            yield f"{document['_id']} ran on for {run.ended - died:.1f} s when its executor {run.box} was dead"


def _was_lost(document: Mapping[str, Any], first: Run, second: Run) -> bool:
    """Tell whether the lease under which *first* ran had been taken away when *second* began."""
    lines = (line for line in _lost_lines(document) if _is_about(line, first))
    return any(_taken_at(line) <= second.began_at + SLACK_SEC for line in lines)


def _of_refunds(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield losses of a worker that were counted wrongly: the first is not, each that follows is, up to an own end."""
    log = document["attempt_log"]
    if len(log) >= MAX_LOG_LINES:
        return
    has_crashed = False
    for line in log:
        is_refunded = UNCOUNTED in line["note"]
        if line["status"] == "lost" and is_refunded == has_crashed:
            yield f"{document['_id']} lost its worker, and that was {'not ' if is_refunded else ''}counted: {log}"
        has_crashed = line["status"] == "lost" or "crashed" in line["note"]
    counted = sum(UNCOUNTED not in line["note"] for line in log)
    if document["attempts"] != counted:
        yield f"{document['_id']} has {document['attempts']} attempts, and its log tells of {counted}"


def _is_about(line: Mapping[str, Any], run: Run) -> bool:
    """Tell whether a line of the log may tell of *run*: a lost one begins with the claim, others with the run."""
    begins = line["started_at"].timestamp() - SLACK_SEC
    ends = _taken_at(line) if line["status"] == "lost" else begins + SLACK_SEC
    return bool(line["attempt"] == run.attempt and begins <= run.began_at <= ends + SLACK_SEC)


def _taken_at(line: Mapping[str, Any]) -> float:
    at: datetime = line["started_at"] + timedelta(milliseconds=line["duration_ms"])
    return at.timestamp()
