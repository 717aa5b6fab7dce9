"""What the command line does with what it does not understand, and what it says of itself."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import CommandLine


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("idnexes",),
        ("ops",),
        ("ops", "queue", "declare"),
        ("indexes", "now"),
        (
            "ops",
            "queue",
        ),
        ("ops", "queue", "pause"),
        ("ops", "queue", "status", "eu", "us"),
        (
            "ops",
            "task",
        ),
        ("ops", "task", "show"),
        ("policy",),
        ("policy", "show"),
        ("simulate",),
        ("ops", "task", "show", "\udcff"),
        ("dlq",),
        ("dlq", "show"),
        ("dlq", "redrive"),
        ("dlq", "purge", "--yes"),
        ("dlq", "restore"),
        ("dlq", "drop"),
    ],
)
def test_what_is_not_understood_is_answered_with_the_usage(tidemill: CommandLine, arguments: tuple[str, ...]) -> None:
    said = tidemill(*arguments)

    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("Usage: tidemill")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (
            "ops",
            "queue",
        ),
        ("ops", "queue", "ls"),
        ("ops", "queue", "set"),
        ("ops", "task", "show"),
        ("policy", "show"),
        (
            "ops",
            "stats",
        ),
        ("simulate",),
        ("indexes",),
        ("dlq",),
        ("dlq", "ls"),
        ("dlq", "redrive"),
        ("dlq", "restore"),
    ],
)
def test_help_is_given_without_a_database(tidemill: CommandLine, arguments: tuple[str, ...]) -> None:
    assert tidemill.done(*arguments, "--help").out.startswith("Usage: tidemill")


@pytest.mark.parametrize(
    "arguments",
    [
        ("ops", "queue", "ls"),
        ("ops", "queue", "pause", "eu"),
        ("ops", "task", "show", "x"),
        (
            "ops",
            "stats",
        ),
        ("indexes",),
        ("dlq", "ls"),
        ("dlq", "redrive", "--all"),
        ("dlq", "purge", "x", "--yes"),
        ("dlq", "export"),
        ("dlq", "restore", "x"),
    ],
)
def test_without_an_address_the_variable_is_named(tidemill: CommandLine, arguments: tuple[str, ...]) -> None:
    assert tidemill.refused(*arguments) == "MONGODB_URI is missing: set it, or MONGODB_SECRET_ARN"
