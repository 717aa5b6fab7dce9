"""IAM, as far as the roles of our functions use it: a statement allows actions on resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tests.cloudformation.intrinsics import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One of a policy; conditions are not looked at."""

    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]

    def covers(self, action: str, resource: str) -> bool:
        """Tell whether it speaks of this."""
        return any(fnmatchcase(action.lower(), one.lower()) for one in self.actions) and any(
            fnmatchcase(resource, one) for one in self.resources
        )


def allowed(statements: Iterable[Statement], action: str, resource: str) -> bool:
    """Tell whether the statements together allow *action* on *resource*."""
    effects = {one.effect for one in statements if one.covers(action, resource)}
    return effects == {"Allow"}


def by_role(stack: Stack) -> dict[str, list[Statement]]:
    """Return what each role of the stack may do, by its ARN, its managed policies left out: those are of logs only."""
    statements = {
        stack.arn(logical): [one for policy in role.get("Policies", ()) for one in _read(policy["PolicyDocument"])]
        for logical, role in stack.of_type("AWS::IAM::Role").items()
    }
    names = {arn.rpartition("/")[2]: arn for arn in statements}
    for policy in stack.of_type("AWS::IAM::Policy").values():
        for role in policy["Roles"]:
            statements[names[role]].extend(_read(policy["PolicyDocument"]))
    return statements


def _read(document: Mapping[str, Any]) -> list[Statement]:
    return [
        Statement(effect=one["Effect"], actions=_several(one["Action"]), resources=_several(one["Resource"]))
        for one in document["Statement"]
    ]


def _several(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
