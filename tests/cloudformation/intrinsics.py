"""What CloudFormation makes of the functions in a template, as far as ours uses them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

REGION: Final = "eu-central-1"
ACCOUNT: Final = "123456789012"

_NOTHING: Final = object()
_IN_TEXT: Final = re.compile(r"\$\{(!?[^}]+)\}")
_ARN_REFS: Final = ("AWS::Lambda::LayerVersion", "AWS::SNS::Topic")
_SERVICES: Final = {
    "AWS::Lambda::Function": "lambda:{region}:{account}:function:{name}",
    "AWS::Lambda::LayerVersion": "lambda:{region}:{account}:layer:{name}:1",
    "AWS::IAM::Role": "iam::{account}:role/{name}",
    "AWS::S3::Bucket": "s3:::{name}",
    "AWS::SNS::Topic": "sns:{region}:{account}:{name}",
    "AWS::SQS::Queue": "sqs:{region}:{account}:{name}",
    "AWS::CloudWatch::Alarm": "cloudwatch:{region}:{account}:alarm:{name}",
    "AWS::Logs::LogGroup": "logs:{region}:{account}:log-group:{name}:*",
}
_PLAIN: Final[Mapping[str, Callable[..., Any]]] = {
    "Fn::Select": lambda index, items: items[int(index)],
    "Fn::Join": lambda between, items: between.join(map(str, items)),
    "Fn::Split": lambda between, text: text.split(between),
    "Fn::Equals": lambda one, other: str(one) == str(other),
    "Fn::Not": lambda one: not one,
    "Fn::And": lambda *several: all(several),
    "Fn::Or": lambda *several: any(several),
}


class Stack:
    """A translated template with chosen *parameters*, as a stack called *name*; the others have their defaults."""

    def __init__(self, template: Mapping[str, Any], parameters: Mapping[str, str], *, name: str) -> None:
        self.name = name
        self.resources: Mapping[str, Mapping[str, Any]] = template["Resources"]
        self._template = template
        self._values = self._chosen(parameters) | {
            "AWS::StackName": name,
            "AWS::Region": REGION,
            "AWS::AccountId": ACCOUNT,
            "AWS::Partition": "aws",
            "AWS::URLSuffix": "amazonaws.com",
            "AWS::NoValue": _NOTHING,
        }

    def of_type(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the properties of all resources of a type, resolved, by logical id; without those left out."""
        return {
            logical: self.resolved(resource.get("Properties", {}))
            for logical, resource in self.resources.items()
            if resource["Type"] == kind and self._is_made(resource)
        }

    def resolved(self, value: Any) -> Any:
        """Return *value* with every function in it carried out.

        Raises:
            KeyError: It refers to something that is not there, or uses a function that is not known here.
        """
        if isinstance(value, list):
            return [one for one in map(self.resolved, value) if one is not _NOTHING]
        if not isinstance(value, dict):
            return value
        match list(value.items()):
            case [("Ref", name)]:
                return self._ref(name)
            case [("Condition", str(name))]:
                return self._holds(name)
            case [(function, argument)] if function.startswith("Fn::"):
                return self._carried_out(function, argument)
        every = {name: self.resolved(one) for name, one in value.items()}
        return {name: one for name, one in every.items() if one is not _NOTHING}

    def arn(self, logical: str) -> str:
        """Return the ARN of a resource."""
        kind = self.resources[logical]["Type"]
        return "arn:aws:" + _SERVICES[kind].format(region=REGION, account=ACCOUNT, name=self.name_of(logical))

    def name_of(self, logical: str) -> str:
        """Return the name CloudFormation gives a resource that has none of its own; a bucket's is in lower case."""
        suffix = hashlib.sha256(f"{self.name}/{logical}".encode()).hexdigest()[:12]
        name = f"{self.name}-{logical}-{suffix}"
        return name.lower() if self.resources[logical]["Type"] == "AWS::S3::Bucket" else name

    def _chosen(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        declared = self._template["Parameters"]
        assert parameters.keys() <= declared.keys(), "there is no such parameter"
        chosen = {name: parameters.get(name, one.get("Default")) for name, one in declared.items()}
        assert None not in chosen.values(), "a parameter has neither a value nor a default"
        return {name: _parameter(declared[name]["Type"], str(value)) for name, value in chosen.items()}

    def _is_made(self, resource: Mapping[str, Any]) -> bool:
        return "Condition" not in resource or self._holds(resource["Condition"])

    def _holds(self, condition: str) -> bool:
        return bool(self.resolved(self._template["Conditions"][condition]))

    def _ref(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        kind = self.resources[name]["Type"]
        if kind == "AWS::SQS::Queue":
            return f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{self.name_of(name)}"
        return self.arn(name) if kind in _ARN_REFS else self.name_of(name)

    def _attribute(self, logical: str, attribute: str) -> str:
        return self.arn(logical) if attribute == "Arn" else f"{self.name_of(logical)}.{attribute}"

    def _carried_out(self, function: str, argument: Any) -> Any:
        match function, argument:
            case "Fn::If", [name, then, otherwise]:
                return self.resolved(then if self._holds(name) else otherwise)
            case "Fn::GetAtt", [logical, attribute]:
                return self._attribute(logical, attribute)
            case "Fn::Sub", str(text):
                return self._substituted(text, {})
            case "Fn::Sub", [text, given]:
                return self._substituted(text, self.resolved(given))
            case "Fn::FindInMap", [name, *keys]:
                first, second = self.resolved(keys)
                return self.resolved(self._template["Mappings"][name][str(first)][second])
        return _PLAIN[function](*self.resolved(argument))

    def _substituted(self, text: str, given: Mapping[str, Any]) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name.startswith("!"):
                return f"${{{name[1:]}}}"
            if name in given:
                return str(given[name])
            logical, _, attribute = name.partition(".")
            return self._attribute(logical, attribute) if attribute else str(self._ref(name))

        return _IN_TEXT.sub(value, text)


def _parameter(kind: str, value: str) -> Any:
    if kind != "CommaDelimitedList" and not kind.startswith("List<"):
        return value
    return [one.strip() for one in value.split(",")]
