"""Each scenario by all that is seen of it: commands sent, documents left, answers, lines of the log, metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Final

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tests.golden.folding import Folding, as_lines
from tests.golden.golden import check
from tests.golden.scenarios import REGISTERED, SCENARIOS, Scenario, World
from tidemill.documents import TASK_TYPES

_OF_THE_DRIVER: Final = frozenset(
    {"lsid", "$clusterTime", "$db", "txnNumber", "maxTimeMS", "$readPreference", "autocommit", "startTransaction"}
)
_STATEMENTS: Final = ("updates", "deletes")
_ABOUT_THE_SERVER: Final = frozenset({"killSessions", "getMore"})


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_is_seen_as_it_always_was(world: World, scenario: Scenario) -> None:
    scenario.prepare(world)
    world.functions.commands()
    world.functions.stdout.seek(0)
    world.functions.stdout.truncate()

    answer = scenario.act(world)

    folding = Folding(is_numbered=scenario.is_ordered)
    parts = {
        "commands": _commands(world.functions.commands(), folding),
        "documents": _documents(world.db, folding),
        "answer": _answer(answer, folding),
        "log": [as_lines(folding.fold(line)) for line in world.functions.log()],
        "metrics": [as_lines(_sorted_metrics(folding.fold(line))) for line in world.functions.metrics()],
    }
    check(scenario.name, "".join(f"=== {name}\n{''.join(texts)}" for name, texts in parts.items()))


def _documents(db: Database[Any], folding: Folding) -> Iterator[str]:
    for name in sorted(db.list_collection_names()):
        for document in db[name].find(sort=[("_id", 1)]):
            if name == TASK_TYPES and document["_id"] not in REGISTERED:
                continue
            yield f"{name}\n{as_lines(folding.fold(document))}"


def _answer(answer: Any, folding: Folding) -> Iterator[str]:
    if isinstance(answer, list) and any(is_dataclass(part) for part in answer):
        for part in answer:
            yield from _answer(part, folding)
    elif is_dataclass(answer) and not isinstance(answer, type):
        shown = {name: value for name, value in asdict(answer).items() if name != "text"}
        yield as_lines(folding.fold(shown))
    else:
        yield as_lines(folding.fold(answer))


def _commands(commands: Iterable[tuple[str, Mapping[str, Any]]], folding: Folding) -> Iterable[str]:
    """Return each different command once, in the order of their first times; how often it is sent depends on time."""
    found: dict[str, None] = {}
    for name, command in commands:
        if name not in _ABOUT_THE_SERVER:
            for text in _texts(name, command, folding):
                found.setdefault(text)
    return found


def _sorted_metrics(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of metrics by their names, since the order in which they were counted says nothing."""
    for directive in line["_aws"]["CloudWatchMetrics"]:
        directive["Metrics"].sort(key=lambda metric: metric["Name"])
    return dict(sorted(line.items()))


def _texts(name: str, command: Mapping[str, Any], folding: Folding) -> Iterator[str]:
    """Yield the text of a command, or of each of its statements."""
    sent = {key: value for key, value in command.items() if key not in _OF_THE_DRIVER}
    target = sent.pop(name, "")
    in_transaction = "in a transaction " if "autocommit" in command else ""
    head = f"{in_transaction}{name} {folding.fold(target)}"
    statements = next((sent.pop(part) for part in _STATEMENTS if part in sent), None)
    if statements is None:
        yield f"{head}\n{as_lines(folding.fold(_opened(sent)))}"
        return
    rest = folding.fold(sent)
    for statement in statements:
        if target == TASK_TYPES and statement["q"]["_id"] not in REGISTERED:
            continue
        yield f"{head}\n{as_lines(folding.fold(_opened(statement)) | rest)}"


def _opened(value: Mapping[str, Any]) -> dict[str, Any]:
    return dict(RawBSONDocument(value.raw)) if isinstance(value, RawBSONDocument) else dict(value)
