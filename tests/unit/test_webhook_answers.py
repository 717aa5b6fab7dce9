"""What becomes of a delivery by what is answered, or not answered."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from threading import Event, Thread

import pytest

from tasks._egress import Egress
from tasks._exchange import Deadline, _DeadlineSocket, retry_after
from tasks.deliver_webhook import Sender, Webhook, deliver
from tests.unit.webhook_receiver import (
    CTX,
    LOOPBACK,
    Answer,
    Talk,
    closed_port,
    context,
    dripping,
    raw_receiver,
    receiver,
    refusal,
    silent,
)
from tidemill import Fail, Retry

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_success(status: int) -> None:
    with receiver(lambda _: Answer(status, body=b"")) as server:
        assert deliver(Webhook(url=server.url), CTX, sender=LOOPBACK)["status"] == status


@pytest.mark.parametrize("status", [429, 500, 501, 502, 503, 504, 599])
def test_5xx_and_429_are_retried(status: int) -> None:
    with receiver(lambda _: Answer(status)) as server:
        error = refusal(Retry, server.url)

    assert (str(error), error.code, error.after) == (f"127.0.0.1 answered {status}", f"http_{status}", None)


@pytest.mark.parametrize(
    "status", [300, 301, 302, 303, 304, 305, 307, 308, 400, 401, 404, 408, 410, 422, 499, 600, 999]
)
def test_any_other_status_is_final(status: int) -> None:
    with receiver(lambda _: Answer(status, body=b"")) as server:
        error = refusal(Fail, server.url)

    assert (str(error), error.code) == (f"127.0.0.1 answered {status}", f"http_{status}")
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_the_wait_that_an_answer_asks_for_is_kept(status: int) -> None:
    with receiver(lambda _: Answer(status, {"Retry-After": "120"})) as server:
        error = refusal(Retry, server.url)

    assert error.after == timedelta(seconds=120)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", timedelta(seconds=1)),
        (" 120 ", timedelta(seconds=120)),
        ("86400", timedelta(hours=24)),
        ("86401", timedelta(hours=24)),
        ("9" * 5000, timedelta(hours=24)),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), timedelta(seconds=90)),
        ("Wednesday, 01-Jul-26 12:01:00 GMT", timedelta(seconds=60)),
        ("Wed Jul  1 12:01:00 2026", timedelta(seconds=60)),
        ("Wed, 01 Jul 2026 14:01:00 +0200", timedelta(seconds=60)),
        ("Fri, 31 Dec 9999 23:59:59 -2359", timedelta(hours=24)),
        (format_datetime(NOW, usegmt=True), None),
        (format_datetime(NOW - timedelta(days=1), usegmt=True), None),
        *((value, None) for value in (None, "", "0", "-5", "1.5", "1e3", "+7", "٣", "soon", "2026-07-01T12:01:00Z")),
        *((f"Wed, 01 Jul {year} 12:01:00 GMT", None) for year in ("99999", "9" * 30)),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_never_more_than_a_day(
    value: str | None, expected: timedelta | None
) -> None:
    assert retry_after(value, now=NOW) == expected


def test_a_refused_connection_is_retried() -> None:
    with closed_port() as port:
        error = refusal(Retry, f"http://127.0.0.1:{port}/")

    assert (str(error), error.code) == ("127.0.0.1 gave no answer (ConnectionRefusedError)", "connection")


def test_an_unknown_name_is_retried() -> None:
    def unknown(_host: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    with pytest.raises(Retry, match=r"^hooks\.example was not found by name$"):
        deliver(Webhook(url="http://hooks.example/"), CTX, sender=Sender(egress=Egress(resolve=unknown)))


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 2", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200]
)
def test_an_answer_that_is_not_http_is_retried(said: bytes) -> None:
    def talk(conn: socket.socket, _over: Event) -> None:
        conn.recv(65536)
        conn.sendall(said)

    with raw_receiver(talk) as server:
        error = refusal(Retry, server.url)

    assert error.code == "connection"
    assert "SSH" not in str(error)


def test_an_early_refusal_counts_although_the_body_was_not_read() -> None:
    def talk(conn: socket.socket, _over: Event) -> None:
        conn.recv(1)
        conn.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    with raw_receiver(talk) as server:
        assert refusal(Fail, server.url, body="x" * 8_000_000).code == "http_413"


def saying(*parts: bytes) -> Talk:
    """Say *parts* in pieces of their own, after the request has begun, and close."""

    def talk(conn: socket.socket, _over: Event) -> None:
        conn.recv(65536)
        for part in parts:
            conn.sendall(part)

    return talk


INTERIM = {
    "processing": b"HTTP/1.1 102 Processing\r\n\r\n",
    "early hints": b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n",
    "of no name": b"HTTP/1.1 199 \r\nRetry-After: 3600\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n",
    "one after the other": b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n",
}
"""Each begins an answer, and none of them is the answer."""


@pytest.mark.parametrize("interim", INTERIM.values(), ids=INTERIM)
@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "in two pieces"])
def test_a_1xx_is_not_the_answer_to_a_webhook(interim: bytes, *, is_at_once: bool) -> None:
    # N80
    final = b"HTTP/1.1 204 No Content\r\n\r\n"
    with raw_receiver(saying(interim + final) if is_at_once else saying(interim, final)) as server:
        assert deliver(Webhook(url=server.url), CTX, sender=LOOPBACK)["status"] == 204


def test_the_answer_after_a_1xx_decides_and_brings_its_own_headers() -> None:
    # N80
    final = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    with raw_receiver(saying(INTERIM["of no name"] + final)) as server:
        error = refusal(Retry, server.url)
    with raw_receiver(saying(INTERIM["of no name"] + final.replace(b"Retry-After: 7", b"A: b"))) as server:
        without_wait = refusal(Retry, server.url)

    assert (error.code, error.after) == ("http_503", timedelta(seconds=7))
    assert (without_wait.code, without_wait.after) == ("http_503", None)


def test_a_connection_that_ends_after_a_1xx_is_no_answer() -> None:
    # N80
    with raw_receiver(saying(INTERIM["early hints"])) as server:
        assert refusal(Retry, server.url).code == "connection"


def test_a_switch_of_protocols_that_nobody_asked_for_is_final() -> None:
    # N80: what follows a 101 is no HTTP
    with raw_receiver(saying(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n\x81\x05hello")) as server:
        assert refusal(Fail, server.url).code == "http_101"


@pytest.mark.parametrize(
    "talk",
    [silent, dripping(b""), dripping(b"HTTP/1.1 200 OK\r\nX-Slow: ")],
    ids=["silent", "status", "header"],
)
@pytest.mark.parametrize(
    ("timeout_sec", "left"), [(0.3, timedelta(seconds=30)), (30, timedelta(seconds=1.3))], ids=["payload", "task"]
)
def test_silence_and_drip_end_with_the_payload_s_or_the_task_s_time(
    talk: Talk, timeout_sec: float, left: timedelta
) -> None:
    started = time.monotonic()
    with raw_receiver(talk) as server, pytest.raises(Retry, match=r"^127\.0\.0\.1 did not answer in time$"):
        deliver(Webhook(url=server.url, timeout_sec=timeout_sec), context(left=left), sender=LOOPBACK)

    assert 0.25 < time.monotonic() - started < 2


def test_a_receiver_that_does_not_read_is_given_up() -> None:
    with raw_receiver(silent) as server:
        assert refusal(Retry, server.url, body="x" * 16_000_000, timeout_sec=0.3).code == "timeout"


def test_a_receiver_that_sips_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def sip() -> None:
        while theirs.recv(1024):
            time.sleep(0.005)

    sipper = Thread(target=sip)
    sipper.start()
    with theirs:
        with ours, pytest.raises(TimeoutError):
            _DeadlineSocket(ours, Deadline.after(0.1)).sendall(b"x" * 200_000)
        sipper.join()


def test_with_no_time_left_nothing_is_sent() -> None:
    with receiver() as hooks, pytest.raises(Retry, match="in time"):
        deliver(Webhook(url=hooks.url), context(left=timedelta(0)), sender=LOOPBACK)

    assert hooks.received == []


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_a_slow_or_broken_body_does_not_undo_a_success(start: bytes) -> None:
    with raw_receiver(dripping(start)) as server:
        started = time.monotonic()
        assert deliver(Webhook(url=server.url, timeout_sec=0.3), CTX, sender=LOOPBACK)["status"] == 200

    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n" * 100),
        (b"", b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\nA: ", b"x" * 65536),
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 100),
        (b"", b"HTTP/1.1 200 " + b"x" * 65536),
    ],
    ids=["interim", "interim with headers", "early hints", "long header", "many headers", "long status"],
)
def test_an_endless_answer_ends_with_the_time_or_before(start: bytes, piece: bytes) -> None:
    with raw_receiver(_flooding(start, piece)) as server:
        started = time.monotonic()
        assert refusal(Retry, server.url, timeout_sec=0.3).code in {"timeout", "connection"}

    assert time.monotonic() - started < 2


def test_endless_trailers_do_not_undo_a_success() -> None:
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    with raw_receiver(_flooding(start, b"A: b\r\n" * 100)) as server:
        started = time.monotonic()
        assert deliver(Webhook(url=server.url, timeout_sec=0.3), CTX, sender=LOOPBACK)["status"] == 200

    assert time.monotonic() - started < 2


def _flooding(start: bytes, piece: bytes) -> Talk:
    def talk(conn: socket.socket, over: Event) -> None:
        conn.sendall(start)
        while not over.is_set():
            conn.sendall(piece)

    return talk


def test_an_endless_body_is_not_read() -> None:
    def talk(conn: socket.socket, over: Event) -> None:
        conn.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not over.is_set():
            conn.sendall(b"x" * 65536)

    with raw_receiver(talk) as server:
        started = time.monotonic()
        assert deliver(Webhook(url=server.url), CTX, sender=LOOPBACK)["status"] == 200

    assert time.monotonic() - started < 5
