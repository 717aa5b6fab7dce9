"""Webhooks over HTTPS: whose certificate is accepted, and for which name."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from threading import Event
from typing import cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tasks._egress import Egress
from tasks._exchange import default_tls
from tasks.deliver_webhook import Sender, Webhook, deliver
from tests.unit.webhook_receiver import CTX, Answer, Talk, dripping, raw_receiver, receiver, silent
from tidemill import Fail, Retry


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate, for a server and for those that trust it."""

    path: Path

    def served(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path)
        return context

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.path)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """One for hooks.example and 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hooks.example")])
    names = x509.SubjectAlternativeName([x509.DNSName("hooks.example"), x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return Certificate(path)


def sender(tls: ssl.SSLContext) -> Sender:
    egress = Egress(networks=(ip_network("127.0.0.0/8"),), resolve=lambda _host: ["127.0.0.1"])
    return Sender(egress=egress, tls=lambda: tls)


@pytest.mark.parametrize("host", ["hooks.example", "hooks.example.", "127.0.0.1"])
def test_a_trusted_certificate_for_the_name_is_accepted(certificate: Certificate, host: str) -> None:
    asked: list[str | None] = []
    served = certificate.served()
    served.sni_callback = lambda _sock, name, _context: asked.append(name)

    with receiver(tls=served) as server:
        result = deliver(Webhook(url=f"https://{host}:{server.port}/"), CTX, sender=sender(certificate.trusted()))

    assert result["status"] == 200
    assert server.received[0].headers["host"] == f"{host.removesuffix('.')}:{server.port}"
    assert asked == [None if host == "127.0.0.1" else "hooks.example"]


def test_a_self_signed_certificate_is_refused_before_anything_is_sent(certificate: Certificate) -> None:
    with receiver(tls=certificate.served()) as server:
        with pytest.raises(Retry, match=r"^hooks\.example offers no secure connection") as caught:
            deliver(Webhook(url=f"https://hooks.example:{server.port}/"), CTX, sender=sender(default_tls()))

        assert caught.value.code == "tls"
        assert server.received == []


def test_a_trusted_certificate_for_another_name_is_refused(certificate: Certificate) -> None:
    with receiver(tls=certificate.served()) as server:
        with pytest.raises(Retry, match=r"^other\.example offers no secure connection"):
            deliver(Webhook(url=f"https://other.example:{server.port}/"), CTX, sender=sender(certificate.trusted()))

        assert server.received == []


def test_https_is_not_redirected_to_http(certificate: Certificate) -> None:
    with (
        receiver() as insecure,
        receiver(lambda _: Answer(308, {"Location": insecure.url}), tls=certificate.served()) as server,
    ):
        with pytest.raises(Fail, match=r"^hooks\.example redirects to an insecure connection$"):
            deliver(Webhook(url=f"https://hooks.example:{server.port}/"), CTX, sender=sender(certificate.trusted()))

        assert insecure.received == []


def test_http_may_be_redirected_to_https(certificate: Certificate) -> None:
    with (
        receiver(tls=certificate.served()) as secure,
        receiver(lambda _: Answer(308, {"Location": f"https://hooks.example:{secure.port}/"})) as server,
    ):
        deliver(Webhook(url=server.url), CTX, sender=sender(certificate.trusted()))

        assert len(secure.received) == 1


def test_a_receiver_that_hangs_up_early_is_not_taken_for_one_with_a_bad_certificate(certificate: Certificate) -> None:
    served = certificate.served()

    def talk(conn: socket.socket, _over: Event) -> None:
        with served.wrap_socket(conn, server_side=True) as secured:
            secured.recv(1)
            secured.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    with raw_receiver(talk) as server:
        webhook = Webhook(url=f"https://hooks.example:{server.port}/", body="x" * 8_000_000)
        with pytest.raises((Retry, Fail)) as caught:
            deliver(webhook, CTX, sender=sender(certificate.trusted()))

    # OpenSSL may drop what had arrived when it found that it could not send.
    assert cast(Retry | Fail, caught.value).code in {"http_413", "connection"}


@pytest.mark.parametrize("talk", [silent, dripping(b"\x16\x03\x03\x40\x00")], ids=["silent", "dripping"])
def test_a_handshake_that_never_ends_does_not_outlast_the_timeout(talk: Talk) -> None:
    started = time.monotonic()
    with raw_receiver(talk) as server, pytest.raises(Retry, match="in time"):
        deliver(
            Webhook(url=f"https://hooks.example:{server.port}/", timeout_sec=0.3), CTX, sender=sender(default_tls())
        )

    assert time.monotonic() - started < 2


ASK_AT_ONCE = """
import ssl, time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

loads = []

def load():
    loads.append(1)
    time.sleep(0.2)  # long enough for the others to come in, if they can
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

ssl.create_default_context = load  # before it is imported
from tasks._exchange import default_tls

all_are_here = Barrier(4)

def ask(_):
    all_are_here.wait(timeout=10)
    return default_tls()

with ThreadPoolExecutor(4) as pool:
    contexts = list(pool.map(ask, range(4)))
print(len(loads), len(set(map(id, contexts))))
"""


def test_the_certificates_are_loaded_once_however_many_slots_ask_at_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ASK_AT_ONCE],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert ended.stdout == "1 1\n"
