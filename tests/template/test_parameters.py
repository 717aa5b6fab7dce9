"""What a deployment chooses: few things, each explained and bounded."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tidemill import PRESETS
from tidemill.requests import NAME_PATTERN

SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:"  # an address, nothing secret


def accepts(parameter: dict[str, Any], value: str) -> bool:
    return re.fullmatch(parameter["AllowedPattern"], value) is not None


def test_there_are_at_most_fifteen(parameters: dict[str, Any]) -> None:
    assert len(parameters) <= 15


def test_each_says_what_it_is(parameters: dict[str, Any]) -> None:
    assert [name for name, p in parameters.items() if not p.get("Description", "").endswith((".", ")"))] == []


def test_each_is_bounded(parameters: dict[str, Any]) -> None:
    bounds = {"AllowedValues", "AllowedPattern", "MaxValue"}

    assert [name for name, p in parameters.items() if not bounds & p.keys()] == []


def test_each_pattern_says_in_words_what_it_asks_for(parameters: dict[str, Any]) -> None:
    assert [n for n, p in parameters.items() if "AllowedPattern" in p and "ConstraintDescription" not in p] == []


def test_only_the_secret_has_no_default(parameters: dict[str, Any]) -> None:
    assert [name for name, p in parameters.items() if "Default" not in p] == ["MongoSecretArn"]


def test_each_default_is_allowed(parameters: dict[str, Any]) -> None:
    for parameter in parameters.values():
        default = parameter.get("Default")
        if "AllowedValues" in parameter:
            assert default in parameter["AllowedValues"]
        elif parameter["Type"] == "Number":
            assert parameter["MinValue"] <= default <= parameter["MaxValue"]
        elif default is not None:
            assert accepts(parameter, default)


def test_each_is_in_a_group(template: dict[str, Any], parameters: dict[str, Any]) -> None:
    groups = template["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]

    assert sorted(name for group in groups for name in group["Parameters"]) == sorted(parameters)


def test_there_is_at_least_one_executor_and_five_are_usual(parameters: dict[str, Any]) -> None:
    assert (parameters["MaxExecutors"]["MinValue"], parameters["MaxExecutors"]["Default"]) == (1, 5)


def test_an_executor_may_run_for_up_to_fifteen_minutes(parameters: dict[str, Any]) -> None:
    values = parameters["ExecuteTimeout"]["AllowedValues"]

    assert (min(values), max(values)) == (90, 900)
    assert parameters["ExecuteTimeout"]["Default"] == 120


def test_every_timeout_that_can_be_chosen_has_its_time_budget(template: dict[str, Any]) -> None:
    chosen = {str(value) for value in template["Parameters"]["ExecuteTimeout"]["AllowedValues"]}

    assert template["Mappings"]["TimeBudget"].keys() == chosen


@pytest.mark.parametrize("value", [SECRET + "mongodb-AbC123", SECRET + "prod/tidemill+uri-a1B2c3"])
def test_a_secret_is_named_by_its_whole_arn(parameters: dict[str, Any], value: str) -> None:
    assert accepts(parameters["MongoSecretArn"], value)


@pytest.mark.parametrize(
    "value",
    ["", "mongodb", SECRET, SECRET + "mongodb", SECRET + "*", SECRET + "m*-AbC123", "mongodb+srv://user:word@host/db"],
)
def test_anything_else_is_no_secret(parameters: dict[str, Any], value: str) -> None:
    assert not accepts(parameters["MongoSecretArn"], value)


@pytest.mark.parametrize("value", ["", "admin", "config", "local", "a.b", "a b", "a/b", "$x", "x" * 64])
def test_a_database_has_a_name_of_its_own(parameters: dict[str, Any], value: str) -> None:
    assert not accepts(parameters["MongoDatabase"], value)


@pytest.mark.parametrize("value", ["tidemill", "app", "administration", "my-app_2"])
def test_a_database_may_be_the_applications(parameters: dict[str, Any], value: str) -> None:
    assert accepts(parameters["MongoDatabase"], value)


@pytest.mark.parametrize("value", ["noop", "deliver_webhook", "a.b-c", "_x", "x" * 100])
def test_a_default_task_is_named_as_any_task(parameters: dict[str, Any], value: str) -> None:
    assert re.fullmatch(NAME_PATTERN, value)
    assert accepts(parameters["DefaultTask"], value)


@pytest.mark.parametrize("value", ["1x", "-x", "a b", "a/b", "$x", "x" * 101])
def test_a_default_task_that_could_not_be_registered_is_refused(parameters: dict[str, Any], value: str) -> None:
    assert not re.fullmatch(NAME_PATTERN, value)
    assert not accepts(parameters["DefaultTask"], value)


def test_the_deployments_retry_policy_is_any_preset_or_json(parameters: dict[str, Any]) -> None:
    parameter = parameters["RetryPolicy"]

    assert [name for name in PRESETS if not accepts(parameter, name)] == []
    assert [name for name in PRESETS if name not in parameter["ConstraintDescription"]] == []
    assert accepts(parameter, '{"strategy":"linear","base_sec":60,"max_retries":4}')
    assert [text for text in ("", "defaults", "5", "linear", "{}x") if accepts(parameter, text)] == []
