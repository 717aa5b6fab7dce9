"""The database's time, carried on by the monotonic clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from pymongo.database import Database
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError

from tests.fixtures import T0
from tidemill import UnavailableError
from tidemill.clock import RESAMPLE_AFTER_SEC, RETRY_AFTER_SEC, ServerClock, Uptime, truncate_to_ms

SECOND = timedelta(seconds=1)


class World:
    """A server and a machine, each with a clock of its own, and a network between them; plays the database."""

    def __init__(self) -> None:
        self.server = T0
        self.wall = T0.timestamp()
        self.monotonic = 1000.0
        self.there = self.back = self.connecting = 0.0
        self.primary: tuple[str, int] | None = ("a", 27017)
        self.is_down = False
        self.connections_lost = 0
        self.is_aware = True
        self.freezes_for = 0.0
        self.asked = 0
        self.client = self.admin = self

    @property
    def topology_description(self) -> object:
        return self.primary

    def with_options(self, **_: object) -> World:
        return self

    def command(self, name: str, *, session: object = None) -> dict[str, Any]:
        assert (name, session) == ("hello", None)
        self.asked += 1
        self.passes(self.connecting + self.there)
        self.connecting = 0.0
        if self.is_down:
            raise ServerSelectionTimeoutError("mongodb://user:S3cr3t@host")
        if self.connections_lost:
            self.connections_lost -= 1
            raise AutoReconnect("mongodb://user:S3cr3t@host")
        told = truncate_to_ms(self.server)
        self.is_frozen(self.freezes_for, monotonic_goes_on=False)
        self.freezes_for = 0.0
        self.passes(self.back)
        return {"localTime": told if self.is_aware else told.replace(tzinfo=None)}

    def passes(self, seconds: float) -> None:
        self.is_frozen(seconds, monotonic_goes_on=True)

    def is_frozen(self, seconds: float, *, monotonic_goes_on: bool) -> None:
        self.server += timedelta(seconds=seconds)
        self.wall += seconds
        self.monotonic += seconds if monotonic_goes_on else 0.0


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock(world: World) -> ServerClock:
    return ServerClock(cast("Database[Any]", world), wall=lambda: world.wall, monotonic=lambda: world.monotonic)


def test_it_tells_the_servers_time_whatever_this_machine_believes(world: World, clock: ServerClock) -> None:  # F28
    world.wall -= 600

    assert clock.now() == T0
    world.passes(7.5)
    assert clock.now() == T0 + 7.5 * SECOND
    assert world.asked == 1


def test_times_are_aware_utc_in_whole_milliseconds(world: World, clock: ServerClock) -> None:  # F31
    clock.now()
    world.passes(0.123999)

    assert clock.now() == T0 + timedelta(milliseconds=123)
    assert clock.now().utcoffset() == timedelta(0)


@pytest.mark.parametrize("aware", [False, True])
def test_a_client_of_any_options_will_do(world: World, clock: ServerClock, *, aware: bool) -> None:  # F29
    world.is_aware = aware

    assert clock.now() == T0


def test_the_server_answered_half_way_between_question_and_answer(world: World, clock: ServerClock) -> None:
    world.there = world.back = 0.25
    world.wall += 3

    assert clock.now() == truncate_to_ms(world.server)


def test_the_time_it_takes_to_connect_is_not_half_way(world: World, clock: ServerClock) -> None:
    world.connecting, world.there, world.back = 3.0, 0.01, 0.01

    assert clock.now() == truncate_to_ms(world.server)


def test_it_asks_again_after_a_minute(world: World, clock: ServerClock) -> None:
    clock.now()
    world.passes(RESAMPLE_AFTER_SEC)
    clock.now()
    assert world.asked == 1

    world.server += 5 * SECOND  # somebody set it
    world.passes(0.001)

    assert clock.now() == truncate_to_ms(world.server)
    assert world.asked == 2


def test_it_asks_again_after_a_change_of_primary(world: World, clock: ServerClock) -> None:
    clock.now()
    world.primary, world.server = ("b", 27017), world.server + 9 * SECOND

    assert clock.now() == T0 + 9 * SECOND
    assert clock.now() == T0 + 9 * SECOND
    assert world.asked == 2


def test_while_no_primary_is_known_the_sample_goes_on(world: World, clock: ServerClock) -> None:
    clock.now()
    world.primary = None
    world.passes(2)

    assert clock.now() == T0 + 2 * SECOND
    assert world.asked == 1


@pytest.mark.parametrize("jump", [-3600, -1.001, 1.001, 3600])
def test_it_asks_again_where_the_process_was_frozen_or_its_clock_set(
    world: World, clock: ServerClock, jump: float
) -> None:
    clock.now()
    world.wall += jump  # while the monotonic clock stood still
    world.server += max(jump, 0) * SECOND

    assert clock.now() == truncate_to_ms(world.server)
    assert clock.now() == truncate_to_ms(world.server)
    assert world.asked == 2


@pytest.mark.parametrize("monotonic_goes_on", [False, True])
def test_an_hour_frozen_it_is_right_with_the_first_look(
    world: World, clock: ServerClock, *, monotonic_goes_on: bool
) -> None:
    clock.now()
    world.is_frozen(3600, monotonic_goes_on=monotonic_goes_on)
    world.server += 0.4 * SECOND  # and the clocks have drifted

    assert clock.now() == truncate_to_ms(world.server)
    world.passes(5)
    assert clock.now() == truncate_to_ms(world.server)
    assert world.asked == 2


@pytest.mark.parametrize("monotonic_goes_on", [False, True])
def test_an_hour_frozen_while_the_server_was_away_it_is_asked_at_once(
    world: World, clock: ServerClock, *, monotonic_goes_on: bool
) -> None:
    clock.now()
    world.is_down = True
    world.passes(RESAMPLE_AFTER_SEC + 1)
    clock.now()  # in vain, and not again for the next seconds
    world.is_down = False
    world.is_frozen(3600, monotonic_goes_on=monotonic_goes_on)
    world.server += 0.4 * SECOND

    assert clock.now() == truncate_to_ms(world.server)
    assert world.asked == 3


def test_while_the_server_is_away_after_a_freeze_no_lease_ends_early(world: World, clock: ServerClock) -> None:
    clock.now()
    world.is_down = True
    world.is_frozen(3600, monotonic_goes_on=False)

    assert clock.now() == truncate_to_ms(world.server)
    world.passes(2)
    assert clock.now() == truncate_to_ms(world.server)
    assert world.asked == 2


def test_a_wall_clock_set_back_while_the_server_is_away_changes_nothing(world: World, clock: ServerClock) -> None:
    clock.now()
    world.is_down = True
    world.wall -= 3600
    world.passes(2)

    assert clock.now() == T0 + 2 * SECOND


def test_a_freeze_between_question_and_answer_is_noticed(world: World, clock: ServerClock) -> None:
    world.freezes_for = 3600

    assert clock.now() == truncate_to_ms(world.server)


def test_a_little_drift_is_no_reason_to_ask(world: World, clock: ServerClock) -> None:
    clock.now()
    world.wall += 0.9

    clock.now()

    assert world.asked == 1


def test_without_a_server_there_is_no_time_and_no_address_in_the_message(world: World, clock: ServerClock) -> None:
    world.is_down = True

    with pytest.raises(UnavailableError) as caught:
        clock.now()

    assert "S3cr3t" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_connection_that_is_lost_over_the_question_delays_nothing(world: World, clock: ServerClock) -> None:
    clock.now()
    world.connections_lost = 1
    world.is_frozen(3600, monotonic_goes_on=True)
    world.server += 9 * SECOND

    assert clock.now() == truncate_to_ms(world.server)
    assert world.asked == 3


def test_a_server_that_went_away_leaves_its_time_behind(world: World, clock: ServerClock) -> None:  # F91
    clock.now()
    world.is_down = True
    world.passes(RESAMPLE_AFTER_SEC + 1)

    assert clock.now() == truncate_to_ms(world.server)
    assert world.asked == 2


def test_a_server_that_went_away_is_asked_only_now_and_then(world: World, clock: ServerClock) -> None:
    clock.now()
    world.is_down = True
    world.passes(RESAMPLE_AFTER_SEC + 1)
    for _ in range(10):
        clock.now()
        world.passes(RETRY_AFTER_SEC / 5)
    assert world.asked == 1 + 2

    world.is_down, world.server = False, world.server + 3 * SECOND
    world.passes(RETRY_AFTER_SEC)

    assert clock.now() == truncate_to_ms(world.server)


@pytest.mark.parametrize(("microsecond", "kept"), [(0, 0), (999, 0), (1000, 1000), (123999, 123000), (999999, 999000)])
def test_truncating_rounds_down(microsecond: int, kept: int) -> None:  # F31
    assert truncate_to_ms(T0.replace(microsecond=microsecond)) == T0.replace(microsecond=kept)


def test_the_time_of_a_real_server(db: Database[Any]) -> None:
    clock = ServerClock(db)
    before = truncate_to_ms(datetime.now(UTC))

    told = clock.now()

    after = datetime.now(UTC)
    assert before - (after - before) <= told <= after + (after - before)
    assert told <= clock.now()


class Elected:
    """A real database, whose client knows of another primary once ``is_over`` is set."""

    def __init__(self, db: Database[Any]) -> None:
        self.client = self.admin = self
        self.is_over = False
        self._client = db.client

    @property
    def primary(self) -> tuple[str, int] | None:
        return ("elsewhere", 1) if self.is_over else self._client.primary

    @property
    def topology_description(self) -> object:
        return self.is_over or self._client.topology_description

    def with_options(self, **_: object) -> Elected:
        return self

    def command(self, name: str, *, session: Any = None) -> dict[str, Any]:
        return self._client.admin.command(name, session=session)


def test_a_real_server_is_asked_again_once_its_primary_is_another(db: Database[Any]) -> None:
    seconds, elected = [0.0], Elected(db)
    clock = ServerClock(
        cast("Database[Any]", elected), wall=lambda: T0.timestamp() + seconds[0], monotonic=lambda: 5000 + seconds[0]
    )
    first = clock.now()
    seconds[0] = 30.0
    assert clock.now() == first + 30 * SECOND

    elected.is_over = True

    assert clock.now() < first + 20 * SECOND


def test_what_a_warm_process_remembers_grows_old_while_it_is_frozen(world: World) -> None:
    uptime = Uptime(wall=lambda: world.wall, monotonic=lambda: world.monotonic)
    start = uptime()

    world.passes(5)
    assert uptime() - start == pytest.approx(5)
    world.is_frozen(3600, monotonic_goes_on=False)
    assert uptime() - start == pytest.approx(3605)
    world.is_frozen(3600, monotonic_goes_on=True)
    assert uptime() - start == pytest.approx(7205)
    world.passes(5)
    assert uptime() - start == pytest.approx(7210)


@pytest.mark.parametrize("jump", [-3600, -0.5, 0.5])
def test_no_other_jump_of_the_wall_clock_makes_it_older_or_younger(world: World, jump: float) -> None:
    uptime = Uptime(wall=lambda: world.wall, monotonic=lambda: world.monotonic)
    start = uptime()

    world.wall += jump
    world.passes(5)

    assert uptime() - start == pytest.approx(5)


@pytest.mark.parametrize("ahead", [-600.0, 0.0, 0.25, 600.0])
def test_the_skew_is_by_how_much_the_server_is_ahead_and_asks_for_nothing(
    world: World, clock: ServerClock, ahead: float
) -> None:
    world.wall -= ahead
    world.there = world.back = 0.04
    before = clock.skew

    clock.now()
    world.passes(7.5)

    assert before is None
    assert clock.skew is not None
    assert clock.skew.total_seconds() == pytest.approx(ahead, abs=0.001)
    assert world.asked == 1
