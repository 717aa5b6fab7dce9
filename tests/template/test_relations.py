"""What the template, the code and the events have to agree on, though each is written for itself."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import botocore.session
import pytest
from aws_lambda_powertools.shared import constants
from botocore import xform_name
from jsonschema_rs import Draft202012Validator

from tasks.deliver_webhook import Sender
from tests.handlers.calls import app
from tests.template.deployment import Deploy
from tests.template.reading import Asked
from tests.template.translating import ROOT
from tests.template.wiring import functions, named
from tidemill.aws import lambda_functions, s3
from tidemill.aws.metrics import EMIT_INTERVAL_SEC, NAMES, NAMESPACE
from tidemill.bootstrap import CLIENT_LIMITS
from tidemill.executor import scaling
from tidemill.executor.invocation import describe_short_timeout
from tidemill.executor.lifetime import LEASE_GRACE, Invocation
from tidemill.settings import Settings, from_environment
from tidemill.store.writes import TRANSACTION_TIMEOUT_SEC
from tools import schemas

API_GATEWAY_SEC = 29
"""So long API Gateway waits for a function."""

T0 = datetime(2031, 7, 1, 9, 0, tzinfo=UTC)
NOT_SHIPPED = {"cli", "dev", "simulation", "testing"}
TIMEOUTS = [90, 120, 180, 300, 600, 900]
EVENT_OF = {
    "EnqueueFunction": "direct", "ExecuteFunction": "execute", "ReclaimFunction": "sweep", "ArchiveFunction": "sweep",
    "OperateFunction": "operate",
}  # fmt: skip
GRANTED_FOR_US = {
    "sqs:ReceiveMessage",  # Lambda itself reads the queue of retries
    "sqs:DeleteMessage",
    "sqs:GetQueueAttributes",
    "kms:Decrypt",  # Secrets Manager itself decrypts
}
NAMED_OTHERWISE = {"Invoke": "InvokeFunction"}
each_timeout = pytest.mark.parametrize("timeout", TIMEOUTS)
each_function = pytest.mark.parametrize("name", EVENT_OF)


def shipped() -> Iterator[Path]:
    """Every module that is deployed."""
    for folder in (ROOT / "layers/core/tidemill", ROOT / "layers/tasks/tasks", ROOT / "functions"):
        yield from (path for path in folder.rglob("*.py") if not NOT_SHIPPED & set(path.relative_to(ROOT).parts))


def handler(name: str) -> ModuleType:
    """The module of a function."""
    return app(name.removesuffix("Function").lower())


def settings(template: dict[str, Any], timeout: int) -> Settings:
    """What an executor with this timeout is told of its time."""
    variable = functions(template)["ExecuteFunction"]["Environment"]["Variables"]["MAX_TASK_TIMEOUT_SEC"]
    mapping, by, column = variable["Fn::FindInMap"]
    assert by == {"Ref": "ExecuteTimeout"}
    return from_environment({"MAX_TASK_TIMEOUT_SEC": str(template["Mappings"][mapping][str(timeout)][column])})


# ---- time ------------------------------------------------------------------------------------------------------------


class Uptime:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def executor(template: dict[str, Any], timeout: int, uptime: Uptime) -> Invocation:
    chosen = settings(template, timeout)
    reserve = chosen.max_task_timeout + chosen.margin
    return Invocation(timedelta(seconds=timeout), reserve=reserve, monotonic=uptime)


@each_timeout
def test_a_lease_outlasts_the_timeout_whenever_it_is_taken(template: dict[str, Any], timeout: int) -> None:
    uptime = Uptime()
    life = executor(template, timeout, uptime)
    killed_at = T0 + timedelta(seconds=timeout)

    for after in (0, timeout / 2, timeout - 1, timeout):
        uptime.seconds = 1000.0 + after
        assert life.lease_until(T0 + timedelta(seconds=after)) == killed_at + LEASE_GRACE

    assert timedelta(0) < LEASE_GRACE


@each_timeout
def test_the_longest_task_ends_in_time_though_it_is_claimed_last(template: dict[str, Any], timeout: int) -> None:
    uptime, chosen = Uptime(), settings(template, timeout)
    life = executor(template, timeout, uptime)

    uptime.seconds += timeout - (chosen.max_task_timeout + chosen.margin).total_seconds()
    assert life.may_claim()
    uptime.seconds += 0.001
    assert not life.may_claim()
    uptime.seconds += chosen.max_task_timeout.total_seconds()
    assert life.remaining() > timedelta(seconds=9)  # to settle, report and log
    assert describe_short_timeout(chosen, life=timedelta(seconds=timeout)) is None


def seconds(expression: str) -> float:
    """How often a rate comes round."""
    [(number, unit)] = re.findall(r"rate\((\d+) (minute|hour|day)s?\)", expression)
    return float(number) * {"minute": 60, "hour": 3600, "day": 86400}[unit]


@pytest.mark.parametrize("name", ["ReclaimFunction", "ArchiveFunction"])
def test_a_sweep_has_ended_before_the_next_one_starts(template: dict[str, Any], name: str) -> None:
    schedule = named(template, "AWS::Scheduler::Schedule")[f"{name}Tick"]
    margin = handler(name).MARGIN.total_seconds()

    assert margin < functions(template)[name]["Timeout"] < seconds(schedule["ScheduleExpression"])


def test_reclaim_has_time_left_to_summon() -> None:
    reclaim = handler("ReclaimFunction")

    assert reclaim.MARGIN.total_seconds() > reclaim.LAUNCH_TIMEOUT_SEC


def test_archive_ends_a_transaction_and_a_put_that_it_has_begun() -> None:
    begun = max(TRANSACTION_TIMEOUT_SEC, s3.CONNECT_SEC + s3.READ_SEC)

    assert begun < handler("ArchiveFunction").MARGIN.total_seconds()


def test_a_caller_of_the_api_is_answered_before_the_gateway_gives_up(template: dict[str, Any]) -> None:
    timeout = functions(template)["EnqueueFunction"]["Timeout"]

    assert (
        handler("EnqueueFunction").MONGODB_REQUEST_BUDGET_SEC + 2 * scaling.WAKE_TIMEOUT_SEC < timeout < API_GATEWAY_SEC
    )


def test_an_operator_is_answered_before_the_function_ends_and_waits_for_it(template: dict[str, Any]) -> None:
    operate, timeout = handler("OperateFunction"), functions(template)["OperateFunction"]["Timeout"]

    assert (
        operate.MONGODB_REQUEST_BUDGET_SEC < operate.EXPORT_BUDGET_SEC < timeout < lambda_functions.OPERATE_TIMEOUT_SEC
    )


def test_what_is_counted_reaches_a_period_before_it_is_looked_at(template: dict[str, Any]) -> None:
    periods = {one["Period"] for alarm in named(template, "AWS::CloudWatch::Alarm").values() for one in measured(alarm)}

    assert min(periods) >= EMIT_INTERVAL_SEC


# ---- the environment -------------------------------------------------------------------------------------------------


def of_powertools() -> set[str]:
    values = (value for value in vars(constants).values() if isinstance(value, str))
    return {value for value in values if value.startswith("POWERTOOLS_")}


def readers(path: Path) -> Iterator[str]:
    """What in a module looks into the environment, by the names of functions; `from os import environ` counts, too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    looks = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv", "expandvars"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os" and looks & {one.name for one in node.names}:
            yield "import"
    for node in tree.body:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and inner.attr in looks:
                yield getattr(node, "name", "module")


def test_the_environment_is_looked_into_in_four_places() -> None:
    found = {(path.stem, name) for path in shipped() for name in readers(path)}

    assert found == {
        ("bootstrap", "deployment"),
        ("lambda_functions", "is_in_lambda"),
        ("lambda_functions", "may_be_repeat"),
        ("deliver_webhook", "deliver_webhook"),
    }


@each_function
def test_every_variable_that_is_declared_is_read(template: dict[str, Any], name: str) -> None:
    core, webhook = Asked(), Asked()
    from_environment(core)
    Sender.from_env(webhook)
    read = core.names | of_powertools() | (webhook.names if name == "ExecuteFunction" else set())

    assert functions(template)[name]["Environment"]["Variables"].keys() - read == set()


# ---- files -----------------------------------------------------------------------------------------------------------


def test_every_folder_of_functions_is_deployed_and_has_its_handler(source: dict[str, Any]) -> None:
    resources = source["Resources"].values()
    deployed = {r["Properties"]["CodeUri"] for r in resources if r["Type"] == "AWS::Serverless::Function"}
    file, attribute = source["Globals"]["Function"]["Handler"].split(".")

    assert deployed == {f"functions/{path.parent.name}" for path in (ROOT / "functions").glob(f"*/{file}.py")}
    assert all(callable(getattr(handler(name), attribute)) for name in EVENT_OF)


def test_every_event_is_said_to_be_for_a_function_there_is(template: dict[str, Any]) -> None:
    rows = re.findall(r"^\| `\w+\.json` \| (\w+) \|", (ROOT / "events/README.md").read_text(), re.MULTILINE)

    assert {f"{name.capitalize()}Function" for name in rows} == functions(template).keys()


def test_every_schedule_sends_what_the_schema_of_its_function_takes(template: dict[str, Any]) -> None:
    documents = schemas.documents()
    for schedule in named(template, "AWS::Scheduler::Schedule").values():
        name = schedule["Target"]["Arn"]["Fn::GetAtt"][0]
        sent = schedule["Target"]["Input"].replace("<aws.scheduler.schedule-arn>", "arn:aws:scheduler")
        sent = sent.replace("<aws.scheduler.scheduled-time>", "2026-07-01T06:00:00Z")
        assert Draft202012Validator(documents[EVENT_OF[name]]).is_valid(json.loads(sent)), name


def samconfig() -> dict[str, Any]:
    """What `sam` is told where a command line says nothing, by command."""
    found: dict[str, Any] = tomllib.loads((ROOT / "samconfig.toml").read_text(encoding="utf-8"))["default"]
    return {command: sections["parameters"] for command, sections in found.items()}


def test_no_command_takes_another_stack_than_the_one_deployed(template: dict[str, Any], deploy: Deploy) -> None:
    """A guided deployment saves the name it is given for `sam deploy` alone; what `global` said would stay, and
    `sam delete` believe it. So the other commands are told."""
    stack = deploy(name="orders")
    alarms = stack.of_type("AWS::CloudWatch::Alarm").values()
    said = [*(alarm["AlarmDescription"] for alarm in alarms), template["Outputs"]["ReclaimFunctionName"]["Description"]]
    commands = [
        one for text in said for one in re.findall(r"sam (?:remote invoke \w+|logs)(?: --stack-name \w+)?", text)
    ]

    assert [command for command, given in samconfig().items() if "stack_name" in given] == ["deploy"]
    assert len(commands) == 3
    assert all("--stack-name" in command for command in commands)
    assert [command for command in commands if not command.endswith((" orders", "NAME"))] == []


def test_a_guided_deployment_may_make_what_the_template_has(template: dict[str, Any]) -> None:
    given = {key for r in template["Resources"].values() for key in r["Properties"] if key == "RoleName"}

    assert samconfig()["deploy"]["capabilities"] == "CAPABILITY_IAM"
    assert given == set()  # which would take CAPABILITY_NAMED_IAM


# ---- what is allowed, what is measured -------------------------------------------------------------------------------


def test_what_the_code_asks_aws_for_is_what_is_granted_and_nothing_else(template: dict[str, Any]) -> None:
    aws = [path for path in shipped() if path.parent.name == "aws"]  # an import rule keeps boto3 in there
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in aws]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {call.attr for call in calls if isinstance(call, ast.Attribute)}
    session = botocore.session.Session()
    asked = {
        f"{service}:{NAMED_OTHERWISE.get(operation, operation)}"
        for service in ("secretsmanager", "lambda", "s3", "sqs", "kms")
        for operation in session.get_service_model(service).operation_names
        if xform_name(operation) in called
    }

    kinds = [named(template, "AWS::IAM::Role"), named(template, "AWS::IAM::Policy")]
    policies = [[p.get("Policies"), p.get("PolicyDocument")] for kind in kinds for p in kind.values()]
    said = re.findall(r'"Action": (?:"[^"]+"|\[[^]]+\])', json.dumps(policies))
    assert {action for one in said for action in one.split('"')[3::2]} - GRANTED_FOR_US == asked


def measured(alarm: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics an alarm looks at, each with its period."""
    if "MetricName" in alarm:
        return [alarm]
    stats = [one["MetricStat"] for one in alarm["Metrics"] if "MetricStat" in one]
    return [one["Metric"] | {"Period": one["Period"]} for one in stats]


def test_every_metric_of_ours_that_an_alarm_is_about_is_emitted(template: dict[str, Any]) -> None:
    alarms = [one for alarm in named(template, "AWS::CloudWatch::Alarm").values() for one in measured(alarm)]
    ours = {one["MetricName"] for one in alarms if one["Namespace"] == NAMESPACE}

    assert ours
    assert ours - set(NAMES) == set()
    assert {one["Namespace"] for one in alarms} == {NAMESPACE, "AWS/Lambda", "AWS/SQS", "AWS/ApiGateway"}


def test_the_number_of_connections_that_an_executor_is_said_to_hold_is_its_pool(template: dict[str, Any]) -> None:
    [said] = re.findall(r"up to (\d+) connections", template["Parameters"]["MaxExecutors"]["Description"])

    assert CLIENT_LIMITS["execute"].pool == int(said)
