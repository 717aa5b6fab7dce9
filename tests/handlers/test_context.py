"""The Lambda context that tests hand to handlers."""

from __future__ import annotations

from datetime import timedelta

from tidemill.testing import FakeContext


class Stopwatch:
    def __init__(self) -> None:
        self.at = 50.0

    def __call__(self) -> float:
        return self.at


def test_what_is_left_counts_down() -> None:
    watch = Stopwatch()
    context = FakeContext(timedelta(seconds=10), monotonic=watch)
    assert context.get_remaining_time_in_millis() == 10_000

    watch.at += 2.5

    assert context.get_remaining_time_in_millis() == 7_500


def test_time_can_be_let_pass() -> None:
    context = FakeContext(timedelta(seconds=10), monotonic=Stopwatch())

    context.move(timedelta(seconds=4))

    assert context.get_remaining_time_in_millis() == 6_000


def test_what_is_left_is_never_negative() -> None:
    context = FakeContext(timedelta(seconds=1), monotonic=Stopwatch())

    context.move(timedelta(seconds=4))

    assert context.get_remaining_time_in_millis() == 0


def test_every_invocation_has_an_id_of_its_own() -> None:
    assert FakeContext().aws_request_id != FakeContext().aws_request_id
    assert FakeContext(request_id="r-1").aws_request_id == "r-1"


def test_it_runs_down_by_itself() -> None:
    context = FakeContext()
    first = context.get_remaining_time_in_millis()

    while context.get_remaining_time_in_millis() == first:
        pass

    assert 119_000 < context.get_remaining_time_in_millis() < first <= 120_000
