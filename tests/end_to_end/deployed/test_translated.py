"""The template without SAM's transform that a build writes: the same stack, and its code can be uploaded."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.cloudformation.intrinsics import REGION
from tests.end_to_end.deployed.conftest import BUILD, ROOT

TRANSLATED: Final = BUILD.with_suffix(".json")
CODE: Final = {"AWS::Lambda::Function": "Code", "AWS::Lambda::LayerVersion": "Content"}
KEYS: Final = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": REGION}


def code_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the code of each function and layer lies."""
    resources = template["Resources"].items()
    return {name: r["Properties"][CODE[r["Type"]]] for name, r in resources if r["Type"] in CODE}


def without_code(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return *template* without that, without what only `sam publish` reads, and without what SAM notes for itself."""
    copied: dict[str, Any] = json.loads(json.dumps(template))
    copied["Metadata"].pop("AWS::ServerlessRepo::Application", None)
    for resource in copied["Resources"].values():
        resource["Properties"].pop(CODE.get(resource["Type"]), None)
        resource.pop("Metadata", None)
    return copied


@pytest.fixture(scope="module")
def translated() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TRANSLATED.read_text())
    return found


@pytest.fixture
def s3() -> Iterator[tuple[str, Any]]:
    """S3's address, and a client; there is a bucket ``code``."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, region_name=REGION, aws_access_key_id="any", aws_secret_access_key="any"
    )
    client.create_bucket(Bucket="code", CreateBucketConfiguration={"LocationConstraint": REGION})
    yield url, client
    server.stop()


def test_it_is_the_stack_that_sam_would_make(translated: dict[str, Any], template: Mapping[str, Any]) -> None:
    assert without_code(translated) == without_code(template)
    assert code_of(translated).keys() == code_of(template).keys()
    assert "Transform" not in translated


def test_its_code_is_what_was_built(translated: dict[str, Any]) -> None:
    folders = {(TRANSLATED.parent / path).resolve() for path in code_of(translated).values()}

    assert folders == {path.resolve() for path in BUILD.iterdir() if path.is_dir()}


def test_its_code_is_uploaded_and_named_in_what_is_deployed(
    translated: dict[str, Any], s3: tuple[str, Any], tmp_path: Path
) -> None:
    url, client = s3
    packaged = tmp_path / "packaged.json"
    sam = [str(ROOT / "build/sam-venv/bin/sam"), "package", "--use-json", "--s3-bucket", "code"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SAM_CLI_TELEMETRY": "0", "AWS_ENDPOINT_URL": url}

    done = subprocess.run(
        [*sam, "--template-file", str(TRANSLATED), "--output-template-file", str(packaged)],
        capture_output=True, text=True, check=False, env=environment | KEYS, cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    written = json.loads(packaged.read_text())
    assert without_code(written) == without_code(translated)
    uploaded = {one["Key"] for one in client.list_objects_v2(Bucket="code")["Contents"]}
    assert all(one["S3Bucket"] == "code" and one["S3Key"] in uploaded for one in code_of(written).values())
    assert code_of(written).keys() == code_of(translated).keys()
