"""Why dead letters failed: counted by the keys of one index, whatever the letters hold."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Regex
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tests.buried import FINGERPRINT, bury, letter
from tidemill.dead_letters.queries import TREND_HOURS, Group, GroupLimits, Groups, find_fingerprints, find_groups
from tidemill.model import Task
from tidemill.store.connection import Tasks

HOUR = timedelta(hours=1)
MS = timedelta(milliseconds=1)


def found(dead: Tasks, now: datetime, *, limit: int = 20) -> dict[str, Group]:
    return {one.fingerprint: one for one in find_groups(dead, limit=limit, now=now).groups}


def test_without_dead_letters_there_are_no_groups(dead: Tasks, now: datetime) -> None:
    assert find_groups(dead, limit=20, now=now) == Groups(
        groups=(), total_groups=0, dead_letters=0, sampled_newest=None
    )


def test_a_group_has_its_size_and_when_it_was_first_and_last_seen(dead: Tasks, now: datetime) -> None:
    bury(dead, [letter(now - hours * HOUR, fingerprint="a") for hours in (50, 3, 7)])
    bury(dead, [letter(now, fingerprint="b")])

    group = found(dead, now)["a"]

    assert (group.dead_letters, group.first_at, group.last_at) == (3, now - 50 * HOUR, now - 3 * HOUR)


def test_only_open_letters_count(dead: Tasks, now: datetime) -> None:
    bury(dead, [letter(now - HOUR, fingerprint="a"), letter(now - 2 * HOUR, fingerprint="a", redrive_started_at=now)])
    bury(dead, [letter(now - hours * HOUR, fingerprint="a", redriven_at=now) for hours in (0, 9)])
    bury(dead, [letter(now, fingerprint="gone", redriven_at=now)])

    every = find_groups(dead, limit=20, now=now)

    [group] = every.groups
    assert (group.fingerprint, group.dead_letters, sum(group.trend)) == ("a", 2, 2)
    assert (group.first_at, group.last_at) == (now - 2 * HOUR, now - HOUR)
    assert (every.total_groups, every.dead_letters) == (1, 2)


def test_the_largest_groups_come_first_and_of_equal_ones_the_newest(dead: Tasks, now: datetime) -> None:
    for name, count, hours in (("small", 1, 0), ("a: old", 2, 9), ("b: new", 2, 1), ("large", 3, 20)):
        bury(dead, [letter(now - hours * HOUR, fingerprint=name) for _ in range(count)])

    assert list(found(dead, now)) == ["large", "b: new", "a: old", "small"]
    page = find_groups(dead, limit=2, now=now)
    assert [one.fingerprint for one in page.groups] == ["large", "b: new"]
    assert (page.total_groups, page.dead_letters) == (4, 8)


@pytest.mark.parametrize(
    ("ago", "place"),
    [
        (timedelta(0), TREND_HOURS - 1),
        (HOUR - MS, TREND_HOURS - 1),
        (HOUR, TREND_HOURS - 2),
        (24 * HOUR - MS, 0),
        (24 * HOUR, None),
        (90 * HOUR, None),
        (-5 * HOUR, TREND_HOURS - 1),
    ],
)
def test_a_death_is_counted_in_its_hour_of_the_last_24(
    dead: Tasks, now: datetime, ago: timedelta, place: int | None
) -> None:
    bury(dead, [letter(now - ago, fingerprint="a"), letter(now - 99 * HOUR, fingerprint="b")])

    trend = found(dead, now)["a"].trend

    assert len(trend) == TREND_HOURS
    assert [index for index, count in enumerate(trend) if count] == ([] if place is None else [place])
    assert sum(found(dead, now)["b"].trend) == 0


def test_the_sample_is_the_open_letter_that_died_last(dead: Tasks, now: datetime) -> None:
    bury(dead, [letter(now - 2 * HOUR, fingerprint="a"), letter(now, fingerprint="a", redriven_at=now)])
    bury(
        dead, [letter(now - HOUR, fingerprint="b", name="other"), letter(now - HOUR, fingerprint="a", redriven_at=now)]
    )
    [newest] = bury(dead, [letter(now - HOUR, fingerprint="a", redrives=3, payload={"card": "secret"})])

    sample = found(dead, now)["a"].sample

    assert sample is not None
    assert (sample.id.task, sample.id.redrives) == (newest, 3)
    assert isinstance(sample.task, Task)
    assert (sample.task.name, sample.task.payload) == ("noop", {})
    assert sample.task.error is not None
    assert sample.task.error.code == "http_503"


def test_the_message_of_a_sample_is_bounded(dead: Tasks, now: datetime) -> None:
    error = {"message": "é" * 7_000, "code": "E", "at": now}
    bury(dead, [letter(now, error=error, payload={"x": "y" * 200_000}, result="z" * 200_000)])

    assert len(repr(find_groups(dead, limit=20, now=now))) < 5_000


@pytest.mark.parametrize("value", [None, 7, ["a", "b"], {"a": 1}, Regex("a"), "$fingerprint", ""], ids=repr)
def test_a_fingerprint_that_a_person_wrote_is_a_group_too(dead: Tasks, now: datetime, value: Any) -> None:
    [task_id] = bury(dead, [letter(now, fingerprint=value)])
    bury(dead, [letter(now, fingerprint="a") for _ in range(3)])

    every = find_groups(dead, limit=20, now=now)

    assert (every.total_groups, every.dead_letters) == (2, 4)
    group = every.groups[-1]
    assert (group.fingerprint, group.dead_letters) == (value if isinstance(value, str) else "", 1)
    assert group.sample is None or group.sample.id.task == task_id


@pytest.mark.parametrize("value", [None, "yesterday", 5, {"$gt": 1}], ids=repr)
def test_a_time_that_a_person_wrote_stops_nothing(dead: Tasks, now: datetime, value: Any) -> None:
    bury(dead, [letter(now, fingerprint="a") | {"dead_lettered_at": value}, letter(now, fingerprint="b")])

    group = found(dead, now)["a"]

    assert (group.dead_letters, group.first_at, sum(group.trend)) == (1, None, 0)
    assert found(dead, now)["b"].first_at == now


def test_a_letter_that_cannot_be_a_task_is_a_sample_too(dead: Tasks, now: datetime) -> None:
    [task_id] = bury(dead, [letter(now, name=7)])

    sample = found(dead, now)[FINGERPRINT].sample

    assert sample is not None
    assert sample.id.task == task_id


def test_text_that_is_no_utf_8_stops_nothing(dead: Tasks, now: datetime) -> None:
    broken = (
        bson.encode(letter(now, fingerprint="a?z", name="???")).replace(b"a?z", b"a\x80z").replace(b"???", b"\xff" * 3)
    )
    dead.insert_one(RawBSONDocument(broken))

    assert [one.dead_letters for one in found(dead, now).values()] == [1]


def test_no_letter_is_read_but_the_samples(db: Database[Any], dead: Tasks, now: datetime) -> None:
    for name in ("a", "b", "c"):
        bury(dead, [letter(now - n * HOUR, fingerprint=name, redriven_at=now if n % 3 else None) for n in range(60)])
    db.command("profile", 2)

    find_groups(dead, limit=2, now=now)

    db.command("profile", 0)
    profile = [one for one in db["system.profile"].find({"ns": f"{db.name}.tasks_dlq"}) if "planSummary" in one]
    assert len(profile) == 3
    assert "COLLSCAN" not in {one["planSummary"] for one in profile}
    assert max(one["docsExamined"] for one in profile) <= 2
    assert sum(one["docsExamined"] for one in profile) <= 2


FEW = GroupLimits(max_counted=6, sampled_newest=4)


def test_of_as_many_as_can_be_counted_all_are(dead: Tasks, now: datetime) -> None:
    bury(dead, [letter(now - n * HOUR, fingerprint=name) for n, name in enumerate("aaabbc")])

    every = find_groups(dead, limit=20, now=now, limits=FEW)

    assert [(one.fingerprint, one.dead_letters) for one in every.groups] == [("a", 3), ("b", 2), ("c", 1)]
    assert (every.sampled_newest, every.total_groups, every.dead_letters) == (None, 3, 6)


def test_of_more_than_can_be_counted_the_newest_are_wherever_their_group_stands(dead: Tasks, now: datetime) -> None:
    bury(dead, [letter(now - (90 + n) * HOUR, fingerprint=name) for n, name in enumerate("aaaab")])
    bury(dead, [letter(now - 2 * HOUR, fingerprint=name, redriven_at=at) for name, at in (("y", None), ("y", now))])
    newest = bury(dead, [letter(now - n * HOUR, fingerprint="z") for n in range(2)])

    every = find_groups(dead, limit=20, now=now, limits=FEW)

    largest, other = every.groups
    assert (every.sampled_newest, every.total_groups, every.dead_letters) == (4, 2, 3)
    assert (largest.fingerprint, largest.dead_letters, largest.trend[-3:]) == ("z", 2, (0, 1, 1))
    assert (largest.first_at, largest.last_at) == (now - HOUR, now)
    assert largest.sample is not None
    assert largest.sample.id.task == newest[0]
    assert (other.fingerprint, other.dead_letters, other.trend[-3:]) == ("y", 1, (1, 0, 0))


@pytest.mark.parametrize("believed", [0, 99])
def test_a_count_of_the_servers_that_is_out_of_date_misleads_nobody(
    dead: Tasks, now: datetime, monkeypatch: pytest.MonkeyPatch, *, believed: int
) -> None:
    monkeypatch.setattr(type(dead), "estimated_document_count", lambda _: believed)
    bury(dead, [letter(now, fingerprint=name) for name in "abc"])
    few = find_groups(dead, limit=20, now=now, limits=FEW)
    bury(dead, [letter(now + HOUR, fingerprint="z") for _ in range(4)])
    many = find_groups(dead, limit=20, now=now, limits=FEW)

    assert (few.sampled_newest, few.dead_letters) == (None, 3)
    assert (many.sampled_newest, many.dead_letters) == (4, 4)
    assert [one.fingerprint for one in many.groups] == ["z"]


def test_the_fingerprints_of_the_newest_letters_are_looked_up(dead: Tasks, now: datetime) -> None:
    bury(dead, [letter(now - n * HOUR, fingerprint=name) for n, name in enumerate(["a", "b", "b", 7, "c"])])

    assert find_fingerprints(dead, of=4) == {"a", "b"}


def test_a_letter_whose_text_is_no_utf8_can_be_the_sample(dead: Tasks, now: datetime) -> None:
    whole = bson.encode(letter(now, archived_at="x")).replace(b"archived_at\0\2\0\0\0x", b"archived_at\0\2\0\0\0\xff")
    bury(dead, [letter(now - HOUR)])
    dead.insert_one(RawBSONDocument(whole))

    assert found(dead, now)[FINGERPRINT].dead_letters == 2
