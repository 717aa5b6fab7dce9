"""`tidemill enqueue`: the tasks and refusals of `Queue.enqueue`, for one or many, on a URI or by the function."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo.database import Database

from tests.cli.conftest import CommandLine
from tests.handlers.calls import app
from tests.handlers.lambda_api import replace_lambda_client
from tests.handlers.warm import cool_down
from tidemill import InvalidRequestError, Queue

SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
LATER = SOON + timedelta(days=1)


@pytest.fixture
def queue(operator: CommandLine, db: Database[Any]) -> Queue:  # noqa: ARG001 - its environment
    return Queue(db)


def stored(db: Database[Any]) -> list[dict[str, Any]]:
    return list(db["tasks"].find().sort("_id"))


def write_lines(tmp_path: Path, tasks: Sequence[Any]) -> str:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f"{task if isinstance(task, str) else json.dumps(task)}\n" for task in tasks))
    return str(path)


def make_tasks(count: int) -> list[dict[str, Any]]:
    return [{"name": "registered", "payload": {"number": number}} for number in range(count)]


def test_every_option_is_that_of_the_queue(operator: CommandLine, queue: Queue, db: Database[Any]) -> None:
    retry = {"strategy": "linear", "base_sec": 5.0, "max_sec": 60.0}
    printed = operator.done(
        "enqueue", "registered", "--payload", '{"a": [1, 2.5, null]}', "--queue", "eu", "--priority", "-3",
        "--at", SOON.isoformat(), "--expires", LATER.isoformat(), "--retry", json.dumps(retry),
        "--max-retries", "2", "--timeout", "20s", "--key", "order-7",
    )  # fmt: skip
    repeated = queue.enqueue(
        "registered", {"a": [1, 2.5, None]}, queue="eu", priority=-3, not_before=SOON, expires_at=LATER,
        retry=queue_policy(retry), max_retries=2, timeout=timedelta(seconds=20), idempotency_key="order-7",
    )  # fmt: skip

    [task] = stored(db)
    assert printed.out == f"{task['_id']}\n"
    assert repeated == task["_id"]  # the same key with another request would be refused
    assert task["due_at"].replace(tzinfo=UTC) == SOON


def queue_policy(retry: dict[str, Any]) -> Any:
    from tidemill import Backoff, RetryPolicy  # noqa: PLC0415 - the policy that these options mean

    return RetryPolicy(max_retries=2, backoff=Backoff(**retry))


def test_a_delay_counts_from_now_and_a_preset_is_named(operator: CommandLine, db: Database[Any]) -> None:
    operator.done("enqueue", "registered", "--delay", "5m", "--retry", "conservative")

    [task] = stored(db)
    assert task["payload"] == {}
    assert task["due_at"] - task["created_at"] == timedelta(minutes=5)
    assert task["max_retries"] is not None


@pytest.mark.parametrize("source", ["@file", "-"])
def test_a_payload_is_read_from_a_file_or_from_stdin(
    source: str, operator: CommandLine, db: Database[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text('{"name": "Ada"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"name": "Ada"}')))

    operator.done("enqueue", "registered", "--payload", source)

    assert stored(db)[0]["payload"] == {"name": "Ada"}


def test_a_repeat_with_its_key_is_said_to_be_one(operator: CommandLine, db: Database[Any]) -> None:
    first = operator.done("enqueue", "registered", "--key", "k", "--json").json
    again = operator("enqueue", "registered", "--key", "k")
    other = operator.refused("enqueue", "registered", "--key", "k", "--queue", "eu")

    [task] = stored(db)
    assert first == {"id": str(task["_id"]), "status": "pending", "is_new": True}
    assert (again.status, again.out) == (0, f"{task['_id']}\n")
    assert again.err.startswith("tidemill: the task is not new: ")
    assert other == f"the idempotency key belongs to task {task['_id']}, enqueued with another request"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (("--queue", "no such"), {"queue": "no such"}),
        (("--max-retries", "-1"), {"max_retries": -1}),
        (("--retry", "patiently"), {"retry": "patiently"}),
        (("--timeout", "1d"), {"timeout": timedelta(days=1)}),
        (("--key", " k"), {"idempotency_key": " k"}),
        (("--delay", "400d"), {"delay": timedelta(days=400)}),
        (("--expires", "2020-01-01T00:00:00Z"), {"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}),
    ],
)
def test_a_refusal_has_the_sentence_of_the_queue(
    operator: CommandLine, queue: Queue, db: Database[Any], option: Sequence[str], value: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        queue.enqueue("registered", {}, **value)

    assert operator.refused("enqueue", "registered", *option) == f"{option[0]}: {refused.value.problems[0].message}"
    assert stored(db) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("registred",), "NAME: no executor has registered a task function 'registred', did you mean registered?"),
        (("registered", "--payload", "[1]"), "--payload: must be a JSON object"),
        (("registered", "--payload", '{"a": NaN}'), "--payload: holds NaN or Infinity, which are not JSON"),
        (("registered", "--payload", '{"a": 1, "a": 2}'), "--payload: has a name twice in one object"),
        (
            ("registered", "--payload", '{"secret": '),
            "--payload: is not valid JSON (from character 11 on: expecting value)",
        ),
        (("registered", "--payload", "@nowhere"), "--payload: cannot read nowhere (No such file or directory)"),
        (("registered", "--retry", '{"base": 1}'), "--retry.base: there is no such field"),
        (
            ("registered", "--delay", "1s", "--at", SOON.isoformat()),
            "task: --delay and --at exclude each other",
        ),
        (("--many", "nowhere"), "cannot read nowhere (No such file or directory)"),
        (("--many", "/dev/null"), "nothing was stored: there is no line with a task"),
    ],
)
def test_what_cannot_be_enqueued_is_one_sentence(
    operator: CommandLine, db: Database[Any], arguments: Sequence[str], sentence: str
) -> None:
    assert operator.refused("enqueue", *arguments) == sentence
    assert stored(db) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give either NAME or --many FILE"),
        (("registered", "--many", "x"), "give either NAME or --many FILE"),
        (("--many", "x", "--queue", "eu"), "the lines of --many hold all options of their tasks: leave out the other"),
    ],
)
def test_wrong_usage_is_status_2(operator: CommandLine, arguments: Sequence[str], sentence: str) -> None:
    said = operator("enqueue", *arguments)

    assert (said.status, said.out) == (2, "")
    assert f"tidemill: {sentence}" in said.err


def test_a_database_where_nothing_runs_is_warned_of(operator: CommandLine, db: Database[Any]) -> None:
    db["task_types"].delete_many({})

    said = operator("enqueue", "anything")

    assert said.status == 0
    warning = f"warning: no executor has registered a task function in {db.name} yet: the task waits for one"
    assert said.err == f"tidemill: {warning}\n"


def test_many_tasks_are_read_from_lines(operator: CommandLine, db: Database[Any], tmp_path: Path) -> None:
    keyed = {"name": "registered", "payload": {}, "idempotency_key": "k", "queue": "eu", "delay_sec": 60}
    tasks = [*make_tasks(1001), "", keyed, "  ", keyed]

    said = operator.done("enqueue", "--many", write_lines(tmp_path, tasks))

    assert said.out == "1003 tasks are enqueued, 1 of them by an earlier request with the same key\n"
    found = stored(db)
    assert sorted(task["payload"]["number"] for task in found if task["payload"]) == list(range(1001))
    assert [task["queue"] for task in found if not task["payload"]] == ["eu"]


def test_json_has_a_line_for_each_task(operator: CommandLine, db: Database[Any], tmp_path: Path) -> None:
    said = operator.done("enqueue", "--json", "--many", write_lines(tmp_path, ["", *make_tasks(2)]))

    ids = [str(task["_id"]) for task in stored(db)]
    assert [json.loads(line) for line in said.lines] == [
        {"line": number, "id": task_id, "status": "pending", "is_new": True} for number, task_id in enumerate(ids, 2)
    ]


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ('{"name": "registered", "payload": {}', ["is not valid JSON (from character 37 on: expecting ',' delimiter)"]),
        ("7", ["must be a JSON object"]),
        ({"name": "registred", "payload": {}}, ["name: no executor has registered a task function 'registred', did"]),
        ({"name": "registered", "payload": 1, "quue": 1}, ["payload: Input", "quue: there is no such field, did you"]),
        (
            {"name": "registered", "payload": {}, "expires_at": "2020-01-01T00:00:00Z"},
            ["expires_at: must be later than the task's start"],
        ),
    ],
)
def test_nothing_is_stored_of_lines_with_a_fault(
    operator: CommandLine, db: Database[Any], tmp_path: Path, line: Any, faults: Sequence[str]
) -> None:
    tasks = [*make_tasks(1200), line, *make_tasks(5)]

    said = operator("enqueue", "--many", write_lines(tmp_path, tasks))

    assert (said.status, said.out) == (1, "")
    *found, last = said.err.splitlines()
    assert len(found) == len(faults)
    for problem, fault in zip(found, faults, strict=True):
        assert problem.startswith(f"tidemill: line 1201: {fault}")
    assert last == "tidemill: nothing was stored: correct the lines above, and try again"
    assert stored(db) == []


def test_not_all_of_a_thousand_faults_are_printed(operator: CommandLine, tmp_path: Path) -> None:
    said = operator("enqueue", "--many", write_lines(tmp_path, ["{"] * 1000))

    assert said.err.count("\n") == 21


def test_a_failure_half_way_says_which_lines_are_stored(
    operator: CommandLine, queue: Queue, db: Database[Any], tmp_path: Path
) -> None:
    taken = queue.enqueue("registered", {"other": True}, idempotency_key="k")
    tasks = [*make_tasks(1000), {"name": "registered", "payload": {}, "idempotency_key": "k"}, *make_tasks(1200)]

    refusal = operator.refused("enqueue", "--many", write_lines(tmp_path, tasks))

    assert refusal.startswith("line 1001: idempotency_key: ")
    assert refusal.endswith(
        "; lines 1001 to 2000 are not stored, the 1000 tasks before are, and the lines after are not"
    )
    assert stored(db)[0]["_id"] == taken
    assert len(stored(db)) == 1001


class Platform:
    """A client of Lambda with the real enqueue function; an error of its is answered as Lambda does."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.sizes: list[int] = []

    def invoke(self, **how: Any) -> dict[str, Any]:
        event = json.loads(how["Payload"])
        self.sizes.append(len(event.get("tasks", [event])))
        answer: dict[str, Any] = {"StatusCode": 200}
        try:
            content = self._handle(event)
        except Exception as error:  # noqa: BLE001 - as Lambda's runtime does
            content = {"errorType": type(error).__name__, "errorMessage": str(error)}
            answer["FunctionError"] = "Unhandled"
        return answer | {"Payload": io.BytesIO(json.dumps(content).encode())}

    def _handle(self, event: dict[str, Any]) -> Any:
        if self.error is not None:
            raise self.error
        return app("enqueue").lambda_handler(event, None)


@pytest.fixture
def platform(operator: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:  # noqa: ARG001 - as above
    made = Platform()
    replace_lambda_client(monkeypatch, lambda: made)
    for handler in app("enqueue").logger.handlers:
        monkeypatch.setattr(handler, "stream", io.StringIO())
    cool_down()
    yield made
    cool_down()


def test_the_function_enqueues_the_same_tasks(
    operator: CommandLine, platform: Platform, db: Database[Any], tmp_path: Path
) -> None:
    options = ("--payload", '{"a": 1}', "--at", SOON.isoformat(), "--retry", '{"base_sec": 5}', "--timeout", "20s")
    here = ObjectId(operator.done("enqueue", "registered", *options).out.strip())
    there = ObjectId(operator.done("enqueue", "registered", *options, "--function", "enqueue").out.strip())
    many = operator.done("enqueue", "--many", write_lines(tmp_path, make_tasks(1001)), "--function", "enqueue")

    own = {"_id", "created_at", "updated_at", "due_at", "trace"}
    [one, other] = [
        {name: value for name, value in (db["tasks"].find_one(task_id) or {}).items() if name not in own}
        for task_id in (here, there)
    ]
    assert one == other
    assert many.out == "1001 tasks are enqueued\n"
    assert platform.sizes == [1, 1000, 1]


def test_a_refusal_of_the_function_is_repeated_with_the_number_of_the_line(
    operator: CommandLine, platform: Platform, db: Database[Any], tmp_path: Path
) -> None:
    lines = write_lines(tmp_path, ["", *make_tasks(2), {"name": "registred", "payload": {}}])

    one = operator.refused("enqueue", "registred", "--function", "enqueue")
    many = operator.refused("enqueue", "--many", lines, "--function", "enqueue")

    unknown = "name: no executor has registered a task function 'registred', did you mean registered?"
    assert one == unknown
    assert many == f"line 4: {unknown}; lines 2 to 4 are not stored, and the lines after are not"
    assert stored(db) == []
    assert platform.sizes == [1, 3]


def test_other_errors_of_the_function_keep_their_text(operator: CommandLine, platform: Platform) -> None:
    platform.error = RuntimeError("mongodb://me:secret@db.example.com/")

    assert operator.refused("enqueue", "registered", "--function", "enqueue") == (
        "enqueue failed (RuntimeError): its log says why"
    )
