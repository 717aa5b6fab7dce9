"""What each function tells CloudWatch of an invocation."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document
from tests.buried import bury, letter
from tests.emf import metrics_in
from tests.handlers.calls import ROOT, sample
from tests.handlers.conftest import Deployed
from tests.handlers.warm import break_clock
from tidemill import Fail, Retry, UnavailableError
from tidemill.aws import metrics
from tidemill.aws.metrics import GAUGES
from tidemill.bootstrap import deployment
from tidemill.clock import ServerClock
from tidemill.dead_letters.export_format import Blame, ExportError
from tidemill.errors import InvalidRequestError
from tidemill.registry import Registry
from tidemill.store.connection import Tasks

LONG_AGO = datetime(2026, 7, 1, tzinfo=UTC)
INTERRUPTED = 11601
CLOCKS = 1.0
"""Two samples of the database's time differ by half of what each took, and this machine may be busy."""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POWERTOOLS_METRICS_NAMESPACE", "POWERTOOLS_SERVICE_NAME", "POWERTOOLS_METRICS_DISABLED"):
        monkeypatch.delenv(name, raising=False)


def told(deployed: Deployed) -> dict[str, list[float]]:
    """All values of each metric since the last call."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for line in deployed.metrics():
        for name in metrics_in(line):
            values[name] += line[name]
    deployed.stdout.seek(0)
    deployed.stdout.truncate()
    return dict(values)


def counters(deployed: Deployed) -> dict[str, float]:
    """The sum of each counter since the last call."""
    return {name: sum(values) for name, values in told(deployed).items() if name in metrics.COUNTERS}


def add(db: Database[Any], *names: str, **fields: Any) -> None:
    db.tasks.insert_many([document(LONG_AGO, name=name, **fields) for name in names])


@pytest.fixture
def furnished(deployed: Deployed) -> Deployed:
    """The functions with task functions that end in every way."""
    registry = Registry()

    @registry.task("works")
    def works(_: Any) -> None:
        pass

    @registry.task("fails")
    def fails(_: Any) -> None:
        raise Fail("S3cr3t")

    @registry.task("repeats_its_payload")
    def repeats_its_payload(payload: Any) -> None:
        raise ValueError(payload)

    @registry.task("asks_for_more")
    def asks_for_more(_: Any) -> None:
        raise Retry("S3cr3t", after=timedelta(hours=1))

    warm = deployment()
    warm.runtime = replace(warm.runtime, registry=registry)
    return deployed


# execute


@pytest.mark.parametrize("raised", [None, Fail("S3cr3t")])
def test_an_attempt_whose_lease_was_lost_is_told_as_neither_done_nor_failed(  # F02
    deployed: Deployed, db: Database[Any], raised: Exception | None
) -> None:
    registry = Registry()

    @registry.task("slow")
    def slow(_: Any) -> None:
        db.tasks.update_one({}, {"$set": {"lease.token": "of another"}})
        if raised:
            raise raised

    warm = deployment()
    warm.runtime = replace(warm.runtime, registry=registry)
    add(db, "slow")

    report = deployed.invoke("execute")

    assert (report["lost"], report["done"], report["failed"]) == (1, 0, 0)
    assert [line["message"] for line in deployed.log()] == ["executed"]
    assert counters(deployed) == {"claimed": 1}


def test_an_execution_tells_what_became_of_each_attempt(furnished: Deployed, db: Database[Any]) -> None:
    add(db, "works", "works", "fails", "asks_for_more")
    add(db, "asks_for_more", max_retries=0)
    add(db, "unknown", created_at=datetime(2020, 1, 1, tzinfo=UTC))
    add(db, "works", priority="high")  # which is claimed and is no task
    add(db, "works", attempts="many")  # which no claim can take

    began = monotonic()
    report = furnished.invoke("execute")
    took = monotonic() - began

    found = told(furnished)
    times = found.pop("run_time_seconds")
    assert {name: sum(values) for name, values in found.items()} == {
        "claimed": 7,
        "done": 2,
        "retries_total": 1,
        "failed": 5,
        "retry_exhausted_total": 1,
    }
    assert (report["claimed"], report["failed"], report["quarantined"]) == (7, 4, 1)
    assert len(times) == 5
    assert all(0 <= time <= took + CLOCKS for time in times)


def test_a_retry_is_late_from_when_it_was_due(furnished: Deployed, db: Database[Any]) -> None:
    began = monotonic()
    due_at = ServerClock(db).now() - timedelta(minutes=5)
    add(db, "works", lane="retry", due_at=due_at, attempts=1)
    add(db, "works", due_at=due_at)

    furnished.invoke("execute")
    took = monotonic() - began

    found = told(furnished)
    [lateness] = found["lateness_seconds"]
    assert 300 - CLOCKS <= lateness <= 300 + took + CLOCKS
    assert "retry_latency_seconds" not in found  # no failed attempt is known


@pytest.mark.parametrize(("retried_by", "spent_sec"), [("time", 3600), ("hand", 0)])
def test_the_latency_of_a_retry_is_the_time_that_it_spent_in_back_off(
    furnished: Deployed, db: Database[Any], retried_by: str, spent_sec: float
) -> None:
    # S01
    began = monotonic()
    add(db, "asks_for_more")
    furnished.invoke("execute")
    took = monotonic() - began
    assert "retry_latency_seconds" not in told(furnished)
    [task] = db.tasks.find()
    if retried_by == "hand":  # which ends the back-off early
        furnished.invoke("operate", {"op": "task.retry", "id": str(task["_id"])})
    else:  # its hour passes
        hour = timedelta(hours=1)
        log = [line | {"started_at": line["started_at"] - hour} for line in task["attempt_log"]]
        db.tasks.update_one({}, {"$set": {"attempt_log": log, "due_at": task["due_at"] - hour}})

    furnished.invoke("execute")

    [latency] = told(furnished)["retry_latency_seconds"]
    assert spent_sec - CLOCKS <= latency <= spent_sec + took + CLOCKS


def test_a_payload_that_a_function_raises_is_printed_nowhere(  # F81
    furnished: Deployed, db: Database[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    add(db, "repeats_its_payload", payload={"card_number": "4111111111111111"}, max_retries=0)

    assert furnished.invoke("execute")["failed"] == 1

    printed = furnished.stdout.getvalue() + "".join(capfd.readouterr())
    assert '"code":"ValueError"' in printed
    assert "41111111" not in printed


def test_an_idle_tick_prints_one_line_and_no_metric(deployed: Deployed) -> None:  # F84
    deployed.invoke("execute")
    first = deployed.stdout.tell()
    deployed.invoke("execute")

    assert deployed.stdout.getvalue()[first:].count("\n") == 1
    assert [line["message"] for line in deployed.log()] == ["executed"] * 2
    assert deployed.metrics() == []


def test_nothing_is_left_for_the_next_invocation(furnished: Deployed, db: Database[Any]) -> None:  # F84
    add(db, "works", "fails")
    furnished.invoke("execute")
    assert counters(furnished) == {"claimed": 2, "done": 1, "failed": 1}

    furnished.invoke("execute")
    assert told(furnished) == {}
    add(db, "works")
    furnished.invoke("execute")
    assert counters(furnished) == {"claimed": 1, "done": 1}


def test_an_invocation_that_raises_tells_what_it_did_once(furnished: Deployed, db: Database[Any]) -> None:  # F84
    def has_counted_all() -> bool:
        return [line["message"] for line in furnished.log()].count("attempt") == 10

    add(db, *["fails"] * 10)
    break_clock("execute", UnavailableError("MongoDB is away"), is_broken=has_counted_all)
    with pytest.raises(UnavailableError):
        furnished.invoke("execute")
    assert counters(furnished) == {"claimed": 10, "failed": 10}
    furnished.cool_down()

    furnished.invoke("execute")
    assert told(furnished) == {}


def test_a_long_invocation_tells_of_its_work_before_it_ends(furnished: Deployed, db: Database[Any]) -> None:
    add(db, *["works"] * 3)

    furnished.invoke("execute", {"concurrency": 1, "batch_size": 1}, emit_interval_sec=0.0)

    assert len(furnished.metrics()) > 1
    assert counters(furnished) == {"claimed": 3, "done": 3}


def test_a_name_that_somebody_chose_is_no_dimension(deployed: Deployed, db: Database[Any]) -> None:  # F83
    names = ["", "envoi-é😀", "x" * 2000, *(f"name-{number}" for number in range(100))]
    add(db, *names, created_at=datetime(2020, 1, 1, tzinfo=UTC))

    deployed.invoke("execute")

    assert {line["service"] for line in deployed.metrics()} == {"tidemill"}
    assert len(deployed.metrics()) == 1
    assert counters(deployed)["failed"] == len(names)


class Closed(io.StringIO):
    """A standard output that takes nothing."""

    def write(self, _: str) -> int:
        raise ValueError("I/O operation on closed file")


def test_metrics_that_cannot_be_told_fail_no_task(deployed: Deployed, db: Database[Any]) -> None:  # F83
    deployed.stdout = Closed()
    add(db, "noop")

    assert deployed.invoke("execute")["done"] == 1
    assert deployed.invoke("reclaim")["errors"] == 0
    assert deployed.metrics() == []


# reclaim


def test_a_run_of_reclaim_prints_one_line_and_all_gauges(deployed: Deployed) -> None:
    deployed.invoke("reclaim")

    assert [line["message"] for line in deployed.log()] == ["reclaimed"]
    [line] = deployed.metrics()
    assert set(metrics_in(line)) == set(GAUGES)
    assert {name: line[name] for name in GAUGES if name != "clock_skew_seconds"} == {
        "due_fresh": [0], "due_retry": [0], "oldest_due_age_seconds": [0], "dead_letters": [0],
    }  # fmt: skip


def test_the_gauges_tell_what_waits(deployed: Deployed, db: Database[Any], dead: Tasks) -> None:
    began = monotonic()
    now = ServerClock(db).now()
    add(db, "noop", "noop", due_at=now - timedelta(minutes=10))
    add(db, "noop", lane="retry", due_at=now)
    bury(dead, [letter(now) for _ in range(3)])

    deployed.invoke("reclaim")
    took = monotonic() - began

    found = told(deployed)
    assert (found["due_fresh"], found["due_retry"], found["dead_letters"]) == ([2], [1], [3])
    [age] = found["oldest_due_age_seconds"]
    assert 600 - CLOCKS <= age <= 600 + took + CLOCKS


@pytest.mark.parametrize("hours", [-2, 0, 2])
def test_the_skew_is_by_how_much_the_database_is_ahead(deployed: Deployed, hours: int) -> None:
    skew = timedelta(hours=hours)
    warm = deployment()
    context = warm.reclaim_context
    clock = ServerClock(context.tasks.database, wall=lambda: datetime.now(UTC).timestamp() - skew.total_seconds())
    warm.reclaim_context = replace(context, clock=clock)
    deployed.commands()

    began = monotonic()
    deployed.invoke("reclaim")
    took = monotonic() - began

    [found] = told(deployed)["clock_skew_seconds"]
    assert abs(found - skew.total_seconds()) <= took + CLOCKS


def test_what_could_not_be_measured_is_not_told(deployed: Deployed, db: Database[Any]) -> None:
    deployed.invoke("reclaim")
    told(deployed)
    data = {"failCommands": ["aggregate"], "appName": "tidemill-reclaim", "errorCode": INTERRUPTED}
    db.client.admin.command("configureFailPoint", "failCommand", mode={"times": 100}, data=data)
    try:
        assert deployed.invoke("reclaim")["errors"]
    finally:
        db.client.admin.command("configureFailPoint", "failCommand", mode="off")

    assert told(deployed).keys() == {"clock_skew_seconds"}  # whose absence HeartbeatAlarm listens for


def test_a_lost_task_is_a_retry_or_a_failure_like_others_but_took_no_time(
    deployed: Deployed, db: Database[Any]
) -> None:
    lease = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    lost = {"status": "processing", "attempts": 1, "lease": lease, "lane": "retry"}
    add(db, "noop", **lost)  # the first loss, which is refunded
    add(db, "noop", "noop", **lost, crashes=1)
    add(db, "noop", **lost, crashes=1, max_retries=0)
    add(db, "noop", expires_at=LONG_AGO)
    add(db, "noop", queue=7)  # which nobody can claim

    report = deployed.invoke("reclaim")

    found = told(deployed)
    assert (report["reclaimed"], report["failed"], report["expired"], report["quarantined"]) == (3, 1, 1, 1)
    assert {name: values for name, values in found.items() if name not in GAUGES} == {
        "retries_total": [2], "failed": [3], "retry_exhausted_total": [1],
    }  # fmt: skip


# archive, operate, enqueue


@pytest.fixture
def refusing(
    deployed: Deployed,  # noqa: ARG001 - its environment
    dead: Tasks,
) -> None:
    """A bucket that takes no object, the first for what it is; two letters to export."""
    blames: list[Blame] = ["object"]

    def put(_key: str, _body: bytes) -> None:
        raise ExportError("AccessDenied", blame=blames.pop() if blames else "bucket")

    bury(dead, [letter(LONG_AGO) for _ in range(2)])
    deployment().put = put


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize(
    ("function", "event", "refused", "failed"),
    [("archive", None, "export_refused", "export_failed"), ("operate", {"op": "dlq.export"}, "refused", "failed")],
)
def test_an_export_tells_of_puts_that_failed_and_of_letters_that_were_refused(
    deployed: Deployed, function: str, event: Any, refused: str, failed: str
) -> None:
    report = deployed.invoke(function, event)

    assert report[refused] == 1
    assert report[failed] > 0
    assert told(deployed) == {"failed_exports": [report[refused] + report[failed]]}


@pytest.mark.usefixtures("refusing")
def test_an_archive_that_fails_half_way_tells_of_them_too(deployed: Deployed, db: Database[Any]) -> None:
    add(db, "noop", status="failed", finished_at=LONG_AGO)
    data = {"failCommands": ["insert"], "appName": "tidemill-archive", "errorCode": INTERRUPTED}
    db.client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)

    with pytest.raises(UnavailableError):
        deployed.invoke("archive")

    [line] = deployed.log()
    assert told(deployed) == {"failed_exports": [line["export_refused"] + line["export_failed"]]}


def test_the_other_functions_have_nothing_to_tell(deployed: Deployed) -> None:
    deployed.post({"name": "noop", "payload": {}})
    deployed.invoke("archive")
    deployed.invoke("operate", sample("operate_queue_list"))
    with pytest.raises(InvalidRequestError):
        deployed.invoke("reclaim", {"unknown": 1})

    assert deployed.metrics() == []


def test_enqueue_does_not_even_load_them() -> None:
    code = f"""
import sys
sys.path[:0] = [{str(ROOT / "layers/core")!r}, {str(ROOT / "functions/enqueue")!r}]
import app
assert "tidemill.bootstrap" in sys.modules
sys.exit("tidemill.aws.metrics" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr
