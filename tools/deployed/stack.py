"""The stack: deployed, updated and deleted by ``sam``, and looked at through AWS's own interfaces."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tools.deployed.emulator import REGION, Emulator
from tools.deployed.processes import CommandError, run_command
from tools.deployed.waiting import wait_until

NAME: Final = "tidemill"
SAM_WITHIN_SEC: Final = 180.0
DELETE_WITHIN_SEC: Final = 120.0


class FunctionFailedError(Exception):
    """A function that was invoked raised an error."""


class StackError(Exception):
    """The stack is in a state that nobody wants."""


@dataclass(slots=True, kw_only=True)
class Stack:
    """One stack on the emulator; *sam* is the program.

    Attributes:
        bucket: Where ``sam deploy`` puts the code.
        outputs: By key, as the last deployment left them.
    """

    emulator: Emulator
    sam: Path
    bucket: str = "tidemill-artifacts"
    outputs: dict[str, str] = field(default_factory=dict)
    _clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str) -> Any:  # noqa: ANN401 - boto3's
        """Return a client of boto3 for the emulator."""
        make: Any = boto3.client  # its types know literal names only
        if service not in self._clients:
            self._clients[service] = make(
                service,
                endpoint_url=self.emulator.url,
                region_name=REGION,
                aws_access_key_id="test",
                aws_secret_access_key="test",
                config=Config(read_timeout=120, retries={"total_max_attempts": 1}, max_pool_connections=20),
            )
        return self._clients[service]

    def deploy(self, build: Path, parameters: dict[str, str]) -> None:
        """Deploy what is built in the folder *build*, or update the stack to it.

        Raises:
            StackError: It failed, or was not done in time; the message has what CloudFormation says of it.
        """
        try:
            self._deploy(build, parameters)
        except CommandError as error:
            raise StackError(f"{error}\nCloudFormation: {'; '.join(self._read_failures()) or 'no failure'}") from None
        [stack] = self.client("cloudformation").describe_stacks(StackName=NAME)["Stacks"]
        self.outputs = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}

    def delete(self) -> None:
        """Delete the stack, and wait until it is gone: ``sam delete`` looks only every 30 s."""
        cloudformation = self.client("cloudformation")
        [stack] = cloudformation.describe_stacks(StackName=NAME)["Stacks"]
        cloudformation.delete_stack(StackName=NAME)

        def read_status() -> str:
            [found] = cloudformation.describe_stacks(StackName=stack["StackId"])["Stacks"]
            return str(found["StackStatus"])

        wait_until(lambda: read_status() != "DELETE_IN_PROGRESS", within_sec=DELETE_WITHIN_SEC, what="deletion")
        if read_status() != "DELETE_COMPLETE":
            raise StackError(f"the stack is {read_status()}, not DELETE_COMPLETE")

    def resources(self) -> dict[str, tuple[str, str]]:
        """Return the type and the physical id of each resource, by its logical id."""
        pages = self.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=NAME)
        found = [one for page in pages for one in page["StackResourceSummaries"]]
        return {one["LogicalResourceId"]: (one["ResourceType"], one["PhysicalResourceId"]) for one in found}

    def invoke(self, function: str, event: object) -> Any:  # noqa: ANN401 - any JSON
        """Invoke a function by its logical id, and return what it answers.

        Raises:
            FunctionFailedError: It raised an error.
        """
        answer = self.client("lambda").invoke(FunctionName=self.function(function), Payload=json.dumps(event).encode())
        content = json.loads(answer["Payload"].read())
        if answer.get("FunctionError"):
            raise FunctionFailedError(f"{function}: {content.get('errorType')}: {content.get('errorMessage')}")
        return content

    def send(self, function: str, event: object) -> None:
        """Invoke a function asynchronously."""
        self.client("lambda").invoke(
            FunctionName=self.function(function), InvocationType="Event", Payload=json.dumps(event).encode()
        )

    def function(self, logical: str) -> str:
        """Return the name of a function."""
        return self.outputs[f"{logical}Name"]

    def api_key(self) -> str:
        """Return the value of the first API key."""
        answer = self.client("apigateway").get_api_key(apiKey=self.outputs["ApiKeyId"], includeValue=True)
        return str(answer["value"])

    def api_url(self) -> str:
        """Return where the emulator serves the HTTP API: it has no host name of its own."""
        api_id = self.outputs["ApiUrl"].removeprefix("https://").partition(".")[0]
        stage = self.outputs["ApiUrl"].rpartition("/")[2]
        return f"{self.emulator.url}/restapis/{api_id}/{stage}/_user_request_"

    def _deploy(self, build: Path, parameters: dict[str, str]) -> None:
        chosen = [f"{name}={value}" for name, value in parameters.items()]
        self._run_sam(
            *("deploy", "--template-file", build / "template.yaml", "--stack-name", NAME),
            *("--s3-bucket", self.bucket, "--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset"),
            *("--no-progressbar", "--no-fail-on-empty-changeset", "--parameter-overrides", *chosen),
        )

    def _read_failures(self) -> list[str]:
        try:
            events = self.client("cloudformation").describe_stack_events(StackName=NAME)["StackEvents"]
        except ClientError:  # there is no stack
            return []
        return [
            f"{one['LogicalResourceId']}: {one.get('ResourceStatusReason', one['ResourceStatus'])}"
            for one in events
            if one["ResourceStatus"].endswith("FAILED")
        ]

    def _run_sam(self, *arguments: str | Path) -> None:
        environment = self.emulator.aws_environment | {
            "SAM_CLI_TELEMETRY": "0",
            "SAM_CLI_POLL_DELAY": "1",
            "__SAM_CLI_APP_DIR": str(self.emulator.folder / "sam"),
        }
        run_command([self.sam, *arguments], env=environment, cwd=self.emulator.folder, timeout_sec=SAM_WITHIN_SEC)
