"""The graph in the documentation: whole, readable, and of this template."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from tests.template.wiring import FAILURE, FUNCTIONS, HAND, HTTP, LOGS, OFF, edges, functions, named
from tools.graph import COMMAND, graph
from tools.pages import RESOURCES, read_section

NODE = re.compile(r'^ +(\w+)(?:\["|\(\["|\[\("|\[\[")([^"]+)"')
ARROW = re.compile(r'^ +(\w+) (?:-->|-\.->)(?:\|"[^"|]+"\|)? (\w+)$')


def test_the_page_has_it_as_the_template_is(template: dict[str, Any]) -> None:
    drawn = read_section(RESOURCES.read_text(encoding="utf-8"), command=COMMAND)

    assert drawn == graph(template), "run: make graph"


def test_every_arrow_leads_from_a_node_to_a_node(template: dict[str, Any]) -> None:
    lines = graph(template).splitlines()
    nodes = {found[1] for line in lines if (found := NODE.match(line))} | {FUNCTIONS}
    ends = {end for line in lines if (found := ARROW.match(line)) for end in found.groups()}

    assert [line for line in lines[2:-1] if not (NODE.match(line) or ARROW.match(line))] == [
        f"    subgraph {FUNCTIONS} [Functions]",
        "    end",
    ]
    assert ends == nodes


def test_it_is_small_enough_to_be_read(template: dict[str, Any]) -> None:
    assert len(edges(template)) < 40


def test_it_has_everything_that_starts_a_function(template: dict[str, Any]) -> None:
    drawn = edges(template)
    starting = {edge.source for edge in drawn if edge.target in functions(template)}

    assert starting >= {HTTP, HAND, "EnqueueRetries"}
    assert {edge.target for edge in drawn} >= functions(template).keys()
    assert [edge.target for edge in drawn if edge.source == HAND] == ["OperateFunction"]
    schedules = {
        edge.source: edge.label
        for edge in drawn
        if edge.source in named(template, "AWS::Scheduler::Schedule") and edge.target in functions(template)
    }
    assert {name for name, label in schedules.items() if label} == {"EnqueueFunctionRecurringExample"}
    assert schedules["EnqueueFunctionRecurringExample"] == OFF
    [routes] = [edge.label.split("<br/>") for edge in drawn if edge.source == HTTP]
    assert sorted(routes) == [
        "DELETE /tasks/{id}",
        "GET /queues/{queue}",
        "GET /tasks/{id}",
        "POST /tasks",
        "POST /tasks/batch",
    ]


def test_it_has_where_failed_enqueues_go(template: dict[str, Any]) -> None:
    labels = {(edge.source, edge.target): edge.label for edge in edges(template) if "Enqueue" in edge.target}

    assert labels["EnqueueRetries", "EnqueueFunction"] == ""
    assert labels["EnqueueRetries", "EnqueueFailures"] == FAILURE
    assert labels["EnqueueFunction", "EnqueueRetries"].startswith(FAILURE)
    assert labels["EnqueueFunctionRecurringExample", "EnqueueRetries"].startswith(FAILURE)
    assert ("ExecuteFunctionTick", "EnqueueRetries") not in labels


def test_it_has_every_action_and_every_policy_there_is(template: dict[str, Any]) -> None:
    drawn = edges(template)
    roles, policies = named(template, "AWS::IAM::Role"), named(template, "AWS::IAM::Policy")
    written = json.dumps([*(role.get("Policies") for role in roles.values()), *policies.values()])
    said = re.findall(r'"Action": (?:"[^"]+"|\[[^]]+\])', written)
    actions = {action for one in said for action in one.split('"')[3::2]}
    managed = set(re.findall(r":iam::aws:policy/[\w-]+/(\w+)", json.dumps(roles)))

    words = {word for edge in drawn for word in re.split(r"<br/>| ", edge.label)}
    assert actions - words == set()
    assert managed - {edge.target for edge in drawn} == {LOGS}
    assert "lambda:InvokeFunction" in actions


def allowing(template: dict[str, Any], policy: Any) -> dict[str, Any]:
    changed = copy.deepcopy(template)
    role = changed["Resources"]["ArchiveFunctionRole"]["Properties"]
    role["Policies"] = [*role.get("Policies", []), policy]
    return changed


def policy(action: Any, resource: Any) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": action, "Resource": resource}
    return {"PolicyName": "p", "PolicyDocument": {"Statement": [statement]}}


NOTHING = {"Ref": "AWS::NoValue"}
MORE = {
    "on another resource": (policy("sqs:SendMessage", {"Fn::GetAtt": ["Q", "Arn"]}), ("Q", "sqs:SendMessage", "")),
    "two at once": (policy(["sns:A", "sns:B"], {"Ref": "T"}), ("T", "sns:A<br/>sns:B", "")),
    "below a path": (policy("s3:GetObject", {"Fn::Sub": "${B.Arn}/in/*"}), ("B", "s3:GetObject in/*", "")),
    "if": ({"Fn::If": ["Some", policy("kms:Decrypt", {"Ref": "K"}), NOTHING]}, ("K", "kms:Decrypt", "Some")),
    "if not": (policy("kms:Decrypt", {"Fn::If": ["Some", NOTHING, {"Ref": "K"}]}), ("K", "kms:Decrypt", "not Some")),
}


@pytest.mark.parametrize("case", MORE)
def test_what_one_function_may_do_more_is_an_arrow_more(template: dict[str, Any], case: str) -> None:
    added, expected = MORE[case]

    [edge] = set(edges(allowing(template, added))) - set(edges(template))

    assert (edge.source, edge.target, edge.label, edge.condition) == ("ArchiveFunction", *expected)


def test_what_is_there_in_some_deployments_only_says_in_which(template: dict[str, Any]) -> None:
    conditions = {edge.target: edge.condition for edge in edges(template) if edge.condition}

    assert conditions == {
        "MongoSecretKeyArn": "HasSecretKey",
        "AWSLambdaVPCAccessExecutionRole": "HasNetwork",
        "TaskPolicyArns": "HasTaskPolicies",
    }


def test_what_some_functions_may_is_not_drawn_as_if_all_did(template: dict[str, Any]) -> None:
    secret = [edge.source for edge in edges(template) if edge.target == "MongoSecretArn"]
    changed = copy.deepcopy(template)
    [policy] = changed["Resources"]["OperateFunctionRole"]["Properties"]["Policies"]
    statements = policy["PolicyDocument"]["Statement"]
    statements[:] = [one for one in statements if "secretsmanager" not in str(one)]

    without = [edge.source for edge in edges(changed) if edge.target == "MongoSecretArn"]

    assert secret == [FUNCTIONS]
    assert without == ["ArchiveFunction", "EnqueueFunction", "ExecuteFunction", "ReclaimFunction"]
