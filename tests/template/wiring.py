"""What starts which function, and what each may do, as edges found in the translated template."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

Template: TypeAlias = Mapping[str, Any]

FUNCTIONS: Final = "functions"
HTTP: Final = "http"
HAND: Final = "hand"
FAILURE: Final = "on failure"
OFF: Final = "is off"
INVOKE: Final = "lambda:InvokeFunction"
SEND: Final = "sqs:SendMessage"
LOGS: Final = "AWSLambdaBasicExecutionRole"
_ALWAYS: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Edge:
    """*source* starts *target*, or may do something with it: *label* says what, *condition* in which deployments."""

    source: str
    target: str
    label: str = ""
    condition: str = _ALWAYS

    @property
    def is_exceptional(self) -> bool:
        """Whether it is there in some deployments only, or nothing comes along it when all is well."""
        return self.condition != _ALWAYS or self.label == OFF or FAILURE in self.label


def edges(template: Template) -> list[Edge]:
    """Return all triggers and permissions, one edge from node to node; what all functions may do is of all of them."""
    schedules = list(_schedules(template))
    triggers = [*_routes(template), *schedules, *_sources(template)]
    needed = {Edge(source=edge.source, target=edge.target, label=INVOKE) for edge in triggers}
    # Schedules share a role: each may start what another starts, and does not.
    needed |= {Edge(source=one.source, target=other.target, label=INVOKE) for one in schedules for other in schedules}
    failures = list(_failures(template))
    kept = {edge.target for edge in failures}
    needed |= {
        Edge(source=schedule.source, target=target, label=SEND)
        for schedule in schedules
        for target in kept
        if not any((edge.source, edge.target) == (schedule.source, target) for edge in failures)
    }
    does = _joined(edge for edge in [*failures, *_permissions(template)] if edge not in needed)
    started = {edge.target for edge in [*triggers, *does]}
    by_hand = [Edge(source=HAND, target=name) for name in functions(template) if name not in started]
    return [*triggers, *by_hand, *_of_all(does, set(functions(template)))]


def functions(template: Template) -> dict[str, Any]:
    """Return the properties of every function by its name."""
    return named(template, "AWS::Lambda::Function")


def named(template: Template, kind: str) -> dict[str, Any]:
    """Return the properties of every resource of *kind* by its name."""
    return {name: one["Properties"] for name, one in sorted(template["Resources"].items()) if one["Type"] == kind}


def _routes(template: Template) -> Iterator[Edge]:
    """Yield one edge for each function that the API leads to, with its routes."""
    routes: dict[str, list[str]] = defaultdict(list)
    for api in named(template, "AWS::ApiGateway::RestApi").values():
        for path, methods in api["Body"]["paths"].items():
            for method, one in methods.items():
                uri = one["x-amazon-apigateway-integration"]["uri"]["Fn::Sub"]
                [function] = re.findall(r"\$\{(\w+)\.Arn\}", uri)
                routes[function].append(f"{method.upper()} {path}")
    for function, found in routes.items():
        yield Edge(source=HTTP, target=function, label="<br/>".join(found))


def _schedules(template: Template) -> Iterator[Edge]:
    for name, schedule in named(template, "AWS::Scheduler::Schedule").items():
        is_off = schedule.get("State") == "DISABLED"
        yield Edge(source=name, target=_name(schedule["Target"]["Arn"]), label=OFF if is_off else "")


def _sources(template: Template) -> Iterator[Edge]:
    """Yield one edge for each queue whose messages a function gets."""
    for source in named(template, "AWS::Lambda::EventSourceMapping").values():
        yield Edge(source=_name(source["EventSourceArn"]), target=_name(source["FunctionName"]))


def _failures(template: Template) -> Iterator[Edge]:
    for name, queue in named(template, "AWS::SQS::Queue").items():
        if "RedrivePolicy" in queue:
            yield Edge(source=name, target=_name(queue["RedrivePolicy"]["deadLetterTargetArn"]), label=FAILURE)
    for name, schedule in named(template, "AWS::Scheduler::Schedule").items():
        if "DeadLetterConfig" in schedule["Target"]:
            yield Edge(source=name, target=_name(schedule["Target"]["DeadLetterConfig"]["Arn"]), label=FAILURE)
    for config in named(template, "AWS::Lambda::EventInvokeConfig").values():
        on_failure = config.get("DestinationConfig", {}).get("OnFailure")
        if on_failure is not None:
            target = _name(on_failure["Destination"])
            yield Edge(source=config["FunctionName"]["Ref"], target=target, label=FAILURE)


def _permissions(template: Template) -> Iterator[Edge]:
    """Yield one edge for each thing that an action is allowed on, from whatever has the role."""
    holders = _holders(template)
    for role, properties in named(template, "AWS::IAM::Role").items():
        for arn, condition in _chosen(properties.get("ManagedPolicyArns", [])):
            policy = _name(arn).lstrip(",").rpartition("/")[2]
            if policy not in ("", LOGS):
                yield from (Edge(source=one, target=policy, condition=condition) for one in holders[role])
        for policy, condition in _chosen(properties.get("Policies", [])):
            for holder in holders[role]:
                yield from _allowed(holder, policy["PolicyDocument"], condition)
    for name, policy in named(template, "AWS::IAM::Policy").items():
        condition = template["Resources"][name].get("Condition", _ALWAYS)
        for role in policy["Roles"]:
            for holder in holders[role["Ref"]]:
                yield from _allowed(holder, policy["PolicyDocument"], condition)


def _holders(template: Template) -> dict[str, list[str]]:
    """Return what has each role: functions, or schedules."""
    holders: dict[str, list[str]] = defaultdict(list)
    for name, function in functions(template).items():
        holders[_name(function["Role"])].append(name)
    for name, schedule in named(template, "AWS::Scheduler::Schedule").items():
        holders[_name(schedule["Target"]["RoleArn"])].append(name)
    return holders


def _allowed(holder: str, document: Mapping[str, Any], outer: str) -> Iterator[Edge]:
    for statement, inner in _chosen(document["Statement"]):
        for resource, condition in _chosen(statement["Resource"]):
            target, _, below = _name(resource).partition("/")
            for action in _listed(statement["Action"]):
                yield Edge(
                    source=holder,
                    target=target,
                    label=f"{action} {below}".rstrip(),
                    condition=condition or inner or outer,
                )


def _chosen(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield each of *value*, which may depend on a condition, with the name of that."""
    for one in _listed(value):
        if isinstance(one, dict) and "Fn::If" in one:
            condition, then, otherwise = one["Fn::If"]
            yield from ((inner, inside or condition) for inner, inside in _chosen(then))
            yield from ((inner, inside or f"not {condition}") for inner, inside in _chosen(otherwise))
        elif isinstance(one, dict) and "Fn::Split" in one:  # a list that is written as one text, of which parts depend
            yield from _chosen(one["Fn::Split"][1]["Fn::Join"][1])
        elif one != {"Ref": "AWS::NoValue"}:
            yield one, _ALWAYS


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _name(value: Any) -> str:
    """Return what an ARN is made of: the resource's or the parameter's name, and what follows a slash."""
    match value:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]}:
            return name
        case {"Fn::Sub": [str(text), dict(values)]}:
            return re.sub(r"\$\{(\w+)\}", lambda found: _name(values.get(found[1], found[1])), text)
        case {"Fn::Sub": str(text)}:
            return re.sub(r"\$\{(\w+)(\.Arn)?\}", r"\1", text)
        case {"Fn::Join": [str(glue), list(parts)]}:
            return glue.join(map(_name, parts))
    return str(value)


def _joined(found: Iterable[Edge]) -> list[Edge]:
    """Return *found* with one edge for all that leads from one node to another."""
    labels: dict[Edge, list[str]] = defaultdict(list)
    for edge in found:
        said = labels[replace(edge, label="")]
        if edge.label not in said:
            said.append(edge.label)
    return sorted(replace(edge, label="<br/>".join(said)) for edge, said in labels.items())


def _of_all(found: Sequence[Edge], everyone: set[str]) -> list[Edge]:
    """Return *found* with one edge from all functions in the place of the same from each."""
    sources: dict[Edge, set[str]] = defaultdict(set)
    for edge in found:
        sources[replace(edge, source=FUNCTIONS)].add(edge.source)
    shared = sorted(edge for edge, who in sources.items() if who == everyone)
    return [*(edge for edge in found if replace(edge, source=FUNCTIONS) not in shared), *shared]
