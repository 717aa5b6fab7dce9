"""Eight alarms: what makes each of them ring, what keeps it silent, and whom they tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from tests.cloudformation.intrinsics import ACCOUNT, REGION, Stack
from tests.template.deployment import Deploy
from tidemill.cli import main
from tidemill.store import counts

TOPIC: Final = f"arn:aws:sns:{REGION}:{ACCOUNT}:on-call"
MAILBOX: Final = "team@example.org"
DAY: Final = 86400
MISSING: Final = {
    "RetryRateAlarm": "notBreaching",
    "RetriesExhaustedAlarm": "notBreaching",
    "LatenessAlarm": "notBreaching",
    "OldestDueAlarm": "ignore",
    "ErrorsAlarm": "notBreaching",
    "DeadLettersAlarm": "notBreaching",
    "HeartbeatAlarm": "breaching",
    "EnqueueFailuresAlarm": "notBreaching",
}
"""What each makes of periods without data: nothing happened, nothing is known, or nobody is alive."""

QUIET: Final[Mapping[str, int | None]] = {
    "enqueue": None, "execute": 0, "reclaim": 0, "archive": 0, "operate": None, "recycled": None,
    "execute_throttles": 0, "reclaim_throttles": 0, "archive_throttles": 0, "operate_throttles": None,
}  # fmt: skip
NEITHER: Final[Mapping[str, int | None]] = {"exports": None, "failed": None, "runs": 3}
TAKEN_IN: Final[Mapping[str, int | None]] = {
    "kept": 0, "refused": 0, "throttled": None, "enqueue_dropped": 0, "enqueue_untold": None, "execute_untold": None,
    "enqueue_looped": None, "execute_looped": None, "reclaim_looped": None,
}  # fmt: skip
FULL: Final = counts.COUNT_LIMIT
each_alarm = pytest.mark.parametrize("name", MISSING)


class Gauge(float):
    """A value of a gauge, which knows the one before it."""

    before: float

    def __new__(cls, value: float, *, before: float) -> Gauge:
        made = super().__new__(cls, value)
        made.before = before
        return made


FUNCTIONS: Final[Mapping[str, Callable[..., float | None]]] = {
    "IF": lambda condition, then, otherwise: then if condition else otherwise,
    "FILL": lambda value, filling: filling if value is None else value,
    "DIFF": lambda gauge: None if gauge is None else gauge - gauge.before,
}
"""CloudWatch's, for one period."""


def alarms(stack: Stack) -> dict[str, dict[str, Any]]:
    return stack.of_type("AWS::CloudWatch::Alarm")


def queries(alarm: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the one expression that an alarm looks at, and the metrics that it is made of, by id."""
    [expression] = [query for query in alarm["Metrics"] if "Expression" in query]
    return expression, {query["Id"]: query["MetricStat"] for query in alarm["Metrics"] if "MetricStat" in query}


def rings(alarm: Mapping[str, Any], **metrics: float | None) -> bool:
    """Tell whether a period with these values counts against the alarm's threshold."""
    expression, watched = queries(alarm)
    assert metrics.keys() == watched.keys()
    value = eval(expression["Expression"], {"__builtins__": {}}, {**FUNCTIONS, **metrics})
    assert alarm["ComparisonOperator"] == "GreaterThanThreshold"
    return bool(value > alarm["Threshold"])


def statistics(alarm: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics an alarm watches, each with what is made of its values."""
    if "Metrics" not in alarm:
        return {alarm["MetricName"]: alarm.get("Statistic") or alarm["ExtendedStatistic"]}
    return {watched["Metric"]["MetricName"]: watched["Stat"] for watched in queries(alarm)[1].values()}


def test_these_are_all_alarms_there_are(deploy: Deploy) -> None:
    assert alarms(deploy()).keys() == MISSING.keys()


@each_alarm
def test_an_alarm_knows_what_no_data_means(deploy: Deploy, name: str) -> None:
    assert alarms(deploy())[name]["TreatMissingData"] == MISSING[name]


@each_alarm
def test_an_alarm_says_what_it_means_and_what_to_do_first(deploy: Deploy, name: str) -> None:
    meaning, _, first = alarms(deploy())[name]["AlarmDescription"].partition(" First: ")

    assert meaning.endswith(".")
    assert first.endswith(".")
    assert len(meaning) + len(first) < 1000  # 1024 is what CloudWatch takes


@each_alarm
def test_an_alarm_can_be_made(deploy: Deploy, name: str) -> None:
    alarm = alarms(deploy())[name]
    watched = list(queries(alarm)[1].values()) if "Metrics" in alarm else [alarm]
    [period] = {one["Period"] for one in watched}

    assert len(watched) <= 10
    assert period % 60 == 0
    assert period * alarm["EvaluationPeriods"] <= DAY
    assert 1 <= alarm["DatapointsToAlarm"] <= alarm["EvaluationPeriods"]


@pytest.mark.parametrize(
    "name", ["RetryRateAlarm", "RetriesExhaustedAlarm", "ErrorsAlarm", "DeadLettersAlarm", "EnqueueFailuresAlarm"]
)
def test_an_expression_is_made_of_the_metrics_beside_it_and_alone_is_looked_at(deploy: Deploy, name: str) -> None:
    alarm = alarms(deploy())[name]
    expression, watched = queries(alarm)

    assert set(re.findall(r"\b[a-z]\w*", expression["Expression"])) == watched.keys()
    assert [query["Id"] for query in alarm["Metrics"] if query.get("ReturnData", True)] == [expression["Id"]]
    assert {"Namespace", "MetricName", "Dimensions", "Period"}.isdisjoint(alarm)


@each_alarm
def test_an_alarm_watches_this_stack_only(deploy: Deploy, name: str) -> None:
    stack = deploy(name="orders")
    alarm = alarms(stack)[name]
    metrics = [one["Metric"] for one in queries(alarm)[1].values()] if "Metrics" in alarm else [alarm]

    for metric in metrics:
        [dimension] = metric["Dimensions"]
        if metric["Namespace"] == "Tidemill":
            assert dimension == {"Name": "service", "Value": "orders"}
        elif metric["Namespace"] == "AWS/ApiGateway":
            assert dimension == {"Name": "ApiName", "Value": "orders"}
        else:
            assert dimension["Value"].startswith("orders-")


def test_the_rate_of_retries_is_of_claims_in_the_same_five_minutes(deploy: Deploy) -> None:
    alarm = alarms(deploy())["RetryRateAlarm"]

    assert statistics(alarm) == {"claimed": "Sum", "retries_total": "Sum"}
    assert {one["Period"] for one in queries(alarm)[1].values()} == {300}


@pytest.mark.parametrize(("claimed", "retries"), [(20, 3), (1000, 101)])
def test_more_than_a_tenth_of_the_claims_is_too_many_retries(deploy: Deploy, claimed: int, retries: int) -> None:
    assert rings(alarms(deploy())["RetryRateAlarm"], claimed=claimed, retries=retries)


@pytest.mark.parametrize(("claimed", "retries"), [(19, 19), (20, 2), (1000, 100), (1000, None)])
def test_a_tenth_is_not_nor_is_any_number_of_fewer_than_twenty(
    deploy: Deploy, claimed: int, retries: int | None
) -> None:
    assert not rings(alarms(deploy())["RetryRateAlarm"], claimed=claimed, retries=retries)


@pytest.mark.parametrize(
    "counted",
    [
        {"enqueue": 1},
        {"execute": 1},
        {"execute": 1, "recycled": None},
        {"execute": 2, "recycled": 1},
        {"reclaim": 1},
        {"archive": 1},
        {"operate": 1},
        {"execute_throttles": 1},
        {"reclaim_throttles": 1},
        {"archive_throttles": 1},
        {"operate_throttles": 1},
    ],
)
def test_an_error_of_any_function_rings(deploy: Deploy, counted: dict[str, int | None]) -> None:
    assert rings(alarms(deploy())["ErrorsAlarm"], **{**QUIET, **counted})


@pytest.mark.parametrize("counted", [{}, {"execute": 1, "recycled": 1}, {"recycled": 1}])
def test_an_executor_that_ends_itself_is_no_error(deploy: Deploy, counted: dict[str, int]) -> None:
    assert not rings(alarms(deploy())["ErrorsAlarm"], **{**QUIET, **counted})


def named_functions(stack: Stack, watched: Mapping[str, Any], metric: str) -> set[str]:
    """Return the functions of which *watched* has a metric of Lambda; their ids say of which."""
    found = {}
    for query, one in watched.items():
        if (one["Metric"]["Namespace"], one["Metric"]["MetricName"]) == ("AWS/Lambda", metric):
            found[query] = one["Metric"]["Dimensions"][0]["Value"]
    names = {stack.name_of(name): name for name in stack.of_type("AWS::Lambda::Function")}
    assert all(
        query == "throttled" or names[value].lower().startswith(query.partition("_")[0])
        for query, value in found.items()
    )
    return {names[value] for value in found.values()}


def test_the_errors_are_those_of_all_five_functions(deploy: Deploy) -> None:
    stack = deploy()
    _, watched = queries(alarms(stack)["ErrorsAlarm"])
    recycled = watched.pop("recycled")["Metric"]
    functions = set(stack.of_type("AWS::Lambda::Function"))

    assert (recycled["Namespace"], recycled["MetricName"]) == ("Tidemill", "recycled")
    assert named_functions(stack, watched, "Errors") == functions
    assert named_functions(stack, watched, "Throttles") == functions - {"EnqueueFunction"}  # see what is not taken in


@pytest.mark.parametrize("timeout", [90, 120, 180, 300, 600, 900])
def test_executors_that_die_one_after_the_other_at_the_end_of_their_lives_ring(deploy: Deploy, timeout: int) -> None:
    """Lambda dates an error by the start of the invocation and tells of it after the end: an alarm that looks back for
    less never sees it, and for two of one executor it must look back until a third is told of."""
    alarm = alarms(deploy(ExecuteTimeout=timeout))["ErrorsAlarm"]
    [period] = {one["Period"] for one in queries(alarm)[1].values()}
    next_tick, told_after = 60, 60

    window = period * alarm["EvaluationPeriods"]
    assert window >= timeout + 3 * period
    assert window >= 3 * timeout + 2 * next_tick + told_after
    assert alarm["DatapointsToAlarm"] == 2
    assert window <= max(4 * period, 3 * timeout + 2 * period)  # no longer than that: else any two errors ring


def test_dead_letters_are_watched_by_number_and_by_what_cannot_be_exported(deploy: Deploy) -> None:
    alarm = alarms(deploy())["DeadLettersAlarm"]

    assert statistics(alarm) == {
        "failed_exports": "Sum", "dead_letters": "Maximum", "failed": "Sum", "Invocations": "Sum"
    }  # fmt: skip


@pytest.mark.parametrize("runs", [None, 0])
def test_an_archive_that_does_not_run_rings(deploy: Deploy, runs: int | None) -> None:
    alarm = alarms(deploy())["DeadLettersAlarm"]

    assert rings(alarm, letters=Gauge(0, before=0), **{**NEITHER, "runs": runs})


def test_before_the_stack_was_made_archive_did_not_run_and_nothing_rings(deploy: Deploy) -> None:
    alarm = alarms(deploy())["DeadLettersAlarm"]

    assert not rings(alarm, letters=None, **{**NEITHER, "runs": None})
    stack = deploy()
    [invocations] = [
        one["Metric"] for one in queries(alarm)[1].values() if one["Metric"]["MetricName"] == "Invocations"
    ]
    assert invocations["Dimensions"][0]["Value"] == stack.name_of("ArchiveFunction")


@pytest.mark.parametrize(
    ("letters", "counted"),
    [
        (Gauge(10, before=9), {}),
        (Gauge(9, before=9), {"exports": 1}),
        (None, {"exports": 1}),  # reclaim is down, too
        (Gauge(4, before=9), {"exports": 1}),
        (Gauge(FULL, before=FULL), {"failed": 1}),
    ],
)
def test_dead_letters_that_grow_or_cannot_be_exported_ring(
    deploy: Deploy, letters: Gauge | None, counted: dict[str, int]
) -> None:
    assert rings(alarms(deploy())["DeadLettersAlarm"], letters=letters, **{**NEITHER, **counted})


@pytest.mark.parametrize(
    ("letters", "counted"),
    [
        (Gauge(0, before=0), {}),
        (None, {}),
        (Gauge(9, before=9), {}),
        (Gauge(4, before=9), {}),
        (Gauge(9, before=9), {"failed": 1}),  # not moved yet
        (Gauge(FULL, before=FULL), {}),
    ],
)
def test_dead_letters_that_are_there_do_not_ring(
    deploy: Deploy, letters: Gauge | None, counted: dict[str, int]
) -> None:
    assert not rings(alarms(deploy())["DeadLettersAlarm"], letters=letters, **{**NEITHER, **counted})


@pytest.mark.parametrize(
    ("name", "watched", "threshold"),
    [
        (
            "RetriesExhaustedAlarm",
            {"retry_exhausted_total": "Sum", "registration_faults": "Sum"},
            ("GreaterThanThreshold", 0),
        ),
        ("HeartbeatAlarm", {"clock_skew_seconds": "SampleCount"}, ("LessThanThreshold", 1)),
    ],
)
def test_one_is_too_many_or_none_too_few(
    deploy: Deploy, name: str, watched: dict[str, str], threshold: tuple[str, int]
) -> None:
    alarm = alarms(deploy())[name]

    assert statistics(alarm) == watched
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == threshold


@pytest.mark.parametrize(
    ("counted", "is_too_many"),
    [
        ({"exhausted": None, "faults": None}, False),
        ({"exhausted": 1, "faults": None}, True),
        ({"exhausted": None, "faults": 5}, True),
    ],
)
def test_a_fault_of_a_registration_rings_as_a_task_without_a_retry_left_does(
    deploy: Deploy, counted: dict[str, int | None], *, is_too_many: bool
) -> None:
    assert rings(alarms(deploy())["RetriesExhaustedAlarm"], **counted) == is_too_many


def test_five_minutes_without_a_run_of_reclaim_are_too_many(deploy: Deploy, resources: dict[str, Any]) -> None:
    alarm = alarms(deploy())["HeartbeatAlarm"]

    assert resources["ReclaimFunctionTick"]["Properties"]["ScheduleExpression"] == "rate(1 minute)"
    assert (alarm["Period"], alarm["EvaluationPeriods"], alarm["DatapointsToAlarm"]) == (60, 5, 5)


def test_the_queue_that_is_watched_is_where_enqueue_leaves_its_failures(deploy: Deploy) -> None:
    kept = queries(alarms(deploy())["EnqueueFailuresAlarm"])[1]["kept"]

    assert (kept["Metric"]["Namespace"], kept["Stat"]) == ("AWS/SQS", "Maximum")
    assert kept["Metric"]["Dimensions"][0]["Name"] == "QueueName"
    assert "EnqueueFailures" in kept["Metric"]["Dimensions"][0]["Value"]


@pytest.mark.parametrize(
    "counted",
    [
        {"kept": 1},
        {"refused": 5},
        {"throttled": 5},
        {"enqueue_dropped": 1},
        {"enqueue_untold": 1},
        {"execute_untold": 1},
        {"enqueue_looped": 1},
        {"execute_looped": 1},
        {"reclaim_looped": 1},
    ],
)
def test_what_was_sent_and_does_not_arrive_rings(deploy: Deploy, counted: dict[str, int]) -> None:
    assert rings(alarms(deploy())["EnqueueFailuresAlarm"], **{**TAKEN_IN, **counted})


@pytest.mark.parametrize("counted", [{}, {"refused": 4, "throttled": 4}, dict.fromkeys(TAKEN_IN)])
def test_a_request_that_its_caller_repeats_does_not_ring(deploy: Deploy, counted: dict[str, int | None]) -> None:
    assert not rings(alarms(deploy())["EnqueueFailuresAlarm"], **{**TAKEN_IN, **counted})


def test_events_are_watched_of_the_functions_that_they_are_of(deploy: Deploy, resources: dict[str, Any]) -> None:
    stack = deploy()
    _, watched = queries(alarms(stack)["EnqueueFailuresAlarm"])
    chained = {name for name, r in resources.items() if r["Properties"].get("RecursiveLoop") == "Allow"}
    repeated = {
        r["Properties"]["FunctionName"]["Ref"]
        for r in resources.values()
        if r["Type"] == "AWS::Lambda::EventInvokeConfig" and r["Properties"]["MaximumRetryAttempts"]
    }
    told = {
        r["Properties"]["FunctionName"]["Ref"]
        for r in resources.values()
        if r["Type"] == "AWS::Lambda::EventInvokeConfig"
        and r["Properties"].get("DestinationConfig", {}).get("OnFailure")
    }

    assert named_functions(stack, watched, "AsyncEventsDropped") == repeated  # of others each error is one
    assert named_functions(stack, watched, "RecursiveInvocationsDropped") == chained
    assert named_functions(stack, watched, "DestinationDeliveryFailures") == told
    assert named_functions(stack, watched, "Throttles") == {"EnqueueFunction"}
    refused = watched["refused"]["Metric"]
    assert (refused["Namespace"], refused["MetricName"]) == ("AWS/ApiGateway", "5XXError")


@pytest.mark.parametrize("name", ["LatenessAlarm", "OldestDueAlarm"])
@pytest.mark.parametrize("timeout", [90, 120, 180, 300, 600, 900])
def test_late_is_twice_what_full_executors_and_the_tick_after_them_may_take(
    deploy: Deploy, name: str, timeout: int
) -> None:
    assert alarms(deploy(ExecuteTimeout=timeout))[name]["Threshold"] == max(300, 2 * (timeout + 60))


@pytest.mark.parametrize("name", ["LatenessAlarm", "OldestDueAlarm"])
def test_a_slower_schedule_may_be_later(deploy: Deploy, name: str) -> None:
    assert alarms(deploy(ExecuteSchedule="rate(1 hour)"))[name]["Threshold"] == 2 * 3600


def test_nobody_is_told_where_nobody_is_named(deploy: Deploy) -> None:
    stack = deploy()

    assert [name for name, alarm in alarms(stack).items() if {"AlarmActions", "OKActions"} & alarm.keys()] == []
    assert stack.of_type("AWS::SNS::Topic") | stack.of_type("AWS::SNS::TopicPolicy") == {}


@each_alarm
def test_a_given_topic_is_told_when_it_begins_and_when_it_is_over(deploy: Deploy, name: str) -> None:
    stack = deploy(AlarmTarget=TOPIC)
    alarm = alarms(stack)[name]

    assert (alarm["AlarmActions"], alarm["OKActions"]) == ([TOPIC], [TOPIC])
    assert stack.of_type("AWS::SNS::Topic") | stack.of_type("AWS::SNS::TopicPolicy") == {}


@each_alarm
def test_a_mailbox_is_told_through_a_topic_that_is_made_for_it(deploy: Deploy, name: str) -> None:
    stack = deploy(AlarmTarget=MAILBOX)
    alarm = alarms(stack)[name]

    assert stack.of_type("AWS::SNS::Topic") == {
        "AlarmTopic": {"Subscription": [{"Protocol": "email", "Endpoint": MAILBOX}]}  # no key: see the template
    }
    assert (alarm["AlarmActions"], alarm["OKActions"]) == ([stack.arn("AlarmTopic")], [stack.arn("AlarmTopic")])


def test_only_alarms_of_the_stack_may_publish_to_the_topic_made(deploy: Deploy) -> None:
    stack = deploy(AlarmTarget=MAILBOX, name="orders")
    policy = stack.of_type("AWS::SNS::TopicPolicy")["AlarmTopicPolicy"]

    assert policy["Topics"] == [stack.arn("AlarmTopic")]
    assert policy["PolicyDocument"]["Statement"] == [
        {
            "Sid": "OnlyAlarmsOfThisStack",
            "Effect": "Allow",
            "Principal": {"Service": "cloudwatch.amazonaws.com"},
            "Action": "sns:Publish",
            "Resource": stack.arn("AlarmTopic"),
            "Condition": {
                "StringEquals": {"aws:SourceAccount": ACCOUNT},
                "ArnLike": {"aws:SourceArn": f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:orders-*"},
            },
        },
        {
            "Sid": "OnlyOverTLS",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sns:Publish",
            "Resource": stack.arn("AlarmTopic"),
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        },
    ]


def test_an_empty_target_is_not_split(template: dict[str, Any]) -> None:
    """Nobody promises that an empty text can be: the one in the condition has a colon at least."""
    assert template["Conditions"]["TellsTopic"] == {
        "Fn::Equals": [{"Fn::Select": [0, {"Fn::Split": [":", {"Fn::Sub": "${AlarmTarget}:"}]}]}, "arn"]
    }


@each_alarm
def test_a_command_that_an_alarm_advises_exists(deploy: Deploy, capsys: pytest.CaptureFixture[str], name: str) -> None:
    description = alarms(deploy())[name]["AlarmDescription"]

    for command in re.findall(r"tidemill (ops [a-z]+ ?[a-z]*|dlq [a-z]+)", description):
        assert main([*command.split(), "--help"]) == 0, command
    capsys.readouterr()
