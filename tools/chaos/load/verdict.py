"""What became of every task that was accepted: told by its traces, and by what is left of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tools.chaos.found import Found
from tools.chaos.load.traces import Traces
from tools.chaos.load.work import KINDS, Kind, Piece, text

KILLED: Final = "its executor was killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What MongoDB still holds, by the id of the task: the *status* of those alive, the *letters* of the dead."""

    status: Mapping[str, str]
    letters: Mapping[str, Sequence[Mapping[str, Any]]]


def verdict(accepted: Mapping[str, Piece], traces: Traces, left: Left, *, held: Collection[str]) -> Found:
    """Return where every one of *accepted* has ended.

    A task that is done is removed after a while: then its traces alone tell of it. *held* are those of executors that
    were killed, which may have run once more than they would have.
    """
    found = Found(accepted=len(accepted))
    for task_id, piece in accepted.items():
        kind = KINDS[piece.kind]
        runs, is_held = traces.began[task_id], task_id in held
        if trouble := _astray(task_id, kind, traces, left, is_held=is_held):
            found.lost += 1
            found.broken.append(f"{_named(task_id, piece)} {trouble}")
        else:
            setattr(found, kind.ends, getattr(found, kind.ends) + 1)
        if runs > kind.runs and is_held:
            found.repeated[KILLED] += 1
        found.broken += [f"{_named(task_id, piece)} {said}" for said in _wrong(task_id, piece, traces, left, is_held)]
    for task_id in (traces.began.keys() | left.status.keys() | left.letters.keys()) - accepted.keys():
        found.broken.append(f"{task_id} exists, and nobody was told that it was accepted")
    return found


def _astray(task_id: str, kind: Kind, traces: Traces, left: Left, *, is_held: bool) -> str | None:
    """Return where a task is that is not where it ought to be."""
    status, letters = left.status.get(task_id), left.letters.get(task_id, ())
    reasons = [one["reason"] for one in letters]
    match kind.ends:
        case "dead":
            is_right = status is None and (reasons == [kind.reason] or (is_held and len(reasons) == 1))
        case "done":
            is_right = not letters and status in {None, "done"} and traces.done[task_id] > 0
        case _:
            is_right = not letters and status in {None, "cancelled"}
    if is_right:
        return None
    return f"was to be {kind.ends} and is {status or 'gone'}, done {traces.done[task_id]} times, dead for {reasons}"


def _wrong(task_id: str, piece: Piece, traces: Traces, left: Left, is_held: bool) -> Iterator[str]:  # noqa: FBT001
    runs, due = traces.began[task_id], KINDS[piece.kind].runs
    if (runs != due and not is_held) or runs < min(due, 1):
        yield f"ran {runs} times, not {due}"
    if traces.done[task_id] > 1 and not is_held:
        yield f"succeeded {traces.done[task_id]} times"
    given = traces.payloads.get(task_id, set()) - {(piece.n, len(text(piece.n)))}
    if given or any(one["payload"] != piece.fields["payload"] for one in left.letters.get(task_id, ())):
        yield "has another payload now"


def _named(task_id: str, piece: Piece) -> str:
    return f"{task_id} ({piece.kind}, {piece.fields['queue']})"
