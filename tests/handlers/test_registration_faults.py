"""Releases with a module that cannot be imported, or with a registration that is refused: what runs, and what waits."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.builders import document
from tests.handlers.conftest import Deployed
from tests.handlers.test_enqueue_recurring import event as occurrence
from tidemill import Queue, UnknownTaskError
from tidemill.clock import ServerClock
from tidemill.control.task_types import list_registered_names

DAY = timedelta(days=1)
SECRET = "S3cr3t"


class Release:
    """A package of task modules that changes from release to release.

    The names of its tasks begin with that of the package: all tests of a process share one registry. What a removed or
    failed module registered is forgotten by the next load, as in a process of its own.
    """

    def __init__(self, folder: Path, deployed: Deployed) -> None:
        self.name = f"jobs_{uuid.uuid4().hex[:8]}"
        self._folder = folder / self.name
        self._folder.mkdir()
        (self._folder / "__init__.py").touch()
        self._deployed = deployed

    def task(self, name: str) -> str:
        return f"{self.name}.{name}"

    def write(self, module: str, *names: str, begin: str = "", end: str = "", options: str = "") -> None:
        """Write a module with a function for each of *names*, which returns its name."""
        functions = "".join(
            f"@task({self.task(name)!r}, http=True{options})\ndef {name}(payload):\n    return {name!r}\n\n\n"
            for name in names
        )
        text = f"from tidemill import task\n{begin}\n\n{functions}{end}\n"
        (self._folder / f"{module}.py").write_text(text, encoding="utf-8")

    def remove(self, module: str) -> None:
        (self._folder / f"{module}.py").unlink()

    def deploy(self, release: str = "1", **variables: str) -> None:
        self.forget()
        self._deployed.set(TASK_PACKAGE=self.name, AWS_LAMBDA_FUNCTION_VERSION=release, **variables)

    def forget(self) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == self.name]:
            del sys.modules[name]


@pytest.fixture
def release(deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Release]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file may change twice in a second
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Release(tmp_path, deployed)
    yield made
    made.forget()


def due(db: Database[Any], name: str, *, age: timedelta = DAY, **fields: Any) -> ObjectId:
    now = ServerClock(db).now()
    task_id: ObjectId = db.tasks.insert_one(
        document(now - age, name=name, due_at=now - timedelta(seconds=1), **fields)
    ).inserted_id
    return task_id


def get(db: Database[Any], task_id: ObjectId) -> dict[str, Any]:
    [found] = db.tasks.find({"_id": task_id})
    return dict(found)


def waits(db: Database[Any], task_id: ObjectId) -> bool:
    """Return whether the task was put off as one that waits for another release."""
    task = get(db, task_id)
    return (task["status"], task["attempts"], task["due_at"] > ServerClock(db).now()) == ("pending", 0, True)


def test_a_module_that_fails_leaves_the_others_at_work(deployed: Deployed, db: Database[Any], release: Release) -> None:
    release.write("billing", "bill")
    release.write("mail", "send")
    release.deploy()
    deployed.invoke("execute")
    release.write("billing", "bill", begin="import no_such_module")
    release.deploy("2")
    bill, send = due(db, release.task("bill")), due(db, release.task("send"))

    report = deployed.invoke("execute")

    assert (report["done"], report["snoozed"], report["failed"]) == (1, 1, 0)
    assert get(db, send)["status"] == "done"
    assert waits(db, bill)


def test_a_task_that_waits_is_looked_at_again_within_a_minute(
    deployed: Deployed, db: Database[Any], release: Release
) -> None:
    release.write("billing", "bill")
    release.deploy()
    deployed.invoke("execute")
    release.write("billing", begin="raise OSError")
    release.deploy("2")
    task_ids = [due(db, release.task("bill"), age=age) for age in (timedelta(0), DAY)]

    deployed.invoke("execute")

    young, old = (get(db, task_id)["due_at"] - get(db, task_id)["updated_at"] for task_id in task_ids)
    assert timedelta(seconds=14) < young < timedelta(seconds=16)
    assert timedelta(seconds=59) < old < timedelta(seconds=61)


def test_the_next_release_without_the_fault_runs_what_waited(
    deployed: Deployed, db: Database[Any], release: Release
) -> None:
    release.write("billing", "bill")
    release.deploy()
    deployed.invoke("execute")
    release.write("billing", begin="1 / 0")
    release.deploy("2")
    bill = due(db, release.task("bill"))
    deployed.invoke("execute")
    Queue(db).retry_now(bill)

    release.write("billing", "bill")
    release.deploy("3")
    deployed.invoke("execute")

    assert get(db, bill)["status"] == "done"
    assert db.task_types.count_documents({"fault": {"$exists": True}}) == 0


def test_explain_names_the_fault_and_what_to_do(deployed: Deployed, db: Database[Any], release: Release) -> None:
    release.write("billing", "bill")
    release.deploy()
    deployed.invoke("execute")
    release.write("billing", begin="import no_such_module")
    release.deploy("2")
    bill = due(db, release.task("bill"))
    deployed.invoke("execute")

    explanation = Queue(db).explain(bill)

    assert explanation is not None
    assert [reason.code for reason in explanation.reasons][:2] == ["registration_fault", "not_due"]
    message = explanation.reasons[0].message
    assert message.startswith("Executors of release 2 cannot run it since ")
    place = f"{release.name}/billing.py:2: the task module {release.name}.billing cannot be imported: "
    assert f": {place}ModuleNotFoundError: No module named 'no_such_module' " in message
    assert message.endswith("They put it off without an attempt. Deploy a release without the fault.")


def test_each_invocation_logs_the_faults_and_counts_them(deployed: Deployed, release: Release) -> None:
    release.write("billing", begin="import no_such_module")
    release.write("mail", "send", options=", timeout=0")
    release.deploy()

    for _ in range(2):
        deployed.invoke("execute")

    lines = [line for line in deployed.log() if line["message"] == "registration_faults"]
    assert [line["level"] for line in lines] == ["WARNING"] * 2
    assert f"{release.name}/billing.py:2: " in lines[0]["reason"]
    assert f"{release.name}/mail.py:4: the timeout of " in lines[0]["reason"]
    assert [line["registration_faults"] for line in deployed.metrics() if "registration_faults" in line] == [[2.0]] * 2


def test_a_release_without_faults_says_nothing_of_them(deployed: Deployed, release: Release) -> None:
    release.write("mail", "send")
    release.deploy()

    deployed.invoke("execute")

    assert "registration_faults" not in deployed.stdout.getvalue()


def test_no_name_is_retired_while_a_module_of_its_package_fails(
    deployed: Deployed, db: Database[Any], release: Release
) -> None:
    release.write("billing", "bill")
    release.write("mail", "send")
    release.deploy()
    deployed.invoke("execute")
    release.write("billing", begin="import no_such_module")
    release.remove("mail")
    release.write("letters", "post")
    release.deploy("2")

    deployed.invoke("execute")

    assert {release.task(name) for name in ("bill", "send", "post")} <= list_registered_names(db)
    assert deployed.post({"name": release.task("bill"), "payload": {}}).status == 202
    release.write("billing", "bill")
    release.deploy("3")
    deployed.invoke("execute")
    assert release.task("send") not in list_registered_names(db)


def test_a_name_that_nobody_ever_registered_fails_beside_a_module_that_fails(
    deployed: Deployed, db: Database[Any], release: Release
) -> None:
    release.write("billing", begin="import no_such_module")
    release.deploy()
    unknown = due(db, release.task("unknown"))

    deployed.invoke("execute")

    assert (get(db, unknown)["status"], get(db, unknown)["reason"]) == ("failed", "unknown_task")


def test_an_executor_whose_modules_all_fail_runs_and_takes_nothing_it_cannot_run(
    deployed: Deployed, db: Database[Any], release: Release
) -> None:
    release.write("billing", "bill")
    release.deploy()
    deployed.invoke("execute")
    release.write("__init__", begin="raise SystemExit")
    release.deploy("2")
    bill = due(db, release.task("bill"))

    report = deployed.invoke("execute")

    assert (report["snoozed"], report["failed"], report["errors"]) == (1, 0, 0)
    assert waits(db, bill)


def test_a_module_that_failed_for_a_moment_is_imported_again_by_the_next_invocation(
    deployed: Deployed, db: Database[Any], release: Release, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    release.write("billing", "bill", begin=f"from pathlib import Path\nassert Path({str(there)!r}).exists()")
    release.deploy()
    deployed.invoke("execute")
    there.touch()
    bill = due(db, release.task("bill"))

    deployed.invoke("execute")

    assert get(db, bill)["status"] == "done"


# Refused registrations


def test_a_timeout_above_the_limit_stops_that_task_alone(  # A07
    deployed: Deployed, db: Database[Any], release: Release
) -> None:
    release.write("mail", "send", "post", options=", timeout=30")
    release.deploy()
    deployed.invoke("execute")
    release.remove("mail")
    release.write("letters", "send", end=f"task({release.task('post')!r}, timeout=60)(send)")
    release.deploy("2", MAX_TASK_TIMEOUT_SEC="50")
    send, post = due(db, release.task("send")), due(db, release.task("post"))

    deployed.invoke("execute")

    assert get(db, send)["status"] == "done"
    assert waits(db, post)
    explanation = Queue(db).explain(post)
    assert explanation is not None
    assert "is 60 s, above MAX_TASK_TIMEOUT_SEC, which is 50; lower it" in explanation.reasons[0].message


WAYS: dict[str, Callable[[Deployed, Database[Any], dict[str, Any]], object]] = {
    "direct": lambda deployed, _, job: deployed.invoke("enqueue", job),
    "schedule": lambda deployed, _, job: deployed.invoke("enqueue", occurrence(tasks=[job])),
    "enqueue": lambda _, db, job: Queue(db).enqueue(job["name"], {}),
    "enqueue_many": lambda _, db, job: Queue(db).enqueue_many([job]),
}


@pytest.mark.parametrize("enqueue", WAYS.values(), ids=WAYS)
def test_a_name_that_was_refused_from_the_start_is_refused_at_each_enqueue(  # A07
    deployed: Deployed,
    db: Database[Any],
    release: Release,
    enqueue: Callable[[Deployed, Database[Any], dict[str, Any]], object],
) -> None:
    release.write("mail", "send", options=", timeout=60")
    release.deploy(MAX_TASK_TIMEOUT_SEC="50")
    deployed.invoke("execute")

    with pytest.raises(UnknownTaskError, match=rf"mail\.py:4: the timeout of '{release.name}\.send' is 60 s"):
        enqueue(deployed, db, {"name": release.task("send"), "payload": {}})
    answer = deployed.post({"name": release.task("send"), "payload": {}})

    assert (answer.status, answer.fields) == (422, {"name"})
    assert "no executor has registered a task function of this name: its registration has a fault" in answer.text
    assert "mail.py" not in answer.text
    assert db.tasks.count_documents({}) == 0


def test_a_task_that_was_enqueued_before_its_name_was_refused_waits(  # A07
    deployed: Deployed, db: Database[Any], release: Release
) -> None:
    release.write("mail", "send", options=", timeout=60")
    release.deploy(MAX_TASK_TIMEOUT_SEC="50")
    send = due(db, release.task("send"))

    deployed.invoke("execute")
    assert waits(db, send)
    Queue(db).retry_now(send)
    release.deploy(MAX_TASK_TIMEOUT_SEC="60")
    deployed.invoke("execute")

    assert get(db, send)["status"] == "done"
    assert deployed.post({"name": release.task("send"), "payload": {}}).status == 202


def test_a_rotated_password_forgets_no_fault(deployed: Deployed, db: Database[Any], release: Release) -> None:
    release.write("mail", "send", "post", options=", timeout=30")
    release.deploy()
    deployed.invoke("execute")
    release.write("mail", "post", end=f"task({release.task('send')!r}, timeout=0)(post)")
    release.deploy("2")
    deployed.invoke("execute")
    send = due(db, release.task("send"))

    deployed.cool_down()  # the modules stay imported
    deployed.invoke("execute")

    assert waits(db, send)


def test_what_a_failed_import_knows_reaches_no_log_and_no_document(
    deployed: Deployed, db: Database[Any], release: Release
) -> None:  # F80
    release.write("billing", "bill")
    release.deploy()
    deployed.invoke("execute")
    release.write("billing", begin=f"raise ConnectionError('mongodb://jobs:{SECRET}@db/')")
    release.deploy("2")
    due(db, release.task("bill"), payload={"card": SECRET})

    deployed.invoke("execute")

    assert "ConnectionError (billing.py:2 in <module>)" in deployed.stdout.getvalue()
    assert SECRET not in deployed.stdout.getvalue()
    assert SECRET not in str(list(db.task_types.find()))


def test_a_fault_is_written_once_and_not_at_each_start(deployed: Deployed, db: Database[Any], release: Release) -> None:
    release.write("billing", "bill")
    release.deploy()
    deployed.invoke("execute")
    release.write("billing", begin="import no_such_module")
    release.deploy("2")
    deployed.invoke("execute")
    assert [found["fault"]["release"] for found in db.task_types.find({"fault": {"$exists": True}})] == ["2"]
    deployed.cool_down()
    deployed.commands()

    deployed.invoke("execute")

    assert "update" not in {name for name, _ in deployed.commands()}
