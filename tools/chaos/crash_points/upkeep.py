"""A database is marked; indexes are made where none are, and made anew where an earlier release made them otherwise."""

from __future__ import annotations

from typing import Final

from tidemill import indexes
from tidemill.documents import TASKS
from tidemill.store.mark import require_mark
from tools.chaos.crash_points.scenario import Scenario
from tools.chaos.crash_points.world import World

_OLD_SEC: Final = 60


def _bare(world: World) -> None:
    world.uses_bare = True
    world.db.client.drop_database(world.bare.name)


def _old(world: World) -> None:
    _bare(world)
    world.bare[TASKS].create_index("queue", name=indexes.CLAIM)
    [retention] = [one for one in indexes.INDEXES if (one.collection, one.name) == (TASKS, indexes.RETENTION)]
    keys, partial = list(retention.keys), retention.partial
    world.bare[TASKS].create_index(
        keys, name=retention.name, partialFilterExpression=partial, expireAfterSeconds=_OLD_SEC
    )


def _start(world: World) -> None:
    require_mark(world.bare)


def _create(world: World) -> None:
    indexes.create(world.bare)


SCENARIOS: Final = (
    Scenario(use_case="first start", name="in an empty database", prepare=_bare, act=_start, again=_start),
    Scenario(use_case="indexes", name="where none are", prepare=_bare, act=_create, again=_create),
    Scenario(use_case="indexes", name="where others are", prepare=_old, act=_create, again=_create),
)
