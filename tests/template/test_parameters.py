"""What a deployment chooses: few things, each explained and bounded."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tidemill.errors import SettingsError
from tidemill.settings import from_environment

SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:"  # an address, nothing secret


NAMES = [
    "MongoSecretArn",
    "MongoSecretKeyArn",
    "MongoDatabase",
    "CollectionPrefix",
    "SubnetIds",
    "SecurityGroupIds",
    "ExecuteSchedule",
    "ExecuteTimeout",
    "MaxExecutors",
    "Concurrency",
    "EnqueueConcurrency",
    "AccessLog",
    "RetentionDays",
    "DeadLetterRetentionDays",
    "LogRetentionDays",
    "AlarmTarget",
    "Dashboard",
    "TasksLayerArn",
    "TaskPolicyArns",
    "Architecture",
]


def accepts(parameter: dict[str, Any], value: str) -> bool:
    return re.fullmatch(parameter["AllowedPattern"], value) is not None


def test_these_are_all_and_at_most_twenty(parameters: dict[str, Any]) -> None:
    assert parameters.keys() == set(NAMES)
    assert len(NAMES) <= 20


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


def test_each_is_in_a_group_in_the_order_a_guided_deployment_asks(source: dict[str, Any]) -> None:
    groups = source["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]

    assert list(source["Parameters"]) == NAMES
    assert [name for group in groups for name in group["Parameters"]] == NAMES
    assert all(group["Label"]["default"] for group in groups)


@pytest.mark.parametrize(("name", "most", "usual"), [("MaxExecutors", 100, "5"), ("Concurrency", 64, "16")])
def test_as_many_as_the_code_takes_can_be_chosen_and_some_are_usual(
    parameters: dict[str, Any], name: str, most: int, usual: str
) -> None:
    assert [n for n in range(1001) if accepts(parameters[name], str(n))] == list(range(1, most + 1))
    assert parameters[name]["Default"] == usual


@pytest.mark.parametrize(("name", "variable"), [("MaxExecutors", "MAX_EXECUTORS"), ("Concurrency", "CONCURRENCY")])
@pytest.mark.parametrize("value", ["5.0", "2.5", "1e1", "05", "+5", "0", "-1", "5 ", "", "five", "\u0665"])
def test_what_is_counted_is_a_whole_number_as_the_code_reads_it(
    parameters: dict[str, Any], name: str, variable: str, value: str
) -> None:
    """CloudFormation's Number takes 5.0, and hands it on as it is: into the environment and the dashboard's JSON."""
    assert parameters[name]["Type"] == "String"
    assert not accepts(parameters[name], value)
    for n in (1, 5, 10, 64):
        from_environment({variable: str(n)})


@pytest.mark.parametrize(
    "value", ["", "tm_", "jobs.", "_", "x" * 32, "x" * 33, "1", "system.", "a$", " ", "a b", "tm_\n"]
)
def test_a_prefix_is_what_the_code_takes(parameters: dict[str, Any], value: str) -> None:
    def is_taken() -> bool:
        try:
            return from_environment({"TIDEMILL_PREFIX": value}).prefix == value
        except SettingsError:
            return False

    assert accepts(parameters["CollectionPrefix"], value) == is_taken()


@pytest.mark.parametrize("name", ["RetentionDays", "DeadLetterRetentionDays"])
@pytest.mark.parametrize("value", ["1", "7.5", "7.0", "1e1", "365"])
def test_days_need_not_be_whole(parameters: dict[str, Any], name: str, value: str) -> None:
    assert parameters[name]["Type"] == "Number"
    from_environment({"RETENTION_DAYS": value, "DEAD_LETTER_RETENTION_DAYS": value})


LAYER = "arn:aws:lambda:eu-central-1:123456789012:layer:our-tasks"
POLICY = "arn:aws:iam::123456789012:policy/teams/read-orders"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TasksLayerArn", f"{LAYER}:7"),
        ("TasksLayerArn", f"{LAYER.replace('arn:aws:', 'arn:aws-us-gov:')}:123"),
        ("TaskPolicyArns", POLICY),
        ("TaskPolicyArns", f"{POLICY},arn:aws:iam::aws:policy/AmazonSESFullAccess"),
        ("TaskPolicyArns", ",".join([POLICY] * 8)),  # a role has ten, two are ours
    ],
)
def test_a_layer_and_policies_of_ones_own_are_named_by_their_arns(
    parameters: dict[str, Any], name: str, value: str
) -> None:
    assert accepts(parameters[name], value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TasksLayerArn", LAYER),
        ("TasksLayerArn", f"{LAYER}:latest"),
        ("TasksLayerArn", f"{LAYER}:7,{LAYER}:8"),
        ("TasksLayerArn", "our-tasks:7"),
        ("TaskPolicyArns", f"{POLICY}, {POLICY}"),
        ("TaskPolicyArns", f"{POLICY},"),
        ("TaskPolicyArns", "AmazonSESFullAccess"),
        ("TaskPolicyArns", "arn:aws:iam::123456789012:role/read-orders"),
        ("TaskPolicyArns", ",".join([POLICY] * 9)),
    ],
)
def test_anything_else_is_no_layer_and_no_policies(parameters: dict[str, Any], name: str, value: str) -> None:
    assert not accepts(parameters[name], value)


@pytest.mark.parametrize("value", ["", "0", "1", "10", "9999"])
def test_the_concurrency_of_enqueue_is_a_whole_number_or_not_reserved(parameters: dict[str, Any], value: str) -> None:
    assert accepts(parameters["EnqueueConcurrency"], value)


@pytest.mark.parametrize("value", ["-1", "05", "1.5", "ten", " ", "10000"])
def test_anything_else_is_no_concurrency(parameters: dict[str, Any], value: str) -> None:
    assert not accepts(parameters["EnqueueConcurrency"], value)


def test_an_executor_may_run_for_up_to_fifteen_minutes(parameters: dict[str, Any]) -> None:
    values = [int(value) for value in parameters["ExecuteTimeout"]["AllowedValues"]]

    assert (min(values), max(values)) == (90, 900)
    assert parameters["ExecuteTimeout"]["Default"] == "120"


def test_what_a_mapping_is_asked_for_is_text_since_sam_on_this_machine_finds_nothing_else(
    template: dict[str, Any],
) -> None:
    """`sam local invoke` hands down what it cannot find as an empty variable."""
    parameter = template["Parameters"]["ExecuteTimeout"]

    assert {type(value) for value in [parameter["Default"], *parameter["AllowedValues"]]} == {str}
    assert parameter["Default"] in template["Mappings"]["TimeBudget"]


@pytest.mark.parametrize("name", ["MongoSecretArn", "MongoSecretKeyArn", "AlarmTarget", "TasksLayerArn"])
def test_what_must_be_in_the_stacks_region_says_so(parameters: dict[str, Any], name: str) -> None:
    assert "in the stack's region" in parameters[name]["Description"]


def test_every_timeout_that_can_be_chosen_has_its_time_budget(template: dict[str, Any]) -> None:
    chosen = template["Parameters"]["ExecuteTimeout"]["AllowedValues"]

    assert list(template["Mappings"]["TimeBudget"]) == chosen


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


@pytest.mark.parametrize(
    "value",
    [
        "",
        "team@example.org",
        "first.last+alarms@mail.example.co.uk",
        "arn:aws:sns:eu-central-1:123456789012:on-call",
        "arn:aws-cn:sns:cn-north-1:123456789012:On_call-7",
    ],
)
def test_alarms_go_to_a_mailbox_to_a_topic_or_to_nobody(parameters: dict[str, Any], value: str) -> None:
    assert accepts(parameters["AlarmTarget"], value)


@pytest.mark.parametrize(
    "value",
    [
        "team",
        "team@example",
        "@example.org",
        "a team@example.org",
        "team@example.org,other@example.org",
        "mailto:team@example.org",
        "team@example.org:",
        "https://example.org/hook",
        "arn:aws:sns:eu-central-1:123456789012:on-call.fifo",
        "arn:aws:sns:eu-central-1:123456789012:on-call:2bcf",
        "arn:aws:sqs:eu-central-1:123456789012:on-call",
        "arn:aws:lambda:eu-central-1:123456789012:function:on-call",
    ],
)
def test_alarms_go_nowhere_else(parameters: dict[str, Any], value: str) -> None:
    assert not accepts(parameters["AlarmTarget"], value)
