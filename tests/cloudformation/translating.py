"""A template as CloudFormation sees it after SAM's transform, without a network."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any, Final
from unittest import mock

from samtranslator.translator.transform import transform

from tests.cloudformation.intrinsics import REGION

_CODE: Final = ("CodeUri", "ContentUri")


class _NoManagedPolicies:
    """Stands in for the IAM client that would list the managed policies by name; we use none by name."""

    def load(self) -> dict[str, str]:
        return {}


def translated(source: Mapping[str, Any], *, location: str) -> dict[str, Any]:
    """Return *source* after the transform, as if each of its folders of code had been uploaded below *location*."""
    uploaded = copy.deepcopy(dict(source))
    for resource in uploaded["Resources"].values():
        for place in set(_CODE) & resource.get("Properties", {}).keys():
            resource["Properties"][place] = f"{location}/{resource['Properties'][place]}"
    with mock.patch.dict(os.environ, AWS_DEFAULT_REGION=REGION):
        template: dict[str, Any] = transform(uploaded, {}, _NoManagedPolicies())
    return template
