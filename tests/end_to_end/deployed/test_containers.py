"""What a container goes through: its start, its reuse, its end; and where it may write."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.deployed.conftest import PYTHON, Deploy
from tests.end_to_end.deployed.container import unprivileged
from tests.end_to_end.deployed.stack import StackAtWork, sample

ROUNDS = 20
BATCHES, BATCH = 5, 100
ALONE = {"EnqueueFunction": {"EXECUTE_FUNCTION": ""}, "ExecuteFunction": {"LINGER_SEC": "0"}}
USUAL: dict[str, Any] = {
    "EnqueueFunction": sample("enqueue_to_cancel"),
    "ExecuteFunction": sample("tick"),
    "ReclaimFunction": sample("reclaim"),
    "ArchiveFunction": sample("archive"),
    "OperateFunction": sample("operate_queue_list"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a function's containers have spent so far."""

    cpu_ms: float
    log_bytes: int

    @classmethod
    def by(cls, stack: StackAtWork, function: str) -> Spent:
        living = stack.cloud.containers(function)
        return cls(cpu_ms=sum(one.cpu_ms for one in living), log_bytes=len(stack.cloud.log(function).encode()))


def connections(stack: StackAtWork, role: str) -> int:
    """How many connections MongoDB has from a function of this stack, at work or not, but for those of monitoring."""
    every = stack.db.client.admin.aggregate(
        [
            {"$currentOp": {"allUsers": True, "idleConnections": True, "localOps": True}},
            {"$match": {"appName": f"tidemill-{role}", "desc": {"$regex": "^conn"}}},
        ]
    )
    return len({one["desc"] for one in every})


@pytest.mark.parametrize("function", USUAL)
def test_a_function_can_be_imported_with_its_layers_alone_and_knows_nobody(
    stack_code: Callable[[str], list[Path]], function: str
) -> None:
    task, *layers = stack_code(function)

    says = "import app, sys; print(sys.modules['tidemill'].__file__, 'boto3' in sys.modules)"
    imported = subprocess.run(
        unprivileged([str(PYTHON), "-S", "-c", says]),  # -S: without what the runtime brings
        env={"PYTHONPATH": ":".join(map(str, [task, *layers]))},
        cwd=task,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (imported.stderr, imported.returncode) == ("", 0)
    assert imported.stdout.split() == [str(layers[0] / "tidemill/__init__.py"), "False"]


def test_a_warm_container_is_used_again_with_the_connections_it_has(deploy: Deploy) -> None:
    # Nobody is woken, so that each function is alone with what it does.
    stack = deploy(variables=ALONE).start()

    for function, event in USUAL.items():
        stack.cloud.recall(function)
        counted = []
        spent = [Spent.by(stack, function)]
        for _ in range(ROUNDS):
            stack.invoke(function, event)
            counted.append(connections(stack, role(function)))
            spent.append(Spent.by(stack, function))
        assert 0 < counted[-1] <= counted[1], function
        stack.table.add_cost(
            function,
            cpu_ms=(spent[-1].cpu_ms - spent[1].cpu_ms) / (ROUNDS - 1),
            log_bytes=(spent[-1].log_bytes - spent[1].log_bytes) / (ROUNDS - 1),
        )

    usual = stack.cloud.reports[-ROUNDS * len(USUAL) :]
    stack.table.add_usual(usual)
    assert len({one.pid for one in usual}) == len(USUAL)
    reads = Counter(call.caller for call in stack.calls("secretsmanager:GetSecretValue"))
    starts = Counter(one.function for one in stack.cloud.reports if one.init_ms is not None)
    assert {caller.partition(".")[2]: count for caller, count in reads.items()} == starts


def test_a_backlog_is_worked_off_by_one_invocation(deploy: Deploy) -> None:
    stack = deploy(variables=ALONE).start()
    for _ in range(BATCHES):
        assert stack.http("enqueue_batch", {"tasks": [{"name": "noop", "payload": {}}] * BATCH})[0] == 202
    enqueued = [one.duration_ms for one in stack.cloud.reports if one.function == "EnqueueFunction"]

    before = Spent.by(stack, "ExecuteFunction")
    report = stack.invoke("ExecuteFunction", sample("tick"))
    after = Spent.by(stack, "ExecuteFunction")

    assert (report["claimed"], report["done"]) == (BATCHES * BATCH, BATCHES * BATCH)
    took = stack.cloud.reports[-1].duration_ms
    stack.table.note(
        f"{BATCHES * BATCH} noops: {took / BATCHES / BATCH:.2f} ms each in one executor, "
        f"{(after.cpu_ms - before.cpu_ms) / BATCHES / BATCH:.2f} ms of them on a processor, "
        f"{(after.log_bytes - before.log_bytes) / BATCHES / BATCH:.0f} bytes logged; "
        f"taken in by {BATCH} in {min(enqueued):.0f} ms"
    )


def role(function: str) -> str:
    return function.removesuffix("Function").lower()


def test_an_executor_whose_function_will_not_stop_ends_itself_and_the_next_one_is_new(stack: StackAtWork) -> None:
    [before] = stack.cloud.containers("ExecuteFunction")
    task_id = stack.post("stubborn", {"card": "S3cr3t"})
    stack.ends(task_id, status="failed")
    stack.cloud.calm()

    [ended] = [one for one in stack.cloud.reports if one.how == "exit"]
    assert stack.cloud.tick("ExecuteFunction").result(60).error is None

    after = stack.cloud.reports[-1]
    assert (ended.pid, ended.init_ms) == (before.pid, None)
    assert after.init_ms is not None
    assert stack.said("recycled", "ExecuteFunction") != []
    assert stack.metrics("recycled") == [1]


def test_nothing_can_be_written_to_but_tmp_and_nothing_was(
    stack: StackAtWork, stack_code: Callable[[str], list[Path]], scratch: Path
) -> None:
    task_id = stack.post("looks_around", {"tmp": str(scratch)})

    told = stack.ends(task_id)["result"]

    assert told == {"task_folder": "PermissionError", "layer": "PermissionError", "tmp": None, "has_home": False}
    for folder in stack_code("ExecuteFunction"):
        assert list(folder.rglob("written.txt")) == []


def test_the_layers_bring_bytecode_for_this_python(stack_code: Callable[[str], list[Path]]) -> None:
    [_, opt] = stack_code("EnqueueFunction")

    assert any(opt.glob("tidemill/__pycache__/bootstrap.*.pyc"))
