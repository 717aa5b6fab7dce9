"""Tasks enqueued by their function or by a `TaskRef`: the payload is checked, and the result has a type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, NotRequired, assert_type
from uuid import UUID

import pytest
from bson import ObjectId
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PlainSerializer, SecretStr, computed_field
from pymongo import MongoClient
from pymongo.database import Database
from typing_extensions import TypedDict

from tests.handlers.blocking import MakeQueue
from tidemill import (
    PRESETS,
    Handle,
    InvalidRequestError,
    NewTask,
    Queue,
    ResultError,
    TaskCancelledError,
    TaskContext,
    TaskFailedError,
    TaskRef,
    UnknownTaskError,
)
from tidemill.model import TaskId
from tidemill.registry import Registry
from tidemill.testing import drain

PATIENT = PRESETS["patient"].max_retries
SOON = timedelta(seconds=20)
registry = Registry()


class Invoice(BaseModel):
    order: str
    amount: Decimal = Decimal("1.50")


class Receipt(BaseModel):
    number: int
    paid: Decimal


@dataclass
class Letter:
    to: str
    on: date | None = None


class Parcel(TypedDict):
    to: str
    weight: NotRequired[Decimal]


@registry.task("send_invoice")
def send_invoice(payload: Invoice, ctx: TaskContext) -> Receipt:
    return Receipt(number=ctx.attempt, paid=payload.amount)


@registry.task("send_letter")
async def send_letter(payload: Letter) -> str:
    return f"{payload.to}: {payload.on}"


@registry.task("send_parcel")
def send_parcel(payload: Parcel) -> None:
    """Return nothing."""


@registry.task("send_anything")
def send_anything(payload: dict[str, Any]) -> Any:
    return payload


@registry.task("refuse")
def refuse(_: Invoice) -> Receipt:
    raise RuntimeError("the mail server is closed")


@registry.task("answer_oddly")
def answer_oddly(_: Invoice) -> Receipt:
    return {"number": "many"}  # type: ignore[return-value]


@pytest.fixture
def queue(db: Database[Any], make_queue: MakeQueue) -> Queue:
    return make_queue(db)


def refuse_reason(call: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the problems of the request that *call* makes."""
    with pytest.raises(InvalidRequestError) as refused:
        call()
    return [(problem.field, problem.message) for problem in refused.value.problems]


def test_a_function_is_enqueued_with_its_model_and_its_result_read_as_one(queue: Queue, db: Database[Any]) -> None:
    handle = queue.enqueue(send_invoice, Invoice(order="order-7"), idempotency_key="k", priority=3)

    assert_type(handle, Handle[Receipt])
    assert isinstance(handle.id, ObjectId)
    assert repr(handle) == f"Handle(id={handle.id!r})"
    [task] = db.tasks.find()
    assert (task["name"], task["payload"], task["priority"]) == (
        "send_invoice", {"order": "order-7", "amount": "1.50"}, 3
    )  # fmt: skip
    assert handle.status() == "pending"
    assert drain(db, registry=registry).done == 1
    receipt = handle.wait(SOON)
    assert_type(receipt, Receipt)
    assert receipt == Receipt(number=1, paid=Decimal("1.50"))
    assert handle.status() == "done"
    assert queue.enqueue(send_invoice, Invoice(order="order-7"), idempotency_key="k", priority=3) == handle


def test_a_coroutine_function_a_dataclass_and_a_typed_dict_have_their_types(queue: Queue, db: Database[Any]) -> None:
    letter = queue.enqueue(send_letter, Letter(to="Ada", on=date(2031, 7, 1)))
    content: Parcel = {"to": "Ada", "weight": Decimal("0.1")}
    parcel = queue.enqueue(send_parcel, content)
    plain = queue.enqueue(send_anything, {"n": 1})
    drain(db, registry=registry)

    assert_type(letter, Handle[str])
    assert_type(parcel, Handle[None])
    assert letter.wait(SOON) == "Ada: 2031-07-01"
    assert queue.wait(parcel.id, SOON) is None
    assert plain.wait(SOON) == {"n": 1}


def test_a_reference_stands_for_a_function_that_is_not_imported(queue: Queue, db: Database[Any]) -> None:
    reference = TaskRef[Invoice, Receipt]("send_invoice")
    handle = queue.enqueue(reference, Invoice(order="order-7", amount=Decimal(2)))
    drain(db, registry=registry)

    assert_type(handle, Handle[Receipt])
    assert handle.wait(SOON) == Receipt(number=1, paid=Decimal(2))
    assert repr(reference) == "TaskRef('send_invoice')"


def test_a_reference_without_types_takes_what_can_be_stored(queue: Queue, db: Database[Any]) -> None:
    reference: TaskRef[Any, Any] = TaskRef("send_invoice")

    for payload in (Invoice(order="a"), Letter(to="b", on=date(2031, 7, 1)), {"order": "c"}):
        queue.enqueue(reference, payload)

    assert [task["payload"] for task in db.tasks.find().sort("_id")] == [
        {"order": "a", "amount": "1.50"}, {"to": "b", "on": "2031-07-01"}, {"order": "c"}
    ]  # fmt: skip


def test_by_its_name_a_task_is_enqueued_as_before(queue: Queue) -> None:
    task_id = queue.enqueue("send_invoice", {"order": "order-7"})

    assert_type(task_id, TaskId)
    assert isinstance(task_id, ObjectId)
    [first] = queue.enqueue_many([NewTask(name="send_invoice", payload={"order": "x"})])
    assert isinstance(first, ObjectId)


def test_many_have_the_same_options_and_a_handle_each(queue: Queue, db: Database[Any]) -> None:
    orders = (Invoice(order=f"order-{n}", amount=Decimal(n)) for n in range(3))

    handles = queue.enqueue_many(
        send_invoice, orders, queue="bulk", delay=timedelta(seconds=5), retry="patient", timeout=timedelta(minutes=1)
    )

    assert_type(handles, list[Handle[Receipt]])
    stored = list(db.tasks.find().sort("_id"))
    assert [task["_id"] for task in stored] == [handle.id for handle in handles]
    assert {(task["queue"], task["timeout_sec"], task["max_retries"]) for task in stored} == {
        ("bulk", 60.0, PRESETS["patient"].max_retries)
    }
    assert {task["due_at"] - task["created_at"] for task in stored} == {timedelta(seconds=5)}
    drain(db, registry=registry, now=queue.now() + timedelta(seconds=6))
    assert [handle.wait(SOON).paid for handle in handles] == [0, 1, 2]
    assert queue.enqueue_many(send_invoice, []) == []


def test_the_checker_and_the_call_refuse_the_same(queue: Queue, db: Database[Any]) -> None:
    wrong: Any = Receipt(number=1, paid=Decimal(1))
    refusals = [
        refuse_reason(lambda: queue.enqueue(send_invoice, wrong)),
        refuse_reason(lambda: queue.enqueue(TaskRef[Invoice, Receipt]("send_invoice"), {"amount": "x"})),  # type: ignore[arg-type]
        refuse_reason(lambda: queue.enqueue(send_parcel, {"weight": Decimal(1)})),  # type: ignore[arg-type]
        refuse_reason(lambda: queue.enqueue_many(send_invoice, [Invoice(order="a"), wrong])),
    ]

    instance = "Input should be a valid dictionary or instance of Invoice"
    assert refusals == [
        [("payload", instance)],
        [
            ("payload.order", "is missing"),
            ("payload.amount", "Input should be a valid decimal"),
        ],
        [("payload.to", "is missing")],
        [("1.payload", instance)],
    ]
    assert db.tasks.count_documents({}) == 0


def test_a_model_that_was_made_invalid_is_refused(queue: Queue) -> None:
    changed = Invoice(order="a").model_copy(update={"amount": "a lot"})

    assert refuse_reason(lambda: queue.enqueue(send_invoice, changed)) == [
        ("payload.amount", "Input should be a valid decimal")
    ]


class Color(Enum):
    RED = "red"


class Inner(BaseModel):
    at: datetime
    tags: set[str] = set()


class Aliased(BaseModel):
    from_: str = Field(alias="from")


class TwoAliases(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    source: str = Field(validation_alias=AliasChoices("src", "origin"), serialization_alias="written")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    at: datetime
    data: bytes


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.n


NOW = datetime(2031, 7, 1, 9, 0, 0, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (Inner(at=NOW, tags={"a"}), {"at": "2031-07-01T09:00:00.123456Z", "tags": ["a"]}),
        (Aliased(**{"from": "a"}), {"from": "a"}),
        (TwoAliases(source="a"), {"source": "a"}),
        (
            Strict(at=NOW.replace(microsecond=5000), data=b"\xff"),
            {"at": NOW.replace(microsecond=5000), "data": b"\xff"},
        ),
        (Computed(n=2), {"n": 2}),
    ],
)
def test_a_model_is_stored_as_its_function_reads_it_back(
    queue: Queue, db: Database[Any], payload: BaseModel, stored: dict[str, Any]
) -> None:
    read: list[object] = []

    def take(payload: Any) -> None:
        read.append(payload)

    take.__annotations__["payload"] = type(payload)
    registry = Registry()
    queue.enqueue(registry.task("take")(take), payload)

    [task] = db.tasks.find()
    assert task["payload"] == stored
    assert drain(db, registry=registry).done == 1
    assert read == [payload]


class Secretive(BaseModel):
    token: SecretStr


class Lossy(BaseModel):
    inner: list[Annotated[int, PlainSerializer(lambda n: n // 10)]]


class Forgetful(BaseModel):
    kept: int
    left_out: int | None = Field(default=None, exclude=True)


class Opaque(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    held: object


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (Secretive(token=SecretStr("hunter2")), "payload.token"),
        (Lossy(inner=[1]), "payload.inner.0"),
        (Forgetful(kept=1, left_out=2), "payload.left_out"),
        (Opaque(held=object()), "payload"),
        (Strict(at=NOW, data=b""), "payload.at"),
    ],
)
def test_what_would_be_lost_is_refused_and_not_shown(queue: Queue, payload: BaseModel, field: str) -> None:
    [(place, reason)] = refuse_reason(lambda: queue.enqueue(TaskRef[Any, Any]("take"), payload))

    assert place == field
    assert "hunter2" not in reason


def test_what_is_no_registered_function_is_named(queue: Queue) -> None:
    def unregistered(payload: Invoice) -> None: ...

    @functools.wraps(send_invoice)
    def wrapped(payload: Invoice) -> Receipt:
        raise NotImplementedError

    registry.task("one")(unregistered_twice)
    registry.task("two")(unregistered_twice)
    place = "test_queue_typed.test_what_is_no_registered_function_is_named.<locals>.unregistered"
    [(field, reason)] = refuse_reason(lambda: queue.enqueue(unregistered, Invoice(order="a")))
    assert field == "name"
    assert place in reason
    assert reason.endswith('write @task("name") above it, as the first decorator, or use TaskRef(name)')
    assert "is not registered" in refuse_reason(lambda: queue.enqueue(wrapped, Invoice(order="a")))[0][1]
    [(_, both)] = refuse_reason(lambda: queue.enqueue(unregistered_twice, {}))
    assert both.endswith("is registered as one and two: use TaskRef(name)")
    nothing: Any = 7
    assert refuse_reason(lambda: queue.enqueue(nothing, {})) == [
        ("name", "must be a name, a TaskRef or a registered task function, not an int")
    ]
    with pytest.raises(ValueError, match="is no name for a task"):
        TaskRef[Any, Any]("a b")


def unregistered_twice(payload: dict[str, Any]) -> None: ...


def test_a_method_of_an_object_is_found(queue: Queue, db: Database[Any]) -> None:
    class Mailer:
        def send(self, payload: Invoice) -> str:
            return payload.order

    mailer, registry = Mailer(), Registry()
    registry.task("mail")(mailer.send)
    handle = queue.enqueue(mailer.send, Invoice(order="a"))
    drain(db, registry=registry)

    assert handle.wait(SOON) == "a"


def test_the_rules_of_every_enqueue_hold(queue: Queue, db: Database[Any]) -> None:
    db.task_types.insert_one({"_id": "send_letter"})

    with pytest.raises(UnknownTaskError, match="no executor has registered a task function 'send_invoice'"):
        queue.enqueue(send_invoice, Invoice(order="a"))
    big = refuse_reason(lambda: queue.enqueue(send_invoice, Invoice(order="a" * 300_000)))
    assert big == [("payload", "must not be larger than 256 KiB")]
    options: dict[str, Any] = {"delay": 5}
    assert refuse_reason(lambda: queue.enqueue_many(send_invoice, [Invoice(order="a")], **options)) == [
        ("delay", "must be a timedelta, such as timedelta(seconds=10)")
    ]
    options = {"idempotency_key": "k"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'idempotency_key'"):
        queue.enqueue_many(send_invoice, [Invoice(order="a")], **options)


def test_a_typed_task_takes_part_in_the_callers_transaction(db: Database[Any], client: MongoClient[Any]) -> None:
    queue = Queue(db)
    with client.start_session() as session:
        session.start_transaction()
        queue.enqueue(send_invoice, Invoice(order="a"), session=session)
        queue.enqueue_many(send_invoice, [Invoice(order="a")], session=session)
        session.abort_transaction()

    assert db.tasks.count_documents({}) == 0


def test_a_result_of_another_type_is_told_without_its_value(queue: Queue, db: Database[Any]) -> None:
    handle = queue.enqueue(answer_oddly, Invoice(order="a"))
    drain(db, registry=registry)

    with pytest.raises(ResultError) as refused:
        handle.wait(SOON)
    assert str(refused.value) == (
        f"the result of task {handle.id} does not fit Receipt: number: Input should be a valid integer, unable to "
        "parse string as an integer; paid: is missing"
    )


def test_a_failure_and_a_cancellation_end_the_wait(queue: Queue, db: Database[Any]) -> None:
    failing = queue.enqueue(refuse, Invoice(order="a"), max_retries=0)
    cancelled = queue.enqueue(send_invoice, Invoice(order="a"), delay=timedelta(hours=1))
    drain(db, registry=registry)
    cancelled.cancel()

    with pytest.raises(TaskFailedError) as failure:
        failing.wait(SOON)
    assert (failure.value.task_id, failure.value.code) == (failing.id, "RuntimeError")
    assert failure.value.reason == "exhausted"
    assert str(failure.value).startswith(
        f"task {failing.id} failed (exhausted): RuntimeError: the mail server is closed"
    )
    with pytest.raises(TaskCancelledError, match="was cancelled, so it has no result"):
        cancelled.wait(SOON)
    assert (failing.status(), cancelled.status()) == ("failed", "cancelled")


def test_identifiers_of_json_are_read_back(queue: Queue, db: Database[Any]) -> None:
    class Ticket(BaseModel):
        id: UUID
        color: Color

    seen = []
    registry = Registry()

    def keep(payload: Any) -> Any:
        seen.append(payload)
        return payload

    keep.__annotations__ |= {"payload": Ticket, "return": Ticket}
    ticket = Ticket(id=UUID(int=7), color=Color.RED)
    handle = queue.enqueue(registry.task("keep")(keep), ticket)
    drain(db, registry=registry)

    assert seen == [ticket]
    assert handle.wait(SOON) == ticket
