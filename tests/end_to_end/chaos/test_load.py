from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tidemill.testing import Mongod
from tools.chaos.load import survive
from tools.chaos.load.container import Reading
from tools.chaos.load.growth import Values, growth
from tools.chaos.load.judging import WAITING, Evidence, growths, notes
from tools.chaos.load.machinery import Course
from tools.chaos.load.plan import plan_for
from tools.chaos.load.samples import KEPT, Extent, Sample
from tools.chaos.load.speed import (
    Calibration,
    compute_backlogs,
    compute_speed,
    estimate_catch_up_sec,
    read_cpu_times,
    relate_speeds,
)
from tools.chaos.load.traces import Traces, read
from tools.chaos.load.verdict import KILLED, Left, verdict
from tools.chaos.load.work import KINDS, Piece, pieces, text


def _piece(kind: str, n: int = 7) -> Piece:
    fields = {"name": KINDS[kind].function, "payload": {"n": n, "text": text(n)}, "queue": "default"}
    return Piece(n=n, kind=kind, fields=fields)


def _traces(*whats: str, n: int = 7) -> Traces:
    return read(f"{what} a {attempt} {n} {len(text(7))}\n" for attempt, what in enumerate(whats))


def _letter(**changes: Any) -> dict[str, Any]:
    return {"reason": "exhausted", "payload": _piece("failing").fields["payload"]} | changes


NOTHING = Left(status={}, letters={})
DONE = Left(status={"a": "done"}, letters={})
KEPT_USUALLY = dict.fromkeys(KEPT, Extent(count=1, size=1000))
DEAD = Left(status={}, letters={"a": [_letter()]})


def test_the_load_is_survived(mongod: Mongod) -> None:
    found = survive(mongod.uri, seconds=1.5, seed=7)

    assert found.broken == []
    assert found.accepted == found.done + found.dead + found.cancelled > 50
    assert found.done > found.dead > 0


@pytest.mark.parametrize(
    ("kind", "traces", "left"),
    [
        ("short", _traces("began", "done"), DONE),
        ("short", _traces("began", "done"), NOTHING),
        ("failing twice", _traces("began", "began", "began", "done"), DONE),
        ("failing", _traces("began", "began"), DEAD),
        ("cancelled", _traces(), Left(status={"a": "cancelled"}, letters={})),
    ],
)
def test_what_ends_as_it_ought_to_is_well(kind: str, traces: Traces, left: Left) -> None:
    found = verdict({"a": _piece(kind)}, traces, left, held=())

    assert (found.broken, found.lost) == ([], 0)
    assert getattr(found, KINDS[kind].ends) == 1


@pytest.mark.parametrize(
    ("kind", "traces", "left"),
    [
        ("short", _traces(), NOTHING),
        ("short", _traces("began"), NOTHING),
        ("short", _traces("began", "done"), Left(status={"a": "processing"}, letters={})),
        ("short", _traces("began", "done"), Left(status={"a": "done"}, letters={"a": [_letter()]})),
        ("failing", _traces("began", "began"), NOTHING),
        ("failing", _traces("began", "began"), Left(status={}, letters={"a": [_letter(), _letter()]})),
        ("failing", _traces("began", "began"), Left(status={}, letters={"a": [_letter(reason="malformed")]})),
        ("failing", _traces("began", "began"), replace(DEAD, status={"a": "failed"})),
        ("cancelled", _traces(), Left(status={"a": "pending"}, letters={})),
    ],
)
def test_what_ends_elsewhere_is_lost(kind: str, traces: Traces, left: Left) -> None:
    found = verdict({"a": _piece(kind)}, traces, left, held=())

    assert found.lost == 1
    assert found.broken
    assert found.accepted == found.lost


@pytest.mark.parametrize(
    ("kind", "traces", "left", "said"),
    [
        ("short", _traces("began", "began", "done"), DONE, "ran 2 times"),
        ("short", _traces("began", "done", "began", "done"), DONE, "succeeded 2 times"),
        ("failing", _traces("began"), DEAD, "ran 1 times"),
        ("cancelled", _traces("began", "done"), Left(status={"a": "cancelled"}, letters={}), "ran 1 times"),
        ("short", _traces("began", "done", n=8), DONE, "another payload"),
        (
            "failing",
            _traces("began", "began"),
            Left(status={}, letters={"a": [_letter(payload={})]}),
            "another payload",
        ),
    ],
)
def test_what_ran_otherwise_than_it_ought_to_is_told(kind: str, traces: Traces, left: Left, said: str) -> None:
    found = verdict({"a": _piece(kind)}, traces, left, held=())

    assert any(said in sentence for sentence in found.broken)


def test_what_a_killed_executor_held_may_run_again() -> None:
    found = verdict({"a": _piece("short")}, _traces("began", "began", "done"), DONE, held={"a"})

    assert found.broken == []
    assert found.repeated == {KILLED: 1}


def test_a_task_that_nobody_accepted_is_told() -> None:
    assert verdict({}, _traces("began", "done"), NOTHING, held=()).broken


@pytest.mark.parametrize(
    ("slope", "swing", "told"),
    [(0.0, 0.0, ""), (0.0, 2.0, ""), (-1.0, 0.0, ""), (1.0, 0.0, "memory: 105 -> 125 (allowed is 2 more)")],
)
def test_growth_is_what_the_last_third_has_more_than_the_first(slope: float, swing: float, told: str) -> None:
    values = [(float(at), 100 + slope * at + swing * (at % 2)) for at in range(30)]

    found = growth("memory", values, whole=30, allowed=2)

    assert found is not None
    assert ("" if found.is_none else found.told()) == told


def test_nothing_is_said_of_the_growth_of_what_was_not_looked_at_in_time() -> None:
    assert growth("memory", [(1.0, 100.0), (15.0, 100.0)], whole=30, allowed=2) is None


PLAN = plan_for(110)


def _speeds(speed: float = 1.0, *, since: float = 0.0, until: float = PLAN.loaded) -> Values:
    """Return speeds that are *speed* in the mean between two moments, and else 1."""
    moments = [number / 4 for number in range(1, 330)]
    means = [speed if since < at <= until else 1.0 for at in moments]
    return [(at, mean * (0.8 + 0.4 * (n % 2))) for n, (at, mean) in enumerate(zip(moments, means, strict=True))]


EVEN = _speeds()


def _looks(sample: dict[str, Any], reading: dict[str, Any], *, speeds: Values = EVEN) -> Evidence:
    """Return 33 looks, of which the last third shows what is given."""
    usual = Sample(
        at=0, connections=20, due=3, oldest_sec=0.2, paused_sec=4, tasks=900, letters=9, kept=KEPT_USUALLY, server=1
    )
    held = Reading(blocks=230_000, resident=50 << 20, threads=5, files=10, children=0)
    moments = [2.5 * number for number in range(33)]
    return Evidence(
        plan=PLAN,
        course=Course(),
        samples=[replace(usual, at=at, **(sample if at > 55 else {})) for at in moments],
        readings={"first": [(at, replace(held, **(reading if at > 55 else {}))) for at in moments]},
        speeds=speeds,
        rate=100.0,
        seconds_to_calm=1.0,
        runs=1000,
    )


def test_what_varies_as_usual_has_not_grown() -> None:
    seen = _looks({"connections": 22, "due": 9, "oldest_sec": 0.5}, {"blocks": 230_170, "files": 11, "children": 2})

    assert [one.told() for one in growths(seen) if not one.is_none] == []
    assert len(growths(seen)) == 15


@pytest.mark.parametrize(
    ("sample", "reading"),
    [
        ({"connections": 30}, {}),
        ({"due": 90}, {}),
        ({"oldest_sec": 3.0}, {}),
        ({"paused_sec": 40.0}, {}),
        ({"tasks": 1300}, {}),
        *[({"kept": KEPT_USUALLY | {name: Extent(count=1, size=9000)}}, {}) for name in KEPT],
        ({}, {"blocks": 232_000}),
        ({}, {"resident": 52 << 20}),
        ({}, {"threads": 8}),
        ({}, {"files": 18}),
        ({}, {"children": 4}),
    ],
)
def test_each_thing_that_grows_is_found(sample: dict[str, Any], reading: dict[str, Any]) -> None:
    assert len([one for one in growths(_looks(sample, reading)) if not one.is_none]) == 1


def _recorded(speeds: Values) -> Evidence:
    """Return the looks of a run on a busy machine: in its first third many tasks waited, in `PAUSED` for long."""
    seen = _looks({"oldest_sec": 0.67, "due": 3, "tasks": 261}, {}, speeds=speeds)
    samples = [replace(sample, oldest_sec=14.76, due=37, tasks=421) for sample in seen.samples[:11]]
    samples += [replace(seen.samples[11], paused_sec=47.23), *seen.samples[12:]]
    return replace(seen, samples=samples)


def _faults(seen: Evidence) -> list[str]:
    return [change.told() for change in growths(seen) if not change.is_none]


def _remarks(seen: Evidence) -> list[str]:
    return [note for note in notes(seen) if "not judged" in note]


def test_waiting_on_a_machine_that_was_too_slow_is_no_fault_and_is_told() -> None:
    seen = _recorded(_speeds(0.35))
    assert _faults(seen) == []
    looks, names = _remarks(seen)
    assert "not judged elsewhere at 33 of 33 looks, in bulk at 33 of 33 looks: the machine had been 2.9 times" in looks
    assert names.removeprefix("not judged at all, for want of looks: ").split("; ") == list(WAITING)


def test_the_same_waiting_on_an_even_machine_is_a_fault() -> None:
    seen = _recorded(EVEN)

    assert _faults(seen) == ["oldest due in bulk, beside its pause: 12.38 -> 47.23 s (allowed is 7 more)"]
    assert _remarks(seen) == []


@pytest.mark.parametrize("sample", [{"oldest_sec": 3.0}, {"paused_sec": 40.0}, {"due": 90}, {"tasks": 1300}])
@pytest.mark.parametrize("speed", [3.0, 1.0, 0.9])
def test_waiting_on_a_machine_about_as_fast_as_calibrated_is_a_fault(sample: dict[str, Any], speed: float) -> None:
    assert len(_faults(_looks(sample, {}, speeds=_speeds(speed)))) == 1


@pytest.mark.parametrize("sample", [{"oldest_sec": 3.0}, {"due": 90}])
def test_waiting_long_after_the_machine_was_slow_is_a_fault(sample: dict[str, Any]) -> None:
    assert len(_faults(_looks(sample, {}, speeds=_speeds(0.3, since=30, until=35)))) == 1


def test_a_queue_neglected_two_pauses_after_the_machine_was_slow_is_a_fault() -> None:
    assert len(_faults(_looks({"paused_sec": 40.0}, {}, speeds=_speeds(0.3, since=5, until=10)))) == 1


def test_a_queue_neglected_before_the_machine_was_slow_is_a_fault() -> None:
    seen = _looks({}, {}, speeds=_speeds(0.3, since=55))
    neglected = [*seen.samples[:20], replace(seen.samples[20], paused_sec=40.0), *seen.samples[21:]]

    assert len(_faults(replace(seen, samples=neglected))) == 1


def test_waiting_while_the_machine_catches_up_is_no_fault() -> None:
    seen = _looks({"paused_sec": 40.0, "tasks": 1300}, {}, speeds=_speeds(0.1, since=45, until=60))
    late = [replace(sample, oldest_sec=9.0, due=500) if 45 < sample.at < 70 else sample for sample in seen.samples]

    assert _faults(replace(seen, samples=late)) == []
    assert "10.0 times slower" in _remarks(seen)[0]


def test_nothing_but_waiting_is_excused_by_a_slow_machine() -> None:
    seen = _looks({"connections": 30}, {"threads": 8, "blocks": 232_000}, speeds=_speeds(0.3))

    assert len(_faults(seen)) == 3


def test_waiting_is_not_judged_where_speed_was_not_measured() -> None:
    seen = _looks({"oldest_sec": 3.0}, {}, speeds=())

    assert _faults(seen) == []
    assert "the speed of the machine was not measured" in _remarks(seen)[0]


def test_speeds_are_relative_to_those_of_the_calibration() -> None:
    measured = [(9.0, 70.0), (11.0, 10.0), (12.0, 30.0), (14.0, 99.0), (21.0, 10.0), (22.0, 40.0)]
    calibration = Calibration(rate=50, began_at=10.0, ended_at=13.0)

    assert relate_speeds(measured, calibration, began_at=20.0) == [(1.0, 0.5), (2.0, 2.0)]
    assert relate_speeds(measured[4:], calibration, began_at=20.0) == ()


def test_a_backlog_grows_while_the_machine_is_too_slow_and_goes_when_it_is_fast() -> None:
    speeds = [(1.0, 1.0), (3.0, 0.25), (4.0, 0.5), (4.5, 1.0), (6.0, 1.0)]

    assert [round(backlog, 6) for _, backlog in compute_backlogs(speeds, needed=0.6)] == [0.0, 0.8, 1.0, 0.9, 0.6]


def test_a_pause_adds_no_more_to_a_backlog_than_it_held_back() -> None:
    speeds = [(1.0, 0.5), (2.0, 0.5), (9.0, 0.5), (10.0, 1.0), (11.0, 0.25)]

    backlogs = compute_backlogs(speeds, needed=0.4, extra=0.2, held_back_sec=0.3)

    assert [round(backlog, 6) for _, backlog in backlogs] == [0.2, 0.3, 0.3, 0.1, 0.5]


@pytest.mark.parametrize(("speed", "seconds"), [(1.0, 0.0), (0.5, 0.0), (0.25, 30.0), (0.1, 120.0)])
def test_a_machine_too_slow_gets_time_to_catch_up(speed: float, seconds: float) -> None:
    assert estimate_catch_up_sec([(at, speed) for at in range(1, 31)], needed=0.4) == pytest.approx(seconds)


def test_speed_is_the_part_of_the_time_in_which_threads_did_not_wait_for_a_cpu() -> None:
    old, new, ended = Path("old"), Path("new"), Path("ended")
    before = {old: (100, 900), ended: (5, 5)}

    assert compute_speed(before, {old: (130, 970), new: (500, 0)}) == 0.3
    assert compute_speed(before, {old: (100, 900)}) is None


def test_cpu_times_are_those_of_all_descendants() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        ours = read_cpu_times(os.getpid())

        assert Path(f"/proc/{child.pid}/task/{child.pid}") in ours
        assert all(ran >= 0 <= waited for ran, waited in ours.values())
        child.communicate(b"\n")


def test_the_same_seed_mixes_the_same_tasks_of_every_kind() -> None:
    first, second = (list(islice(pieces(random.Random(3), run="a"), 2000)) for _ in range(2))

    assert first == second
    assert {one.kind for one in first} == KINDS.keys()
    assert {one.fields["name"] for one in first} == {kind.function for kind in KINDS.values()}
