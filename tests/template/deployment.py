"""The template as a stack with chosen parameters: what they leave out is not there, every function is carried out."""

from __future__ import annotations

from typing import Any, Protocol

from tests.cloudformation.intrinsics import ACCOUNT, REGION, Stack

SECRET = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:mongodb-AbC123"  # an address, nothing secret


class Deploy(Protocol):
    """Deploys the template."""

    def __call__(self, *, name: str = "tidemill", **parameters: object) -> Stack:
        """Return the stack that the *parameters* lead to; those that are not given have their defaults."""


def deployer(template: dict[str, Any]) -> Deploy:
    """Return what deploys *template*."""

    def deploy(*, name: str = "tidemill", **parameters: object) -> Stack:
        chosen = {"MongoSecretArn": SECRET} | {one: str(value) for one, value in parameters.items()}
        return Stack(template, chosen, name=name)

    return deploy
