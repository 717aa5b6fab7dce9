"""Dead letters in S3: what is put there, and what becomes of an export where S3 says no, or nothing."""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import boto3
import pytest
from moto import mock_aws

from tests.builders import add
from tests.buried import letter, letters
from tests.fixtures import T0, ManualClock
from tests.handlers.s3_api import HANG_UP, S3Server, s3_server, silent
from tidemill import SettingsError
from tidemill.aws.s3 import OBJECT_ERRORS, READ_SEC, Bucket
from tidemill.dead_letters.export import THREADS, export
from tidemill.dead_letters.export_format import Blame, ExportError, ExportResult, decode_object
from tidemill.store.connection import Tasks

SECRET = "S3cr3t"
MOST_KEY_BYTES = 1024
HOSTILE = [
    "envoi-é😀",
    "../../x",
    "/a//b",
    "id: with space",
    "x" * 1100,
    "line\nbreak\x00",
    ".",
    "~",
    "%2F",
    {"a": "é" * 600},
]
"""Ids that S3 would not take for a key, or not for one of its own."""

ODD_TEXT: dict[str, Any] = {"name": "envoi-é😀\n", "error": {"message": "no\n\r😀", "code": "é\n", "at": T0}}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch)


def _set(environment: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.setenv(name, SECRET)
    environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
    environment.setenv("AWS_CONFIG_FILE", "/nonexistent")
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
    environment.delenv("AWS_PROFILE", raising=False)
    environment.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials it has found


@pytest.fixture
def s3(db: Any) -> Iterator[Any]:
    """S3 with a bucket that is called as the test's database."""
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket=name_of(db.name))
        yield client


def name_of(database: str) -> str:
    return database.replace("_", "-")


def run(dead: Tasks, clock: ManualClock, bucket: Bucket) -> ExportResult:
    return export(dead, bucket.put, clock=clock, until=time.monotonic() + 60)


def test_what_is_put_is_a_file_that_any_tool_unpacks_under_a_key_that_s3_takes(
    dead: Tasks, s3: Any, clock: ManualClock, now: datetime
) -> None:
    add(dead, letters(now, [*range(100), *HOSTILE], **ODD_TEXT))
    before = {bytes(raw.raw) for raw in dead.find()}
    name = name_of(dead.database.name)

    assert run(dead, clock, Bucket(name)) == ExportResult(exported=100 + len(HOSTILE))

    keys = [one["Key"] for one in s3.list_objects_v2(Bucket=name)["Contents"]]
    assert len(keys) == 100 + len(HOSTILE)
    after = set()
    for key in keys:
        assert re.fullmatch(r"dlq/2031/07/01/[A-Za-z0-9._%~-]+\.json\.gz", key)
        assert len(key.encode()) <= MOST_KEY_BYTES
        found = s3.get_object(Bucket=name, Key=key)
        body = found["Body"].read()
        assert json.loads(gzip.decompress(body))["schema_version"] == 1
        after.add(bytes(decode_object(body).raw))
        assert (found["ContentType"], found.get("ContentEncoding"), found["Metadata"]) == ("application/gzip", None, {})
    assert after == before
    assert s3.get_object_tagging(Bucket=name, Key=keys[0])["TagSet"] == []


def test_letters_wait_for_a_bucket_that_is_not_there(dead: Tasks, s3: Any, clock: ManualClock, now: datetime) -> None:
    add(dead, letters(now, range(30), **ODD_TEXT))
    before = list(dead.find().sort("_id"))
    bucket = Bucket(f"{name_of(dead.database.name)}-later")

    done = run(dead, clock, bucket)

    assert done == ExportResult(failed=done.failed, left=30, last_error="NoSuchBucket")
    assert done.failed >= THREADS
    assert list(dead.find().sort("_id")) == before

    s3.create_bucket(Bucket=f"{name_of(dead.database.name)}-later")
    assert run(dead, clock, bucket) == ExportResult(exported=30)


def test_of_an_id_that_is_purged_and_dies_again_on_that_day_the_former_object_is_an_old_version(
    dead: Tasks, s3: Any, clock: ManualClock, now: datetime
) -> None:
    name = name_of(dead.database.name)
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    deaths = [letter(now + timedelta(hours=n), _id="nightly", payload={"death": n}, **ODD_TEXT) for n in range(2)]
    for one in deaths:
        add(dead, [one])
        assert run(dead, clock, Bucket(name)) == ExportResult(exported=1)
        dead.delete_many({})

    versions = s3.list_object_versions(Bucket=name)["Versions"]

    assert {one["Key"] for one in versions} == {"dlq/2031/07/01/nightly-0.json.gz"}
    newest_first = sorted(versions, key=lambda one: not one["IsLatest"])
    bodies = [s3.get_object(Bucket=name, Key=v["Key"], VersionId=v["VersionId"])["Body"].read() for v in newest_first]
    assert [decode_object(body)["payload"]["death"] for body in bodies] == [1, 0]


def failure(bucket: Bucket) -> ExportError:
    with pytest.raises(ExportError) as refused:
        bucket.put("dlq/k.json.gz", b"body")
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__
    return refused.value


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server((200, "")) as server:
        yield server


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> Bucket:
    """A bucket of that server, connected: that takes half a second."""
    with pytest.MonkeyPatch.context() as environment:
        _set(environment)
        environment.setenv("AWS_ENDPOINT_URL_S3", server.url)
        bucket = Bucket("some-bucket")
        bucket.put("k", b"body")
    return bucket


@pytest.mark.parametrize(
    ("status", "code", "blame"),
    [
        (500, "InternalError", "bucket"), (503, "SlowDown", "bucket"), (503, "ServiceUnavailable", "bucket"),
        (404, "NoSuchBucket", "bucket"), (400, "RequestTimeout", "bucket"), (403, "AccessDenied", "either"),
        (403, "InvalidAccessKeyId", "either"), (403, "SignatureDoesNotMatch", "either"),
        (400, "ExpiredToken", "either"), (400, "KMS.DisabledException", "either"),
        (409, "OperationAborted", "either"), (400, "InvalidRequest", "either"),
    ],
)  # fmt: skip
def test_what_may_stand_against_every_object_is_told_by_its_code(
    server: S3Server, bucket: Bucket, status: int, code: str, blame: Blame
) -> None:
    server.answers, server.paths = [(status, code)], []

    error = failure(bucket)

    assert (error.code, error.blame) == (code, blame)
    assert len(server.paths) == 1


@pytest.mark.parametrize("code", sorted(OBJECT_ERRORS))
def test_what_stands_against_one_object_is_told_from_the_rest(server: S3Server, bucket: Bucket, code: str) -> None:
    server.answers = [(int(code), "") if code.isdigit() else (400, code)]

    error = failure(bucket)

    assert (error.code, error.blame) == (code, "object")


def test_a_code_that_is_no_word_is_not_repeated(server: S3Server, bucket: Bucket) -> None:
    server.answers = [(400, f"no\n{SECRET}")]

    assert failure(bucket).code == "unknown"


def test_a_server_that_hangs_up_is_asked_once_more(server: S3Server, bucket: Bucket) -> None:
    server.answers, server.paths = [(HANG_UP, ""), (200, "")], []
    bucket.put("k", b"body")
    assert len(server.paths) == 2

    server.answers = [(HANG_UP, "")]
    assert failure(bucket).code == "ConnectionClosedError"


def test_the_body_is_named_for_what_it_is_and_nothing_else_is_said_of_it(server: S3Server, bucket: Bucket) -> None:
    server.answers, server.paths, server.headers = [(200, "")], [], []

    bucket.put("dlq/2031/07/01/a%2Fb~0.json.gz", b"body")

    assert urlparse(server.paths[0]).path == "/some-bucket/dlq/2031/07/01/a%252Fb~0.json.gz"
    [sent] = server.headers
    assert sent["content-type"] == "application/gzip"
    assert not [name for name in sent if name.startswith("x-amz-meta-") or name == "x-amz-tagging"]
    assert "content-encoding" not in sent


def test_a_connection_that_was_closed_meanwhile_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server((200, ""), hangs_up=True) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        bucket = Bucket("b")
        for _ in range(3):
            bucket.put("k", b"body")
    assert len(server.paths) == 3


def test_a_put_is_waited_for_as_long_as_a_function_can_and_every_thread_has_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs: list[Any] = []

    def make_client(_: str, *, config: Any) -> Any:
        configs.append(config)
        return SimpleNamespace(put_object=lambda **_: None)

    monkeypatch.setattr(boto3, "client", make_client)

    Bucket("b").put("k", b"body")

    [chosen] = configs
    assert (chosen.connect_timeout, chosen.read_timeout, chosen.max_pool_connections) == (1, 5, THREADS)


def test_a_server_that_says_nothing_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        started = time.monotonic()
        error = failure(Bucket("b", read_sec=0.05))

        assert (error.code, error.blame) == ("ReadTimeoutError", "bucket")
        assert time.monotonic() - started < READ_SEC


def test_nobody_at_the_address_is_told_by_the_kind_of_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent() as url:
        pass
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    assert failure(Bucket("b")).code == "EndpointConnectionError"


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("AWS_ENDPOINT_URL_S3", f"no url {SECRET}", "ValueError"),
        ("AWS_PROFILE", SECRET, "ProfileNotFound"),
        ("AWS_ACCESS_KEY_ID", None, "NoCredentialsError"),
    ],
)
def test_an_environment_that_cannot_be_used_is_told_by_the_kind_of_failure(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None, code: str
) -> None:
    if value is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, value)

    assert failure(Bucket("b")).code == code


def test_a_bucket_of_no_name_is_told_by_the_kind_of_failure() -> None:
    assert failure(Bucket("no bucket / at all")).code == "ParamValidationError"


def test_without_boto3_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)

    with pytest.raises(SettingsError, match="the export needs the extra lambda, which is not installed: pip install"):
        Bucket("b").put("k", b"body")
