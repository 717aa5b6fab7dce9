"""The servers of the attack on a replica set: how they are started again, and what is said where they are not whole."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.public_api.mongod.mongods import alive
from tools.chaos.replica_set.servers import ServerEndedError, Servers
from tools.chaos.replica_set.stable import Stable

ENDLESS = ["sh", "-c", "exec sleep 60"]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


def test_a_server_is_started_again_when_its_last_process_is_gone(tmp_path: Path) -> None:
    with closing(Stable(str(tmp_path))) as stable:
        first, other = stable.start("first", ENDLESS), stable.start("other", ENDLESS)

        again = stable.start("first", ENDLESS)

        assert [alive(pid) for pid in (first, other, again)] == [False, True, True]


def test_servers_that_do_not_get_whole_say_what_they_are(servers: Servers) -> None:
    stopped = servers.members[:2]
    servers.signal(stopped, signal.SIGSTOP)

    with pytest.raises(TimeoutError) as raised:
        servers.wait_until_whole(within=0.5)

    servers.signal(stopped, signal.SIGCONT)
    servers.wait_until_whole()
    assert all(f"{member.port} does not answer" in str(raised.value) for member in stopped)


def test_a_server_that_ended_by_itself_is_not_waited_for(servers: Servers) -> None:
    servers.wait_until_whole()
    ended = servers.members[0]

    servers.signal([ended], signal.SIGKILL)

    with pytest.raises(ServerEndedError, match=f"port {ended.port} ended by itself"):
        servers.wait_until_whole()
    servers.restart([ended])
    servers.wait_until_whole()
