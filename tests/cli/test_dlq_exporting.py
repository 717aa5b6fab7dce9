"""`tidemill dlq export` and `restore`: into the bucket, and back from its files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from pymongo.database import Database

from tests.buried import bury, letter
from tests.cli.conftest import CommandLine, Interruption
from tidemill.bootstrap import deployment
from tidemill.dead_letters.export_format import ExportError, encode_object
from tidemill.documents import decode
from tidemill.store.connection import Tasks

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
SHOWN = "`tidemill dlq show ID` shows the reason"


@pytest.fixture
def shelf(
    operator: CommandLine,  # noqa: ARG001 - its environment
) -> dict[str, bytes]:
    """A bucket that takes everything but what is of the function ``refused``."""
    objects: dict[str, bytes] = {}

    def put(key: str, body: bytes) -> None:
        if "refused" in key:
            raise ExportError("EntityTooLarge", blame="object")
        objects[key] = body

    deployment().put = put
    return objects


def _failing(is_away: Callable[[int], bool]) -> Callable[[str, bytes], None]:
    """Return a put that refuses what is called ``refused`` and says that all else comes too fast where *is_away*.

    That is asked with the number of the put, from 1.
    """
    numbers, lock = count(1), Lock()

    def put(key: str, _: bytes) -> None:
        with lock:
            number = next(numbers)
        if "refused" in key:
            raise ExportError("EntityTooLarge", blame="object")
        if is_away(number):
            raise ExportError("SlowDown", blame="bucket")

    return put


def test_what_is_not_in_the_bucket_goes_there(
    operator: CommandLine, db: Database[Any], dead: Tasks, died: datetime, shelf: dict[str, bytes]
) -> None:
    bury(dead, [letter(died) for _ in range(3)])

    assert operator.done("dlq", "export").out == f"3 dead letters of {db.name} exported\n"
    assert len(shelf) == 3
    assert operator.done("dlq", "export", "--json").json["exported"] == 0


def test_it_goes_on_until_nothing_is_left(
    by_two: CommandLine, dead: Tasks, died: datetime, shelf: dict[str, bytes]
) -> None:
    bury(dead, [letter(died) for _ in range(5)])

    answer = by_two.done("dlq", "export", "--json").json

    assert (answer["exported"], answer["left"], answer["last_error"]) == (5, 0, None)
    assert len(shelf) == 5


def test_what_is_left_is_told_and_ends_in_1(
    operator: CommandLine, db: Database[Any], dead: Tasks, died: datetime, shelf: dict[str, bytes]
) -> None:
    bury(dead, [letter(died), letter(died, _id="refused")])

    said = operator("dlq", "export")

    assert (said.status, said.out, len(shelf)) == (1, f"1 dead letter of {db.name} exported\n", 1)
    assert (
        said.err
        == f"tidemill: 1 dead letter is not exported and only in {db.name}: the bucket refused 1 now; {SHOWN}\n"
    )

    later = operator("dlq", "export")

    assert (later.status, later.out) == (1, f"0 dead letters of {db.name} exported\n")
    assert (
        later.err
        == f"tidemill: 1 dead letter is not exported and only in {db.name}: the bucket refused it before; {SHOWN}\n"
    )


def test_letters_that_are_refused_keep_none_back_that_comes_later(
    by_two: CommandLine, dead: Tasks, died: datetime, shelf: dict[str, bytes]
) -> None:
    bury(dead, [letter(died + n * SECOND, _id=f"refused {n}") for n in range(4)])
    bury(dead, [letter(died + HOUR / 2) for _ in range(3)])

    said = by_two("dlq", "export", "--json")

    counts = {name: said.json[name] for name in ("exported", "refused", "failed", "left", "last_error")}
    assert counts == {"exported": 3, "refused": 4, "failed": 0, "left": 4, "last_error": None}
    assert (said.status, len(shelf)) == (1, 3)
    assert "4 dead letters are not exported" in said.err
    assert "the bucket refused 4 now" in said.err


@pytest.mark.parametrize("first", [1, 3], ids=["on the first page", "on the second"])
def test_a_failure_that_passes_ends_nothing_and_is_no_failure_of_the_export(
    by_two: CommandLine, dead: Tasks, died: datetime, first: int
) -> None:
    bury(dead, [letter(died) for _ in range(6)])
    deployment().put = _failing(lambda number: number == first)

    answer = by_two.done("dlq", "export", "--json").json

    counts = [answer[name] for name in ("exported", "failed", "left", "last_error")]
    assert counts == [6, 1, 0, None]


def test_a_bucket_that_goes_away_on_the_way_is_told_with_what_it_refused(
    by_two: CommandLine, db: Database[Any], dead: Tasks, died: datetime
) -> None:
    bury(dead, [letter(died, _id="refused"), *(letter(died + SECOND) for _ in range(5))])
    deployment().put = _failing(lambda number: number > 2)

    said = by_two("dlq", "export")

    assert (said.status, said.out) == (1, f"1 dead letter of {db.name} exported\n")
    reasons = f"S3 answered SlowDown; the bucket refused 1 now; {SHOWN}"
    assert said.err == f"tidemill: 5 dead letters are not exported and only in {db.name}: {reasons}\n"


def test_a_bucket_that_is_away_is_told(operator: CommandLine, db: Database[Any], dead: Tasks, died: datetime) -> None:
    def away(_key: str, _body: bytes) -> None:
        raise ExportError("AccessDenied", blame="either")

    deployment().put = away
    bury(dead, [letter(died)])

    said = operator("dlq", "export")

    assert said.status == 1
    assert said.err == f"tidemill: 1 dead letter is not exported and only in {db.name}: S3 answered AccessDenied\n"


def test_an_export_that_is_interrupted_says_what_is_certain_and_what_may_be(
    by_two: CommandLine, interruption: Interruption
) -> None:
    interruption.set(0, KeyboardInterrupt())

    said = by_two("dlq", "export")

    assert said.status == 130
    so_far = "stopped early: 0 exported for certain, up to 1000 more may have been"
    assert said.err == f"tidemill: {so_far}; run the same command to continue\n"


def test_files_of_the_bucket_come_back(
    operator: CommandLine, db: Database[Any], dead: Tasks, died: datetime, tmp_path: Path
) -> None:
    bury(dead, [letter(died, _id="x", redrives=2, payload={"n": 1})])
    before = dead.find_one({})
    assert before is not None
    file = tmp_path / "x.json.gz"
    file.write_bytes(encode_object(before))
    dead.delete_many({})

    first, second = operator.done("dlq", "restore", str(file)), operator.done("dlq", "restore", str(file))

    assert first.out == f"{file}: task x is a dead letter again, redriven 2 times before\n"
    assert second.out == f"{file}: already among the dead letters\n"
    [after] = [decode(raw) for raw in dead.find({})]
    assert {name: after[name] for name in decode(before)} == decode(before)
    assert after["archived_at"] is not None
    told = operator.done("dlq", "restore", str(file), "--json").json
    assert told == {"files": [{"file": str(file), "restored": False}], "database": db.name}


def test_a_file_that_is_none_keeps_no_other_back(
    operator: CommandLine, dead: Tasks, died: datetime, tmp_path: Path
) -> None:
    bury(dead, [letter(died, _id="x")])
    found = dead.find_one({})
    assert found is not None
    (tmp_path / "good").write_bytes(encode_object(found))
    (tmp_path / "odd").write_bytes(b"{}")
    dead.delete_many({})

    said = operator("dlq", "restore", *(str(tmp_path / name) for name in ("odd", "nobody", "good")))

    assert said.status == 1
    assert said.out == f"{tmp_path / 'good'}: task x is a dead letter again\n"
    assert said.err.splitlines()[1:] == [
        f"tidemill: {tmp_path / 'nobody'}: No such file or directory",
        "tidemill: 2 of 3 files were not restored",
    ]
