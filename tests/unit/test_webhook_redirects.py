"""Where redirects of webhooks, and names that change their answer, may lead."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from ipaddress import ip_network
from typing import cast

import pytest

from tasks._egress import Egress
from tasks.deliver_webhook import Sender, Webhook, deliver
from tests.unit.webhook_receiver import CTX, Answer, Received, receiver
from tidemill import Fail

TOKEN = {"Authorization": "Bearer x"}


class Names:
    """A resolver that gives one answer after the other, and the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))
        self.asked: list[str] = []

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        return next(self._answers)


def sender(*answers: Sequence[str], hosts: tuple[str, ...] = ()) -> Sender:
    names = Names(*answers or (["127.0.0.1"],))
    networks = (ip_network("127.0.0.0/8"),)
    return Sender(egress=Egress(hosts=hosts, networks=networks, resolve=names), key=b"key")


def moving(location: str, *, status: int = 307) -> Answer:
    return Answer(status, {"Location": location})


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_that_keeps_the_method_is_followed(status: int) -> None:
    def answer(request: Received) -> Answer:
        return moving("new?x=1", status=status) if request.path == "/hook" else Answer()

    with receiver(answer) as server:
        result = deliver(Webhook(url=server.url, body=[1], headers=TOKEN), CTX, sender=sender())

    first, second = server.received
    assert result["status"] == 200
    assert second.path == "/new?x=1"
    assert (second.body, second.headers) == (first.body, first.headers)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 306])
def test_a_redirect_that_changes_the_method_is_a_failure(status: int) -> None:
    with receiver(lambda _: Answer(status, {"Location": "/new"}, body=b"")) as server:
        with pytest.raises(Fail, match=f"answered {status}"):
            deliver(Webhook(url=server.url), CTX, sender=sender())

        assert len(server.received) == 1


def test_another_origin_gets_the_delivery_but_not_the_given_headers_even_if_it_leads_back() -> None:
    def answer(request: Received) -> Answer:
        return moving(there.url) if request.path == "/hook" else Answer()

    with receiver(answer) as here, receiver(lambda _: moving(f"http://127.0.0.1:{here.port}/back")) as there:
        deliver(Webhook(url=here.url, headers=TOKEN), CTX, sender=sender())

    first, last = here.received
    assert first.headers["authorization"] == "Bearer x"
    for request in (*there.received, last):
        assert "authorization" not in request.headers
        assert request.headers["webhook-signature"] == first.headers["webhook-signature"]


def test_three_redirects_are_followed_and_a_loop_ends() -> None:
    with receiver(lambda _: moving("/hook")) as server:
        with pytest.raises(Fail, match="more than 3 redirects") as caught:
            deliver(Webhook(url=server.url), CTX, sender=sender())

        assert caught.value.code == "redirect"
        assert len(server.received) == 4


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://169.254.169.254/latest/meta-data/", "refused"),
        ("//10.0.0.1/", "refused"),
        ("http://[::ffff:10.0.0.1]/", "refused"),
        ("http://2852039166/", "bad_url"),
        ("http://user@127.0.0.1/", "bad_url"),
        ("http://0177.0.0.1/", "bad_url"),
        ("http://0x7f.1/", "bad_url"),
        ("http://127.1/", "bad_url"),
        ("http://0.0.0.0/", "refused"),
        ("http://100.64.0.1/", "refused"),
        ("http://224.0.0.1/", "refused"),
        ("http://[::1]/", "refused"),
        ("http://[64:ff9b::a9fe:a9fe]/", "refused"),
        ("http://[64:ff9b:1::a9fe:a9fe]/", "refused"),
        ("http://[2002:a9fe:a9fe::1]/", "refused"),
        ("http://[2001::1]/", "refused"),
        ("http://[fd00:ec2::254]/", "refused"),
        ("http://[fe80::1%251]/", "bad_url"),
        ("http://127.0.0.1:0/", "bad_url"),
        ("http://127.0.0.1\\@hooks.example/", "bad_url"),
        ("http://169.254.169.254./", "refused"),
        ("http://169%2e254.169.254/", "bad_url"),
        ("gopher://127.0.0.1:6379/_FLUSHALL", "bad_url"),
        ("data:,x", "bad_url"),
        ("file:///etc/passwd", "bad_url"),
        ("http://[", "redirect"),
    ],
)
def test_a_redirect_is_checked_like_the_first_url(location: str, code: str) -> None:
    with receiver(lambda _: moving(location)) as server:
        with pytest.raises(Fail) as caught:
            deliver(Webhook(url=server.url), CTX, sender=sender())

        assert caught.value.code == code
        assert len(server.received) == 1


def test_a_redirect_leaves_the_allowed_hosts_as_little_as_the_first_url() -> None:
    with receiver(lambda _: moving(other.url)) as server, receiver() as other:
        with pytest.raises(Fail, match=r"^127\.0\.0\.1 is not among the allowed hosts$"):
            deliver(Webhook(url=f"http://hooks.example:{server.port}/"), CTX, sender=sender(hosts=("hooks.example",)))

        assert (len(server.received), len(other.received)) == (1, 0)


def test_a_name_is_resolved_once_and_the_checked_address_is_used() -> None:
    names = sender(["127.0.0.1"], ["10.0.0.1"])

    with receiver() as server:
        deliver(Webhook(url=f"http://rebind.invalid:{server.port}/"), CTX, sender=names)

    assert cast(Names, names.egress.resolve).asked == ["rebind.invalid"]
    assert server.received[0].headers["host"] == f"rebind.invalid:{server.port}"


def test_a_name_that_turned_private_is_refused_at_the_redirect() -> None:
    with receiver(lambda _: moving("/again")) as server:
        with pytest.raises(Fail, match=r"^rebind\.invalid leads to an address that is not allowed$"):
            deliver(
                Webhook(url=f"http://rebind.invalid:{server.port}/"), CTX, sender=sender(["127.0.0.1"], ["10.0.0.1"])
            )

        assert len(server.received) == 1


def test_nothing_is_sent_where_one_of_the_addresses_is_not_allowed() -> None:
    with receiver() as server:
        with pytest.raises(Fail, match="not allowed"):
            deliver(Webhook(url=f"http://mixed.invalid:{server.port}/"), CTX, sender=sender(["127.0.0.1", "10.0.0.1"]))

        assert server.received == []


def test_the_next_address_is_tried_where_the_first_does_not_accept() -> None:
    with receiver() as server:
        result = deliver(
            Webhook(url=f"http://two.invalid:{server.port}/"), CTX, sender=sender(["127.0.0.2", "127.0.0.1"])
        )

    assert result["status"] == 200
    assert len(server.received) == 1
