"""``tidemill ops caller``."""

from __future__ import annotations

from tests.cli.conftest import CommandLine


def test_rights_are_granted_listed_and_revoked(operator: CommandLine) -> None:
    # S06
    assert operator.done("ops", "caller", "ls").out.startswith("no API key has a right in ")

    granted = operator.done("ops", "caller", "grant", "k9p2s7x4q1", "queues.read").out
    assert granted.startswith("API key k9p2s7x4q1 has queues.read in ")
    assert operator.done("ops", "caller", "ls").lines[-1].split() == ["k9p2s7x4q1", "queues.read"]
    assert operator.done("ops", "caller", "ls", "--json").json["callers"] == [
        {"key_id": "k9p2s7x4q1", "rights": ["queues.read"]}
    ]

    revoked = operator.done("ops", "caller", "revoke", "k9p2s7x4q1", "queues.read").out
    assert revoked.startswith("API key k9p2s7x4q1 has no right in ")
    assert operator.done("ops", "caller", "ls").out.startswith("no API key has a right in ")


def test_the_value_of_a_key_is_refused_and_not_printed(operator: CommandLine) -> None:
    secret = "s3cretValueOfAnApiKey" * 2

    refused = operator.refused("ops", "caller", "grant", secret, "queues.read")

    assert "give the id" in refused
    assert secret not in refused


def test_a_right_that_is_none_is_wrong_usage(operator: CommandLine) -> None:
    said = operator("ops", "caller", "grant", "k9p2s7x4q1", "queues.write")

    assert said.status == 2
    assert "queues.read" in said.err
