"""How URLs of webhooks are read."""

from __future__ import annotations

import pytest

from tasks._egress import Target, parse_url
from tidemill import Fail


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com", Target(scheme="http", host="example.com", port=80, path="/")),
        ("HTTPS://EXAMPLE.com./a?b=c#d", Target(scheme="https", host="example.com", port=443, path="/a?b=c")),
        ("https://example.com:8443?x", Target(scheme="https", host="example.com", port=8443, path="/?x")),
        ("http://[2606:4700::0:1]/", Target(scheme="http", host="2606:4700::1", port=80, path="/")),
        ("http://8.8.8.8.:81/", Target(scheme="http", host="8.8.8.8", port=81, path="/")),
        ("http://a_b.xn--bcher/", Target(scheme="http", host="a_b.xn--bcher", port=80, path="/")),
    ],
)
def test_a_url_is_read_in_one_way(url: str, expected: Target) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://example.com:80/", "example.com"),
        ("https://example.com:80/", "example.com:80"),
        ("https://[::1]:443/", "[::1]"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ],
)
def test_the_host_header_names_a_port_that_is_not_the_usual_one(url: str, authority: str) -> None:
    assert parse_url(url).authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "http:example.com",
        "http:///path",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "http://user:secret@example.com/",
        "http://example.com@127.0.0.1/",
        "http://127.0.0.1\\@example.com/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:-1/",
        "http://example.com:80:80/",
        "http://example.com:٨٠/",
        "http://exa mple.com/",
        "http://example.com/a b",
        "http://example.com/\r\nX-Injected: 1",
        "http://exam\tple.com/",
        "http://bücher.example/",
        "http://①②⑦.⓪.⓪.①/",
        "http://127。0。0。1/",
        "http://127%2e0.0.1/",
        "http://example..com/",
        "http://.example.com/",
        "http://-a.example/",
        f"http://{'a' * 64}.example/",
        f"http://{'a.' * 127}example/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://017700000001/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://127.0.1/",
        "http://0177.0.0.1/",
        "http://127.0.0.0x1/",
        "http://127.0.0.1.0/",
        "http://256.0.0.1/",
        "http://0/",
        "http://[::1/",
        "http://[::1]x/",
        "http://x[::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[::g]/",
        "http://::1/",
    ],
)
def test_a_url_that_could_be_read_otherwise_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(Fail) as caught:
        parse_url(url)

    assert caught.value.code == "bad_url"
    assert not url or url not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_credentials_in_a_url_are_pointed_to_a_header() -> None:
    with pytest.raises(Fail, match="send them in a header"):
        parse_url("https://user:secret@example.com/")
