"""What goes on beside a worker: signals are heard whatever its thread is busy with, troubles are told once."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from tests.unit.make import eventually
from tidemill.cli.work_watch import Watch
from tidemill.errors import MissingIndexError, UnavailableError
from tidemill.executor.lifetime import Worker

AWAY: Final = UnavailableError("MongoDB did not answer in time (AutoReconnect)")
STILL_AWAY: Final = UnavailableError("MongoDB was not reached (there is no primary now)")


class Guarded(threading.Event):
    """An event whose setting takes ``lock``, as it takes the lock that every event has of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def set(self) -> None:
        with self.lock:
            super().set()


class Watched:
    """A worker with somebody who watches it, and what was heard on stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.stop = Guarded()
        self.worker = Worker(self.stop)
        self.left: list[int] = []
        self.watch = Watch(self.worker, stop=self.stop, leave=self.left.append)
        self._capsys = capsys
        self._told = ""

    @property
    def told(self) -> list[str]:
        self._told += self._capsys.readouterr().err
        return self._told.splitlines()

    def hears(self, *lines: str) -> bool:
        return eventually(lambda: self.told == [f"tidemill: {line}" for line in lines])


@pytest.fixture
def watched(capsys: pytest.CaptureFixture[str]) -> Iterator[Watched]:
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    made = Watched(capsys)
    with made.watch:
        made.watch.begin()
        yield made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_it_to_stop_and_the_second_to_leave(watched: Watched, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    assert watched.stop.wait(5)
    assert watched.left == []

    os.kill(os.getpid(), number)
    assert eventually(lambda: watched.left == [number])


def test_before_it_begins_the_first_signal_is_to_leave(watched: Watched) -> None:
    with Watch(watched.worker, stop=watched.stop, leave=watched.left.append):
        os.kill(os.getpid(), signal.SIGTERM)
        assert eventually(lambda: watched.left == [signal.SIGTERM])

    assert not watched.stop.is_set()


def test_a_terminal_that_hangs_up_twice_is_no_second_signal(watched: Watched) -> None:
    os.kill(os.getpid(), signal.SIGHUP)
    assert watched.stop.wait(5)
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)

    assert eventually(lambda: signal.SIGTERM in watched.left)
    assert watched.left == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("running", "line"),
    [
        (0, "stopping"),
        (1, "stopping: 1 task still runs; a second signal exits at once"),
        (3, "stopping: 3 tasks still run; a second signal exits at once"),
    ],
)
def test_who_stops_it_is_told_what_it_waits_for(watched: Watched, running: int, line: str) -> None:
    watched.worker.record_status(running=running, error=None, answered=True)

    os.kill(os.getpid(), signal.SIGTERM)

    assert watched.hears(line)


def test_a_signal_is_heard_while_the_main_thread_holds_the_lock_of_stop(watched: Watched) -> None:
    with watched.stop.lock:
        os.kill(os.getpid(), signal.SIGTERM)
        # A handler that sets it would have locked this thread up for good.
        assert not watched.stop.is_set()

    assert watched.stop.wait(5)


def test_other_signals_are_none_of_its_business(watched: Watched) -> None:
    heard = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set())
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)

    assert heard.wait(5)
    assert not watched.stop.is_set()


def test_trouble_is_told_when_it_comes_and_when_it_is_over(watched: Watched) -> None:
    watched.worker.record_status(running=0, error=AWAY, answered=True)
    assert watched.hears(f"{AWAY}; trying again")
    watched.worker.record_status(running=0, error=STILL_AWAY, answered=True)
    watched.worker.record_status(running=0, error=AWAY, answered=True)
    watched.worker.record_status(running=0, error=None, answered=True)

    assert watched.hears(f"{AWAY}; trying again", "working again")


def test_trouble_of_another_kind_is_told_as_well(watched: Watched) -> None:
    lacking = MissingIndexError("tasks")
    watched.worker.record_status(running=0, error=AWAY, answered=True)
    assert watched.hears(f"{AWAY}; trying again")

    watched.worker.record_status(running=0, error=lacking, answered=True)

    assert watched.hears(f"{AWAY}; trying again", f"{lacking}; trying again")


def test_that_a_function_had_nowhere_to_run_is_told_once(watched: Watched) -> None:
    for reason in ("no process can be had", "no process can be had", "no thread can be had"):
        watched.worker.record_status(running=0, error=None, answered=True, not_started=reason)
        assert watched.hears("a task did not start and is postponed: no process can be had")


def test_that_a_function_had_nowhere_to_run_is_told_though_the_worker_leaves_then(watched: Watched) -> None:
    with Watch(watched.worker, stop=threading.Event(), leave=watched.left.append):
        watched.worker.record_status(running=0, error=None, answered=True, not_started="no process can be had")

    assert "tidemill: a task did not start and is postponed: no process can be had" in watched.told


def test_once_it_is_over_signals_are_as_before(watched: Watched) -> None:
    own = Watch(watched.worker, stop=threading.Event(), leave=watched.left.append)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with own:
        pass

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    os.kill(os.getpid(), signal.SIGTERM)
    assert watched.stop.wait(5)


def test_what_the_parent_had_ignored_stays_ignored(watched: Watched) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Watch(watched.worker, stop=threading.Event(), leave=watched.left.append):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN


def test_that_nobody_reads_what_it_tells_is_no_trouble(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Unread())
    os.kill(os.getpid(), signal.SIGTERM)
    assert watched.stop.wait(5)
    os.kill(os.getpid(), signal.SIGTERM)

    assert eventually(lambda: watched.left == [signal.SIGTERM])


class Unread(io.StringIO):
    """A stream whose reader has gone."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError
