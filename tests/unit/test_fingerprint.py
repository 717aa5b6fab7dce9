"""What failures for one reason have in common."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.policy.fingerprint import MAX_FOLDED_CHARS, fingerprint, fold_message

TEXT = st.text(max_size=300)

PINNED = [
    ("", "d314413ac0f63b6b"),
    ("user 17: 'no'", "db80d993cd0d5e8a"),
    ("connection refused", "bcbcdcc7af668e12"),
    ("no answer from https://a.example/x: 10.0.0.1:27017, [::1]:1", "7ad92e36ca2b7ddc"),
    ("mail to ann@example.org is due 2031-07-01T09:00:00Z", "03408482386c8895"),
    ("id 6b0a1851d84ec58354cafa33, cus_NffrFeUfNV2Hib, 01ARZ3NDEKTSV4RRFFQ69G5FAV", "96d789a0528399a2"),
    ("HTTP 404 in TASK_V2_FAILED, [Errno 13]", "b8dc61df1cc9cb82"),
    ("C:\\Users\\ann\\a.txt is gone (jobs.py:17 in load)", "2d0692577a2d9376"),
    ("\xe9t\xe9 \u2018x\u2019 \ud800", "7238417e6f3bf667"),
]


def of(message: str, *, name: str = "noop", code: str = "ValueError") -> str:
    return fingerprint(name=name, code=code, message=message)


FOLDED = [
    ("user 17 is gone", "user 4711 is gone"),
    ("user 1234567 is gone", "user 123456789012 is gone"),
    ("balance 5", "balance -1,234.50"),
    ("took 1.5 s", "took 22.75e-7 s"),
    ("[1, 2, 3] are missing", "[4] are missing"),
    ("KeyError: 'a'", "KeyError: 'another key'"),
    ("KeyError: ['a', 'b']", "KeyError: ['a']"),
    ("can't open 'a'", "can't open 'b'"),
    ("the users' file 'a' isn't there", "the users' file 'b' isn't there"),
    ("no 'don't' here", "no 'do' here"),
    (r"no 'it\'s' here", "no 'a' here"),
    ("""got '{"a": "x's"}'""", """got '{"b": 1}'"""),
    ("""got "{'a': 'x'}\"""", """got "{}\""""),
    ("no b'a' here", "no b'\\x00' here"),
    ('no "x" here', 'no "y z" here'),
    (r'no "x\"y" here', 'no "y" here'),
    ('a 5" disk "x"', 'a 3" disk "y"'),
    ("no `x` here", "no `y` here"),
    ("no \u201cx\u201d here", "no \u201cy z\u201d here"),
    ("no \u2018x\u2019s\u2019 here", "no \u2018y\u2019 here"),
    ("no \u201ex\u201c here", "no \u201ey\u201c here"),
    ("no \u00abx\u00bb here", "no \u00aby\u00bb here"),
    ("no 'x' here" + " at all" * 50, "no '" + "y" * 900 + "' here" + " at all" * 50),
    ("GET https://a.example/x?y=1 failed", "GET https://b.example:8443/ failed"),
    ("no answer from 10.0.0.1:27017", "no answer from 192.168.100.200:1"),
    ("no answer from ::1: refused", "no answer from 2001:db8::ff00:42:8329: refused"),
    ("no answer from [::1]:27017", "no answer from [fe80::1%eth0]:1"),
    ("no answer from ::ffff:10.0.0.1", "no answer from 2001:0db8:0000:0000:0000:ff00:0042:8329"),
    ("device 00:1a:2b:3c:4d:5e", "device ff:ff:ff:ff:ff:ff"),
    ("mail to ann@example.org bounced", "mail to b.c+d@mail.example.com bounced"),
    ("host ip-10-0-1-17.internal", "host ip-192-168-100-1.internal"),
    ("host db.c9akciq32rgw.eu-west-1.rds.amazonaws.com", "host db.x2k8vq1zpl0m.eu-west-1.rds.amazonaws.com"),
    ("host api-7c9d8f7b6-x2x7z", "host api-6bdf5c8z99-qwxzt"),
    ("not before 2031-07-01T09:00:00.123Z", "not before 2031-07-01 09:00 +02:00"),
    ("not before 2031-07-01", "not before Tue, 01 Jul 2031 09:00:00 GMT"),
    ("not before Tue Jul  1 09:00:00 2031", "not before Aug 12, 2032"),
    ("at 09:00:00", "at 9:00:01,123"),
    ("id 6b0a1851d84ec58354cafa33", "id 6b0a1851d84ec58354cafa34"),
    ("id task_6b0a1851d84ec58354cafa33", "id task_00000000d84ec58354cafa34"),
    ("id 2f1c4a3e-9b1d-4c7a-8f00-0123456789ab", "id 00000000-0000-0000-0000-000000000000"),
    ("id 01ARZ3NDEKTSV4RRFFQ69G5FAV", "id 01BX5ZZKBKACTAV9WEVGEMMVRZ"),
    ("id order-01ARZ3NDEKTSV4RRFFQ69G5FAV", "id order-01BX5ZZKBKACTAV9WEVGEMMVRZ"),
    ("id V1StGXR8_Z5jdHi6B-myT", "id 4f90d13a42Qx_7Bz9KpL2"),
    ("id cus_NffrFeUfNV2Hib", "id cus_9s6XKzkNRiz8i3"),
    ("at 0x7f00dead", "at 0x1"),
    (r"C:\Users\ann\a.txt is gone", r"D:\Program Files\b.txt is gone"),
    (r"\\server\share\a is gone", r"c:\b is gone"),
    ("no /tmp/tmpab12cd_x/out", "no /tmp/tmpzzzzzzzz/out"),
    ("a\n  b", "a b"),
    ("  a ", "a"),
]


@pytest.mark.parametrize(("one", "other"), FOLDED)
def test_what_differs_from_case_to_case_is_folded_out(one: str, other: str) -> None:
    assert fold_message(one) == fold_message(other)
    assert of(one) == of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("connection refused", "connection reset"),
        ("user 17 is gone", "order 17 is gone"),
        ("deadbeef", "feedface"),
        ("", "x"),
        ("can't open it, won't close it", "can't read it, won't close it"),
        ("'tis lost at sea", "'tis found at sea"),
        ('a 5" disk is lost', 'a 5" disk is full'),
        ("TASK_V2_FAILED", "TASK_V2_REFUSED"),
        ("S3UploadFailedError", "S3UploadTimeoutError"),
        ("Sha256WithRsa2048Failed", "Sha256WithRsa2048Refused"),
        ("SHA256RSAFailed", "SHA256RSARefused"),
        ("V2GetRowByKey", "V2PutRowByKey"),
        ("OAuth2TokenRefreshFailed", "OAuth2TokenRequestFailed"),
        ("app-v2-orders-eu-1", "app-v2-users-eu-1"),
        ("x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl"),
        ("ENOENT", "EACCES"),
        ("[Errno 2] no", "[Errno 13] no"),
        ("HTTP 404", "HTTP 503"),
        ("HTTP/1.1 404", "HTTP/1.1 503"),
        ("status code: 404", "status code: 503"),
        ("status=404", "status=503"),
        ("Client error '404 Not Found' for url", "Client error '403 Forbidden' for url"),
        ("exit code 1", "exit code 137"),
        ("killed by signal 9", "killed by signal 15"),
        ("std::vector is empty", "std::map is empty"),
        ("cus_NffrFeUfNV2Hib", "sub_NffrFeUfNV2Hib"),
        ("order-01ARZ3NDEKTSV4RRFFQ69G5FAV", "user-01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("POST /users failed", "POST /orders failed"),
    ],
)
def test_what_tells_reasons_apart_is_kept(one: str, other: str) -> None:
    assert of(one) != of(other)


@pytest.mark.parametrize(("one", "other"), [("order code 1234", "order code 99999"), ("status 5000", "status 12.75")])
def test_a_long_number_tells_no_reason(one: str, other: str) -> None:
    assert of(one) == of(other)


def test_name_and_code_are_part_of_the_reason() -> None:
    same = [of("x", name="a", code="b"), of("x", name="b", code="a"), of("x", name="a"), of("x", code="b")]

    assert len(set(same)) == 4


@pytest.mark.parametrize(("message", "pinned"), PINNED)
def test_a_fingerprint_is_the_same_in_every_release_and_process(message: str, pinned: str) -> None:
    assert of(message) == pinned, "another VERSION is due, and with it other groups"


@given(TEXT, TEXT, TEXT)
def test_it_is_16_digits_of_any_text_and_always_the_same(name: str, code: str, message: str) -> None:  # F41
    first = fingerprint(name=name, code=code, message=message)

    assert re.fullmatch("[0-9a-f]{16}", first)
    assert fingerprint(name=name, code=code, message=message) == first


@given(st.text(st.characters(), max_size=3000))
def test_folded_text_is_one_short_line(message: str) -> None:
    text = fold_message(message)

    assert len(text) <= MAX_FOLDED_CHARS
    assert "\n" not in text


@pytest.mark.parametrize(
    "piece",
    [
        "a", "f", "1", "a@", "a.", "a@a.", "'", '"', "`", "a://", "0x", "1.1.", "-", "a-", " ", "\n", "é",
        " 'a", "'a'b", " 'a\\", "b'", "\u2018", "\u201e", "\u00ab", "a:", "1:", "::", "[1:", "C:\\", "C:\\a ", "\\",
        "2031-", "Jan ", "1 Jan ", "Mon, ", "status ", "1,", "b2-", "a1", "A1b_", "aA1-", "word-", "<n>, ", "'x', ",
    ],
)  # fmt: skip
def test_no_message_makes_folding_slow(piece: str) -> None:  # F72
    started = time.thread_time()  # not the clock of the wall: other tests run at the same time

    fold_message(piece * 20_000)

    assert time.thread_time() - started < 0.5
