"""Functions that take their process with them: described, and nobody else notices."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import bson
import pytest

from tests.features.isolation.runs import PATIENT, Run, a_run_spec, begin, helper_of, runner
from tests.unit.make import eventually
from tidemill.runner.process_pool import ProcessPool
from tidemill.runner.results import Crashed, Lost, Raised, Returned, RunResult

pytestmark = pytest.mark.slow

DEATHS: dict[str, tuple[str, dict[str, Any], str]] = {
    "segfault": ("segfault", {}, "its process was killed by SIGSEGV"),
    "abort": ("abort", {}, "its process was killed by SIGABRT"),
    "alarm": ("alarm", {}, "its process was killed by SIGALRM"),
    "exit 3": ("exit", {"code": 3}, "its process exited with code 3"),
    "exit 0": ("exit", {"code": 0}, "its process exited with code 0 without an answer"),
    "kill": ("signal", {"number": int(signal.SIGKILL)}, "its process was killed by SIGKILL (out of memory?)"),
    "term": ("signal", {"number": int(signal.SIGTERM)}, "its process was killed by SIGTERM"),
    "closed": ("closes", {}, "its process exited with code 0 without an answer"),
}


@pytest.mark.parametrize("name", DEATHS)
def test_a_death_is_described(run: Run, name: str) -> None:
    function, payload, description = DEATHS[name]

    assert run(function, **payload) == Crashed(description)
    assert run("noop") == Returned(None)


def test_recursion_through_c_ends_at_most_its_process(run: Run) -> None:
    assert died_or_raised(run("recursion"), "SIGSEGV", "RecursionError")


def died_or_raised(concluded: RunResult, signal_name: str, code: str) -> bool:
    """Whether the process died, or Python was quicker than the system."""
    if isinstance(concluded, Raised):
        return concluded.failure.code == code
    return isinstance(concluded, Crashed) and signal_name in concluded.description


GARBAGE = [
    b"\xff" * 100_000,
    b"\x00" * 10,
    b"\x05\x00\x00\x00",
    b"\x10\x00\x00\x00" + b"\xee" * 12,
    bson.encode({}) + bson.encode({"returned": 1}),
    bson.encode({"begun": True}),
    bson.encode({"refused": "by the function"}),
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_on_every_file_is_a_crash(run: Run, garbage: bytes) -> None:
    assert run("scribbles", garbage=garbage) == Crashed("its process sent something that is no answer")
    assert run("noop") == Returned(None)


FLOODS = {
    "begun": Crashed("its process sent something that is no answer"),
    "returned": Returned("answered"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_messages_without_end_do_not_keep_the_executor(shared: ProcessPool, name: str) -> None:
    spec = a_run_spec("floods", {"message": bson.encode({name: "answered"})}, timeout=2)

    assert begin(shared, spec).end() == FLOODS[name]


def test_garbage_after_an_answer_changes_nothing(run: Run) -> None:
    assert run("answers_and_scribbles") == Returned("answered")


def test_no_answer_is_written_to_what_takes_the_place_of_the_socket(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "taken"

    assert run("replaces", file=str(file)) == Crashed("its process exited with code 0 without an answer")
    assert file.read_bytes() == b""


def test_an_answer_counts_whatever_happens_after_it(run: Run) -> None:
    assert run("dies_after") == Returned("answered")


def test_a_function_that_kills_the_helper_is_lost_and_the_next_is_run(process_pool: ProcessPool) -> None:
    run = runner(process_pool)
    run("noop")
    first = helper_of(process_pool)

    assert run("kills_helper") == Lost("its process was lost with the helper process")

    assert run("noop") == Returned(None)
    assert helper_of(process_pool) != first


def test_all_that_run_while_the_helper_is_killed_are_lost_and_none_is_blamed(
    process_pool: ProcessPool, tmp_path: Path
) -> None:
    traces = [tmp_path / "first", tmp_path / "second"]
    runs = [begin(process_pool, a_run_spec("sleep", {"trace": str(trace)})) for trace in traces]
    assert eventually(lambda: all(trace.exists() for trace in traces), within=PATIENT.total_seconds())

    os.kill(helper_of(process_pool), signal.SIGKILL)

    assert [one.end() for one in runs] == [Lost("its process was lost with the helper process")] * 2


def test_sixteen_at_once_each_get_what_is_theirs(shared: ProcessPool) -> None:
    specs = [a_run_spec("echo", {"n": n}, task_id=n) for n in range(12)]
    specs += [a_run_spec("exit", {"code": n}) for n in range(1, 5)]

    ends = [one.end() for one in [begin(shared, spec) for spec in specs]]

    echoes = [Returned({"payload": {"n": n}, "task_id": n, "attempt": 1, "is_last": False}) for n in range(12)]
    crashes: list[RunResult] = [Crashed(f"its process exited with code {n}") for n in range(1, 5)]
    assert ends == [*echoes, *crashes]
