"""When an executor is woken, and what a wake may cost whoever asks for one: 0.3 s, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidemill.executor import scaling
from tidemill.executor.lifetime import TIMING
from tidemill.executor.scaling import (
    LAUNCH_INTERRUPTED,
    NO_LAUNCH_THREAD,
    WAKE_DEBOUNCE_SEC,
    WAKE_TIMEOUT_SEC,
    Debounce,
    Launcher,
    LaunchError,
    Waker,
)

HANGING = threading.Event()
"""Set while calls hang, so that nobody waits for one in earnest."""


class Watch:
    """A monotonic clock that the test moves; waiting for a call moves it too, and is noted."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.waited: list[float] = []
        self.before_wait: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.at

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        """Wait for a call that ends by itself, or as long as is allowed where it does not."""
        self.waited.append(seconds)
        self.before_wait()
        if ended.wait(0 if HANGING.is_set() else 10):
            return True
        self.at += seconds
        return False


class Lambda:
    """What is called; it hangs, refuses or breaks as told."""

    def __init__(self) -> None:
        self.calls = 0
        self.does: Callable[[], None] = lambda: None

    def start(self) -> None:
        self.calls += 1
        self.does()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def aws() -> Lambda:
    return Lambda()


@pytest.fixture
def launcher(aws: Lambda, watch: Watch) -> Launcher:
    return Launcher(aws.start, monotonic=watch, wait=watch.wait)


@pytest.fixture
def waker(launcher: Launcher, watch: Watch) -> Waker:
    return Waker(launcher, monotonic=watch)


@contextmanager
def hanging(aws: Lambda) -> Iterator[threading.Event]:
    """Calls hang until the event is set, or the block ends."""
    release = threading.Event()
    aws.does = lambda: (release.wait(30), None)[1]
    HANGING.set()
    try:
        yield release
    finally:
        HANGING.clear()
        release.set()
        aws.does = lambda: None


def refuse() -> None:
    raise LaunchError("Lambda refused (TooManyRequestsException)")


def launch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tidemill-launch"]


def let_end() -> None:
    """Wait for the call that hangs, which has been released."""
    for thread in launch_threads():
        thread.join(10)


# Debounce


def debounce(*came: float, quiet_sec: float = WAKE_DEBOUNCE_SEC) -> Debounce:
    made = Debounce(quiet_sec=quiet_sec)
    for at in came:
        made.record_try(at)
        made.record_start(at)
    return made


def test_the_first_to_ask_wakes() -> None:
    made = debounce()
    assert not made.is_due(0)

    made.request(0)

    assert made.is_due(0)


@pytest.mark.parametrize(("after", "is_due"), [(0, False), (0.999, False), (1, True), (60, True)])
def test_who_asks_within_a_second_of_a_wake_relies_on_it(after: float, *, is_due: bool) -> None:
    made = debounce(50)

    made.request(50 + after)

    assert made.is_due(50 + after) == is_due
    assert made.is_due(50 + 60) == is_due


def test_an_executor_that_was_summoned_looks_for_longer_than_others_rely_on_it() -> None:
    assert TIMING.linger_after_launch_sec > WAKE_DEBOUNCE_SEC


def test_after_a_wake_in_vain_it_is_quiet_for_a_second_and_then_made_up_for() -> None:
    made = debounce()
    made.request(50)
    made.record_try(50)

    assert not made.is_due(50.999)
    assert made.is_due(51)


def test_what_is_asked_for_in_that_second_is_owed_too() -> None:
    made = debounce()
    made.record_try(50)

    made.request(50.5)

    assert (made.is_due(50.999), made.is_due(51)) == (False, True)


def test_a_wake_that_is_known_late_to_have_come_serves_those_who_asked_until_a_second_after_it_began() -> None:
    in_time, too_late = debounce(), debounce()
    for made, asked in ((in_time, 50.9), (too_late, 51.0)):
        made.record_try(50)
        made.request(asked)
        made.record_start(50)

    assert not in_time.is_due(60)
    assert too_late.is_due(60)


def test_hearing_of_the_same_wake_again_changes_nothing() -> None:
    made = debounce(50)
    made.request(51)

    made.record_start(50)

    assert made.is_due(51)


def test_with_executors_that_do_not_linger_nobody_relies_on_an_earlier_wake() -> None:
    made = debounce(50, quiet_sec=0)

    made.request(50)

    assert made.is_due(50)


@pytest.mark.parametrize("quiet_sec", [0, 0.3])
def test_after_a_wake_in_vain_it_is_quiet_for_a_second_even_where_executors_linger_less(quiet_sec: float) -> None:
    made = debounce(40, quiet_sec=quiet_sec)
    made.request(50)
    made.record_try(50)

    made.record_start(40)  # is heard of again

    assert (made.is_due(50.999), made.is_due(51)) == (False, True)


def test_where_executors_linger_less_a_wake_that_has_come_is_followed_by_the_next_that_much_sooner() -> None:
    made = debounce(50, quiet_sec=0.25)

    made.request(50.25)

    assert made.is_due(50.25)


# Waker


def test_a_wake_in_vain_is_paid_for_once_by_a_request_even_where_executors_do_not_linger(
    launcher: Launcher, watch: Watch, aws: Lambda
) -> None:
    waker = Waker(launcher, quiet_sec=0, monotonic=watch)

    with hanging(aws):
        assert [waker.wake(), waker.retry_pending_wake()] == [scaling.LAUNCH_UNANSWERED, None]

    assert watch.waited == pytest.approx([WAKE_TIMEOUT_SEC])


def test_a_wake_starts_one_executor_and_the_next_second_none(waker: Waker, watch: Watch, aws: Lambda) -> None:
    told = [waker.wake()]
    for _ in range(9):
        watch.at += 0.1
        told.append(waker.wake())
    assert (told, aws.calls) == ([None] * 10, 1)

    watch.at += 0.1
    assert (waker.wake(), aws.calls) == (None, 2)


def test_without_a_need_nobody_is_woken(waker: Waker, aws: Lambda) -> None:
    assert (waker.retry_pending_wake(), aws.calls) == (None, 0)


def test_what_lambda_refuses_is_told_once_and_made_up_for_by_a_later_request(
    waker: Waker, watch: Watch, aws: Lambda
) -> None:
    aws.does = refuse

    assert waker.wake() == "Lambda refused (TooManyRequestsException)"
    watch.at += 0.5
    assert [waker.wake(), waker.retry_pending_wake(), aws.calls] == [None, None, 1]
    watch.at += 0.5
    aws.does = lambda: None
    assert [waker.retry_pending_wake(), aws.calls] == [None, 2]
    watch.at += 1
    assert [waker.retry_pending_wake(), aws.calls] == [None, 2]


def test_a_call_that_hangs_costs_the_patience_there_is_and_no_more(waker: Waker, watch: Watch, aws: Lambda) -> None:
    with hanging(aws):
        assert waker.wake() == scaling.LAUNCH_UNANSWERED

    assert watch.waited == pytest.approx([WAKE_TIMEOUT_SEC])
    assert WAKE_TIMEOUT_SEC == 0.3


def test_while_one_call_hangs_there_is_no_second_and_others_are_asked_for_no_more(
    waker: Waker, watch: Watch, aws: Lambda
) -> None:
    with hanging(aws):
        waker.wake()
        watch.at += 1
        began = watch.at
        assert waker.wake() == scaling.LAUNCH_IN_PROGRESS
        assert watch.at - began == pytest.approx(WAKE_TIMEOUT_SEC)
        watch.at += 0.1
        assert waker.wake() is None

    assert aws.calls == 1


def test_a_call_that_ends_late_has_woken_somebody_for_those_who_asked_meanwhile(
    waker: Waker, watch: Watch, aws: Lambda
) -> None:
    with hanging(aws) as release:
        waker.wake()
        watch.at += 0.5
        waker.wake()
        release.set()
        let_end()
    watch.at += 5

    assert [waker.retry_pending_wake(), aws.calls] == [None, 1]


def test_a_call_that_was_frozen_before_it_was_sent_is_followed_by_another_for_the_next_who_asks(
    waker: Waker, watch: Watch, aws: Lambda
) -> None:
    with hanging(aws) as release:
        waker.wake()
        watch.at += 600
        release.set()
        let_end()

    assert [waker.wake(), aws.calls] == [None, 2]


def test_the_next_who_asks_waits_for_the_call_before_and_makes_its_own_in_the_same_time(
    waker: Waker, watch: Watch, aws: Lambda
) -> None:
    with hanging(aws) as release:
        waker.wake()
        watch.at += 5
        watch.waited.clear()

        def let_it_end() -> None:
            watch.at += 0.1 if len(watch.waited) == 1 else 0
            HANGING.clear()
            release.set()

        watch.before_wait = let_it_end
        assert waker.wake() is None

    assert watch.waited == pytest.approx([WAKE_TIMEOUT_SEC, WAKE_TIMEOUT_SEC - 0.1])
    assert aws.calls == 2


def test_no_thread_to_call_on_is_no_error(waker: Waker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)

    assert waker.wake() == NO_LAUNCH_THREAD


def test_a_call_that_breaks_is_no_error_of_who_asked(
    waker: Waker, aws: Lambda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # prints it, and pytest would take it for ours
    aws.does = breaks

    assert waker.wake() == LAUNCH_INTERRUPTED
    let_end()


def test_calls_keep_no_process_alive(waker: Waker, aws: Lambda) -> None:
    with hanging(aws):
        waker.wake()
        [thread] = launch_threads()
        assert thread.daemon


# Summoner


def test_several_are_started_by_one_call(launcher: Launcher, aws: Lambda) -> None:
    assert launcher.launch(4, timeout_sec=1)
    assert (aws.calls, launcher.poll()) == (4, None)


def test_the_first_that_is_refused_is_the_last_that_is_tried(launcher: Launcher, aws: Lambda, watch: Watch) -> None:
    def third_refused() -> None:
        if aws.calls == 3:
            refuse()

    aws.does = third_refused

    assert not launcher.launch(9, timeout_sec=1)
    assert (aws.calls, launcher.last_error) == (3, "Lambda refused (TooManyRequestsException)")
    assert launcher.started_at == watch.at


def test_who_does_not_wait_hears_of_it_later(launcher: Launcher, aws: Lambda) -> None:
    with hanging(aws) as release:
        assert not launcher.launch(2, timeout_sec=0)
        assert launcher.poll() == scaling.LAUNCH_UNANSWERED
        release.set()
        let_end()

    assert launcher.poll() is None
    assert aws.calls == 2
