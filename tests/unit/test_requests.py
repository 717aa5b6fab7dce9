"""What may be asked for of one new task."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from tests.fixtures import T0
from tests.unit.requesting import refused, wanted
from tidemill import InvalidRequestError
from tidemill.requests.tasks import MAX_DELAY_SEC, MAX_KEY_CHARS, new_task

NUMBER = "Input should be a valid number"
WHOLE = "Input should be a valid integer"
TEXT = "Input should be a valid string"


def test_name_and_payload_are_enough() -> None:
    task = wanted()

    assert (task.queue, task.priority, task.starts_at(T0), task.retries()) == ("default", 0, None, None)
    assert (task.expires_at, task.timeout_sec, task.idempotency_key) == (None, None, None)


@pytest.mark.parametrize("name", ["a", "_", "os.system", "__import__", "deliver-webhook", "A1", "x" * 100])
def test_a_name_is_a_word_and_nothing_is_looked_up_by_it(name: str) -> None:  # F23
    assert wanted(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", "../x", "1a", ".a", "-a", "a b", "a/b", "Tâche😀", "x" * 101, "a\n", "a\x00", "\ud83c"]
)
def test_no_other_text_is_a_name(name: str) -> None:  # F23, F40, F41
    assert list(refused(name=name)) == ["name"]


@pytest.mark.parametrize("queue", ["", ".", "-", "x" * 64, "a b", "é", "a\n", "a$", {"$ne": 1}, None, 1])
def test_a_queue_is_a_word_too(queue: object) -> None:  # F71
    assert list(refused(queue=queue)) == ["queue"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", None, TEXT), ("name", 1, TEXT), ("name", b"noop", f"{TEXT}, not a bytes"), ("name", ["noop"], TEXT),
        ("priority", True, WHOLE), ("priority", "3", WHOLE), ("priority", 3.0, WHOLE), ("priority", "high", WHOLE),
        ("priority", math.nan, WHOLE), ("priority", None, WHOLE), ("priority", [], WHOLE),
        ("priority", 10**30, "Input should be less than or equal to 2147483647"),
        ("priority", -(2**31), "Input should be greater than or equal to -2147483647"),
        ("max_retries", True, WHOLE), ("max_retries", "3", WHOLE), ("max_retries", 1.5, WHOLE),
        ("max_retries", -1, "Input should be greater than or equal to 0"),
        ("max_retries", 1001, "Input should be less than or equal to 1000"),
        ("max_retries", 10**9, "Input should be less than or equal to 1000"),
        ("delay_sec", True, NUMBER), ("delay_sec", "3", NUMBER), ("delay_sec", 10**400, NUMBER),
        ("delay_sec", -1, "Input should be greater than or equal to 0"),
        ("delay_sec", math.nan, "Input should be a finite number"),
        ("delay_sec", math.inf, "Input should be a finite number"),
        ("delay_sec", 366 * 86400 + 1, "Input should be less than or equal to 31622400"),
        ("timeout_sec", 0, "Input should be greater than or equal to 0.1"),
        ("timeout_sec", -1, "Input should be greater than or equal to 0.1"),
        ("timeout_sec", 0.001, "Input should be greater than or equal to 0.1"),
        ("timeout_sec", 881, "Input should be less than or equal to 880"),
        ("timeout_sec", 10**9, "Input should be less than or equal to 880"),
        ("timeout_sec", True, NUMBER),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_or_size_is_refused(field: str, value: object, message: str) -> None:  # F46, F47
    assert refused(**{field: value}) == {field: message}


@pytest.mark.parametrize(
    "field", ["_id", "status", "attempts", "lease", "created_at", "due_at", "next_retry_at", "error", "id", "self"]
)
def test_what_the_server_owns_cannot_be_sent(field: str) -> None:  # F46
    [(wrong, message)] = refused(**{field: 1}).items()
    assert (wrong, message.partition(",")[0]) == (field, "there is no such field")


def test_everything_wrong_is_told_at_once() -> None:
    assert list(refused(name="", priority=True, delay_sec=-1, moon=1)) == ["name", "priority", "delay_sec", "moon"]
    with pytest.raises(InvalidRequestError, match="name: is missing; payload: is missing"):
        new_task()


@pytest.mark.parametrize("whole", [0, 3])
def test_seconds_may_be_whole_numbers(whole: int) -> None:
    assert wanted(delay_sec=whole).delay_sec == whole


@pytest.mark.parametrize(("delay", "milliseconds"), [(1e-9, 1), (0.0004, 1), (0.001, 1), (0.0011, 2), (60, 60_000)])
def test_a_delay_is_never_cut_short_and_never_nothing(delay: float, milliseconds: int) -> None:  # F31
    assert wanted(delay_sec=delay).starts_at(T0) == T0 + timedelta(milliseconds=milliseconds)


def test_no_delay_is_due_at_once_and_the_longest_is_a_year() -> None:
    assert wanted(delay_sec=0).starts_at(T0) is None
    assert wanted(delay_sec=MAX_DELAY_SEC).starts_at(T0) == T0 + timedelta(days=366)


@pytest.mark.parametrize(("hours", "delayed"), [(-1, False), (0, False), (1, True)])
def test_a_start_that_has_passed_is_no_delay(hours: int, *, delayed: bool) -> None:
    start = T0 + timedelta(hours=hours)

    assert wanted(not_before=start).starts_at(T0) == (start if delayed else None)


def test_delay_and_start_exclude_each_other() -> None:
    assert refused(delay_sec=0, not_before=T0) == {"task": "delay_sec and not_before exclude each other"}


@pytest.mark.parametrize("key", ["k", "a b", "order-7", "é😀", "k1,k2", "x" * MAX_KEY_CHARS, "$gt"])
def test_a_key_is_printable_text(key: str) -> None:
    assert wanted(idempotency_key=key).idempotency_key == key


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "String should have at least 1 character"),
        ("x" * (MAX_KEY_CHARS + 1), "String should have at most 200 characters"),
        *((key, "must be printable and not start or end with white space") for key in (" ", "a ", "\u00a0a", "a\x85")),
        *((key, "must be printable and not start or end with white space") for key in ("a\x00", "a\u200bb")),
        ("\ud83c", f"{TEXT}, unable to parse raw data as a unicode string"),
        (7, TEXT),
        (["a"], TEXT),
        ({"$gt": ""}, TEXT),
    ],
)
def test_anything_else_is_no_key(key: object, message: str) -> None:  # F40, F71, F76, F77
    assert refused(idempotency_key=key) == {"idempotency_key": message}


def test_no_key_is_none_and_not_a_shared_one() -> None:  # F76
    assert wanted(idempotency_key=None).idempotency_key is None


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("priorty", "priority"),
        ("delay", "delay_sec"),
        ("timeout", "timeout_sec"),
        ("not_befor", "not_before"),
        ("x", ""),
    ],
)
def test_a_mistyped_option_is_told_with_the_one_that_was_meant(typo: str, meant: str) -> None:
    assert refused(**{typo: 1}) == {typo: "there is no such field" + (f", did you mean {meant}?" if meant else "")}


def test_fields_without_end_are_one_problem() -> None:
    countless = {f"field_{n}": 1 for n in range(1000)}

    assert refused(**countless) == {"task": "has far too many fields"}
    assert refused(retry=countless) == {"retry": "has far too many fields"}
