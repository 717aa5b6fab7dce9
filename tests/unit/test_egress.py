"""Where a webhook may go: which addresses are reachable, what the environment says."""

from __future__ import annotations

import time
from ipaddress import ip_address, ip_network
from threading import Event

import pytest

from tasks._egress import Egress, Route, is_public, parse_url
from tidemill import Fail, SettingsError

PUBLIC = "93.184.216.34"


def answering(*addresses: str, hosts: tuple[str, ...] = (), networks: tuple[str, ...] = ()) -> Egress:
    return Egress(
        hosts=hosts,
        networks=tuple(ip_network(network) for network in networks),
        resolve=lambda _host: addresses,
    )


def route(egress: Egress, url: str) -> Route:
    return egress.route(parse_url(url), timeout=5)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "169.254.100.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",  # IPv4-compatible
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:a9fe:a9fe",
        "::ffff:0:127.0.0.1",  # IPv4-translated
        "2002:7f00:1::",  # 6to4
        "2002:a9fe:a9fe::1",
        "64:ff9b::127.0.0.1",  # NAT64
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::7f00:1",  # local NAT64
        "100::1",
        "2001:0:53aa:64c::1",  # Teredo
        "2001:db8::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(ip_address(address))

    with pytest.raises(Fail, match=r"^hooks\.example leads to an address that is not allowed$") as caught:
        route(answering(address), "https://hooks.example/")

    assert caught.value.code == "refused"


@pytest.mark.parametrize(
    "address",
    [
        PUBLIC,
        "100.63.255.255",
        "100.128.0.0",
        "172.32.0.1",
        "2606:4700::1",
        "::ffff:8.8.8.8",
        "2002:808:808::1",
        "64:ff9b::8.8.8.8",
    ],
)
def test_a_public_address_is_reachable(address: str) -> None:
    assert route(answering(address), "https://hooks.example/").addresses == (address,)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://10.0.0.1./"]
)
def test_an_address_in_the_url_is_judged_like_one_that_was_resolved(url: str) -> None:
    with pytest.raises(Fail) as caught:
        route(answering(PUBLIC), url)

    assert caught.value.code == "refused"


def test_one_bad_address_spoils_the_answer() -> None:
    with pytest.raises(Fail):
        route(answering(PUBLIC, "10.0.0.1"), "https://hooks.example/")


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3"])
def test_an_allowed_network_may_be_reached_in_every_spelling(address: str) -> None:
    assert route(answering(address, networks=("10.1.0.0/16",)), "https://hooks.example/").addresses == (address,)


def test_an_allowed_network_opens_no_other() -> None:
    with pytest.raises(Fail):
        route(answering("10.2.0.1", networks=("10.1.0.0/16",)), "https://hooks.example/")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("hooks.example", True),
        ("HOOKS.example.", True),
        ("a.partner.example", True),
        ("a.b.partner.example", True),
        ("partner.example", False),
        ("xpartner.example", False),
        ("a.partner.example.evil.example", False),
        ("other.example", False),
        ("1.1.1.1", False),
    ],
)
def test_only_listed_hosts_are_allowed(host: str, allowed: bool) -> None:  # noqa: FBT001 - a table
    egress = answering(PUBLIC, hosts=("hooks.example", "*.partner.example"))

    if allowed:
        assert route(egress, f"https://{host}/").addresses == (PUBLIC,)
    else:
        with pytest.raises(Fail, match="is not among the allowed hosts"):
            route(egress, f"https://{host}/")


def test_a_listed_host_opens_no_private_network() -> None:
    with pytest.raises(Fail):
        route(answering("10.0.0.1", hosts=("hooks.example",)), "https://hooks.example/")


def test_a_name_without_addresses_is_an_error_of_the_network() -> None:
    with pytest.raises(OSError, match="no address"):
        route(answering(), "https://hooks.example/")


def test_a_resolver_that_hangs_is_left_behind() -> None:
    over = Event()

    def hang(_host: str) -> list[str]:
        over.wait()
        return [PUBLIC]

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        Egress(resolve=hang).route(parse_url("https://hooks.example/"), timeout=0.05)
    assert time.monotonic() - started < 1
    over.set()


def test_the_system_resolver_is_the_default() -> None:
    assert (
        "127.0.0.1"
        in Egress(networks=(ip_network("0.0.0.0/0"), ip_network("::/0")))
        .route(parse_url("http://localhost/"), timeout=5)
        .addresses
    )


def test_the_environment_lists_hosts_and_networks() -> None:
    egress = Egress.from_env(
        {
            "WEBHOOK_ALLOWED_HOSTS": "Hooks.Example., *.partner.example,10.0.0.1",
            "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8, 10.0.0.1,fd00::/8",
        }
    )

    assert egress.hosts == ("hooks.example", "*.partner.example", "10.0.0.1")
    assert [str(network) for network in egress.networks] == ["127.0.0.0/8", "10.0.0.1/32", "fd00::/8"]
    assert Egress.from_env({}) == Egress.from_env({"WEBHOOK_ALLOWED_HOSTS": ""}) == Egress()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("WEBHOOK_ALLOWED_HOSTS", value)
            for value in (
                *(" ", ",", "a.example,", "*", "*.", "*.*.a.example", "a*.example", "127.1", "bücher.example"),
                *("https://a.example", "a.example:443", "a.example/x"),
            )
        ),
        *(
            ("WEBHOOK_ALLOWED_NETWORKS", value)
            for value in (" ", ",", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/8;fd00::/8", "private")
        ),
    ],
)
def test_a_malformed_variable_is_named_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name} holds an entry that cannot be read$"):
        Egress.from_env({name: value})
