"""The model against the real thing, the same examples each time; and that it sees what is wrong."""

from __future__ import annotations

import threading
from typing import Any, Final

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from pymongo import MongoClient

from tests.databases import make
from tidemill.dead_letters import redrive_writes
from tidemill.store import settle
from tidemill.store.settle import Settlement
from tidemill.testing import Mongod
from tools.chaos.model import survive
from tools.chaos.model.actions import Action, meanwhile, one_after_the_other, possible
from tools.chaos.model.comparing import BrokenError, difference
from tools.chaos.model.machine import Machine, machine
from tools.chaos.model.moves import MOVES
from tools.chaos.model.run import HOSTILE, chosen
from tools.chaos.model.world import World

EXAMPLES: Final = 12
STEPS: Final = 80
REALLY_DONE: Final = (
    "claimed", "claimed by a claimer", "claimed malformed", "executed", "settled", "released", "extended", "cancelled",
    "hurried", "moved", "exported", "redriven", "redrive refused", "purged", "repeated enqueue", "paused or resumed",
    "retries held or freed",
    "reclaim: reclaimed", "reclaim: failed", "reclaim: expired", "reclaim: adopted", "reclaim: quarantined",
)  # fmt: skip
"""What a rule may do in vain."""


@pytest.fixture
def tried(client: MongoClient[dict[str, Any]]) -> type[Machine]:
    """The machine on a database of its own."""
    return machine(make(client))


def run(tried: type[Machine], *, seed: int, examples: int = EXAMPLES) -> None:
    """Run the examples that belong to *seed*, and leave them as they are should one break."""
    how = settings(chosen(examples, STEPS), phases=(Phase.generate,))
    run_state_machine_as_test(hypothesis.seed(seed)(tried), settings=how)


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_every_document_is_as_the_model_says(tried: type[Machine], seed: int) -> None:
    run(tried, seed=seed)

    assert (tried.ended["examples"], tried.ended["lost"]) == (EXAMPLES, 0)


def test_every_rule_does_what_it_is_for_before_long(tried: type[Machine]) -> None:
    named = [*(f"rule {name}" for name in MOVES), *REALLY_DONE, *HOSTILE]

    for seed in range(10, 20):
        run(tried, seed=seed, examples=4)
        if all(tried.did[what] for what in named):
            break

    assert [what for what in named if not tried.did[what]] == []


def no_verdict(*_: object) -> bool:
    return True


def closed_by_nobody(_dead: object, letters: list[Any], **_: object) -> int:
    return len(letters)


FAULTS: Final[dict[str, tuple[object, str, object]]] = {
    "a late settle is told as settled": (settle, "_is_mine", no_verdict),
    "a crash is not counted": (Settlement, "is_crash", property(lambda _: False)),
    "a redrive leaves its letter open": (redrive_writes, "close", closed_by_nobody),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(tried: type[Machine], monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(*FAULTS[fault])

    with pytest.raises(BrokenError):
        run(tried, seed=1)


def test_what_another_thread_sends_is_no_call_to_disturb(client: MongoClient[dict[str, Any]]) -> None:
    disturbed: list[threading.Thread] = []

    with meanwhile(lambda: disturbed.append(threading.current_thread()), before_call=2):
        client.admin.command("ping")
        driver = threading.Thread(target=client.admin.command, args=("ping",))
        driver.start()
        driver.join()
        client.admin.command("ping")

    assert disturbed == [threading.current_thread()]


def test_a_run_ends_in_time_and_tells_what_it_did(mongod: Mongod) -> None:
    found = survive(mongod.uri, seconds=0.5, seed=7)

    assert found.broken == []
    assert found.lost == 0
    assert found.accepted == found.done + found.cancelled + found.dead
    assert "a second" in found.notes[0]


def test_what_breaks_is_told_with_its_seed_and_its_steps(mongod: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.chaos.model.run.SHRINKING_SEC", (0.1, 0.1))
    monkeypatch.setattr(*FAULTS["a late settle is told as settled"])

    [told] = survive(mongod.uri, seconds=20, seed=1).broken

    assert told.startswith("seed 1000004: BrokenError: ")
    assert "state.then(" in told


@pytest.mark.parametrize(
    ("wanted", "stored", "told"),
    [
        ({"status": "done", "n": 1}, {"status": "done", "n": 2}, "(done): n is 2 and not 1"),
        ({"status": "done"}, None, "is not there: {'status': 'done'}"),
        (None, {"status": "done"}, "is there"),
    ],
)
def test_a_difference_names_the_fields(wanted: Any, stored: Any, told: str) -> None:
    assert difference(wanted, stored) == told


def test_a_use_case_may_go_by_what_it_read_before_another_was_done() -> None:
    before, after, late = (World(tasks={"1": {"step": step}}) for step in ("before", "after", "late"))
    reads = Action(
        kind="redrive",
        name="",
        do=list,
        steps=lambda world: [world],
        late_steps=lambda read, world: [late] if (read, world) == (before, after) else [],
    )
    nothing = Action(kind="reclaim", name="", do=list, steps=lambda world: [world])
    other = Action(kind="archive", name="", do=list, steps=lambda _: [after])

    assert late in possible(reads, other, before)
    assert late in possible(one_after_the_other(nothing, reads), other, before)
