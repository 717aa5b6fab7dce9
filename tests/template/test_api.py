"""The HTTP door: five routes, one stage, a key for everything, and errors of one shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.template.deployment import Deploy

METHODS = [
    ("/tasks", "post"),
    ("/tasks/batch", "post"),
    ("/tasks/{id}", "get"),
    ("/tasks/{id}", "delete"),
    ("/queues/{queue}", "get"),
]
REFUSALS = {
    "DEFAULT_4XX": "request_refused",
    "DEFAULT_5XX": "internal",
    "ACCESS_DENIED": "forbidden",
    "INVALID_API_KEY": "forbidden",
    "MISSING_AUTHENTICATION_TOKEN": "not_found",
    "THROTTLED": "throttled",
    "REQUEST_TOO_LARGE": "too_large",
}


@pytest.fixture(scope="session")
def definition(resources: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document of the API."""
    body: dict[str, Any] = resources["Api"]["Properties"]["Body"]
    return body


def methods(definition: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(path, method): m for path, found in definition["paths"].items() for method, m in found.items()}


def test_these_are_all_routes_there_are(definition: dict[str, Any]) -> None:
    assert methods(definition).keys() == set(METHODS)


@pytest.mark.parametrize("route", METHODS)
def test_a_route_needs_an_api_key(definition: dict[str, Any], route: tuple[str, str]) -> None:
    assert methods(definition)[route]["security"] == [{"api_key": []}]


def test_the_api_key_comes_in_a_header(definition: dict[str, Any]) -> None:
    assert definition["components"]["securitySchemes"]["api_key"] == {
        "type": "apiKey",
        "name": "x-api-key",
        "in": "header",
    }


@pytest.mark.parametrize("route", METHODS)
def test_a_route_leads_to_enqueue_with_the_whole_request(definition: dict[str, Any], route: tuple[str, str]) -> None:
    integration = methods(definition)[route]["x-amazon-apigateway-integration"]

    assert integration["type"] == "aws_proxy"
    assert "${EnqueueFunction.Arn}" in integration["uri"]["Fn::Sub"]


def test_the_api_is_regional(resources: dict[str, Any]) -> None:
    assert resources["Api"]["Properties"]["EndpointConfiguration"] == {"Types": ["REGIONAL"]}


def test_there_is_one_stage(resources: dict[str, Any]) -> None:
    stages = [r["Properties"]["StageName"] for r in resources.values() if r["Type"] == "AWS::ApiGateway::Stage"]
    deployments = [r["Properties"] for r in resources.values() if r["Type"] == "AWS::ApiGateway::Deployment"]

    assert stages == ["v1"]
    assert ["StageName" in deployment for deployment in deployments] == [False]


def test_all_callers_together_are_throttled_at_twice_what_one_may_send(deploy: Deploy) -> None:
    stack = deploy()
    [stage] = stack.of_type("AWS::ApiGateway::Stage").values()
    [plan] = stack.of_type("AWS::ApiGateway::UsagePlan").values()

    assert stage["MethodSettings"] == [
        {
            "HttpMethod": "*",
            "ResourcePath": "/*",
            "ThrottlingRateLimit": 2 * plan["Throttle"]["RateLimit"],
            "ThrottlingBurstLimit": 2 * plan["Throttle"]["BurstLimit"],
        }
    ]


def test_no_request_is_logged_where_nobody_asked_for_it(deploy: Deploy) -> None:
    stack = deploy()
    [stage] = stack.of_type("AWS::ApiGateway::Stage").values()

    assert "AccessLogSetting" not in stage
    assert "AccessLogs" not in stack.of_type("AWS::Logs::LogGroup")


def test_a_logged_request_is_a_line_of_json_without_payload_path_and_key(deploy: Deploy) -> None:
    stack = deploy(AccessLog="true", LogRetentionDays=14)
    [stage] = stack.of_type("AWS::ApiGateway::Stage").values()
    line = json.loads(stage["AccessLogSetting"]["Format"])

    assert stage["AccessLogSetting"]["DestinationArn"] == stack.arn("AccessLogs")
    assert stack.of_type("AWS::Logs::LogGroup")["AccessLogs"] == {"RetentionInDays": "14"}
    assert line["requestId"] == "$context.requestId"  # without one API Gateway refuses the format
    assert set(line.values()) == {
        "$context.requestId", "$context.requestTime", "$context.identity.sourceIp", "$context.identity.apiKeyId",
        "$context.httpMethod", "$context.resourcePath", "$context.status", "$context.responseLatency",
        "$context.integration.status", "$context.integration.latency", "$context.error.responseType",
    }  # fmt: skip


def test_alarm_and_dashboard_know_the_api_by_its_name(definition: dict[str, Any]) -> None:
    assert definition["info"]["title"] == {"Ref": "AWS::StackName"}


def test_the_first_key_is_metered_by_the_plan_of_the_stage(resources: dict[str, Any]) -> None:
    plan = resources["ApiUsagePlan"]["Properties"]

    assert resources["ApiUsagePlanKey"]["Properties"] == {
        "KeyId": {"Ref": "ApiApiKey"},
        "KeyType": "API_KEY",
        "UsagePlanId": {"Ref": "ApiUsagePlan"},
    }
    assert plan["ApiStages"] == [{"ApiId": {"Ref": "Api"}, "Stage": {"Ref": "Apiv1Stage"}}]
    assert plan["Throttle"] == {"RateLimit": 100, "BurstLimit": 200}


def test_the_outputs_say_where_the_api_is_and_how_its_key_is_read(template: dict[str, Any]) -> None:
    outputs = template["Outputs"]

    assert outputs["ApiUrl"]["Value"] == {
        "Fn::Sub": "https://${Api}.execute-api.${AWS::Region}.${AWS::URLSuffix}/${Apiv1Stage}"
    }
    assert outputs["ApiKeyId"]["Value"] == {"Ref": "ApiApiKey"}
    assert "get-api-key --include-value" in outputs["ApiKeyId"]["Description"]


def test_the_outputs_name_every_function(template: dict[str, Any], resources: dict[str, Any]) -> None:
    functions = {name for name, r in resources.items() if r["Type"] == "AWS::Lambda::Function"}

    assert {name: template["Outputs"][f"{name}Name"]["Value"] for name in functions} == {
        name: {"Ref": name} for name in functions
    }


def refusals(definition: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = definition["x-amazon-apigateway-gateway-responses"]
    return found


def test_these_are_all_refusals_of_the_gateway_we_word(definition: dict[str, Any]) -> None:
    assert refusals(definition).keys() == REFUSALS.keys()


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_of_the_gateway_has_the_shape_of_our_errors(definition: dict[str, Any], kind: str) -> None:
    sent = refusals(definition)[kind]["responseTemplates"]["application/json"]
    error = json.loads(sent.replace("$context.error.messageString", '"a message that the gateway quotes"'))["error"]

    assert error.keys() == {"code", "message", "details"}
    assert error["code"] == REFUSALS[kind]
    assert error["message"].endswith((".", "quotes"))
    assert error["details"] == []


def test_only_a_route_that_does_not_exist_changes_its_status(definition: dict[str, Any]) -> None:
    statuses = {kind: r["statusCode"] for kind, r in refusals(definition).items() if "statusCode" in r}

    assert {kind: str(status) for kind, status in statuses.items()} == {"MISSING_AUTHENTICATION_TOKEN": "404"}


@pytest.mark.parametrize("kind", ["THROTTLED", "DEFAULT_5XX"])
def test_a_refusal_that_passes_says_when_to_come_again(definition: dict[str, Any], kind: str) -> None:
    assert refusals(definition)[kind]["responseParameters"] == {"gatewayresponse.header.Retry-After": "'1'"}
