"""The emulator's own process: localemu, with functions as processes of this machine where it would use Docker.

It runs in localemu's virtual environment: ``python -m tools.deployed.process_executor``. The drive holds the writing
end of its standard input: when the drive ends, however it ends, the emulator and its containers end, too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from localemu.runtime.main import main
from localemu.services.apigateway.resource_providers.aws_apigateway_stage import ApiGatewayStageProvider
from localemu.services.cloudformation.engine.v2.change_set_model import ChangeSetModel, ChangeType
from localemu.services.cloudformation.engine.v2.change_set_model_preproc import PreprocResource
from localemu.services.cloudformation.resource_provider import OperationStatus, ProgressEvent
from localemu.services.lambda_.invocation import runtime_executor
from localemu.services.lambda_.invocation.lambda_models import FunctionVersion, InvocationResult

from tests.end_to_end.deployed.chains import new_trace
from tests.end_to_end.deployed.container import Container, Invocation

RUNTIME_PYTHON: Final = "TIDEMILL_RUNTIME_PYTHON"
RUN_FOLDER: Final = "TIDEMILL_RUN_FOLDER"
INVOCATIONS: Final = "invocations.jsonl"
"""In the run folder: one line for each invocation that starts, with the process that runs it."""

FOLDER: Final = Path(os.environ[RUN_FOLDER])
_NUMBERS: Final = itertools.count(1)
_CONTAINERS: Final[set[Container]] = set()
_LAYOUT_LOCK: Final = threading.Lock()
_FILE_NAME: Final = str.maketrans("/+=", "___")


class ProcessExecutor(runtime_executor.RuntimeExecutor):  # type: ignore[misc] # localemu has no types
    """One execution environment of a function version: a process under Lambda's own runtime, on our Runtime API."""

    def __init__(self, id: str, function_version: FunctionVersion) -> None:  # noqa: A002 - localemu's name
        super().__init__(id, function_version)
        self._environment: dict[str, str] = {}
        self._container: Container | None = None
        self._is_in_use = threading.Lock()
        self._logged = 0

    def start(self, env_vars: dict[str, Any]) -> None:
        """Start the process."""
        self._environment = {name: str(value) for name, value in env_vars.items() if value is not None}
        self._container = self._start_container()

    def stop(self) -> None:
        """End the process, after the invocation under way: Lambda lets that finish on an update, localemu would not."""
        threading.Thread(target=self._stop_when_idle, daemon=True).start()

    def invoke(self, payload: dict[str, str], function_timeout: int | None = None) -> InvocationResult:  # noqa: ARG002
        """Run one invocation. A process that died since the last one is replaced: localemu does not look."""
        config = self.function_version.config
        with self._is_in_use:
            if self._container is None or not self._container.is_alive:
                self._container = self._start_container()
            container = self._container
            invocation = Invocation(
                request_id=payload["invoke-id"],
                arn=payload["invoked-function-arn"],
                payload=payload["payload"].encode(),
                trace=payload.get("trace-id") or new_trace(),
                timeout=float(config.timeout),
            )
            _record_start(self.function_version.id.function_name, invocation.request_id, container)
            ended = container.run(invocation)
            logs = self.get_logs()
            new, self._logged = logs[self._logged :], len(logs)
        return InvocationResult(invocation.request_id, ended.content, ended.how != "response", new)

    def get_logs(self) -> str:
        """Return what the process has written."""
        return "" if self._container is None else self._container.output.read_text(errors="replace")

    def get_address(self) -> str:
        """Return where the process is."""
        return "127.0.0.1"

    def get_endpoint_from_executor(self) -> str:
        """Return where the process finds the emulator."""
        return "127.0.0.1"

    def get_runtime_endpoint(self) -> str:
        """Return the Runtime API for localemu's own runtime, which does not run here."""
        return ""

    @classmethod
    def prepare_version(cls, function_version: FunctionVersion) -> None:
        """Lay out the code before the first start, as Lambda does before a version becomes active."""
        _lay_out(function_version)

    @classmethod
    def cleanup_version(cls, function_version: FunctionVersion) -> None:
        """Leave the code: invocations under way still read it."""

    def _start_container(self) -> Container:
        version = self.function_version
        code = _lay_out(version)
        environment = self._environment | {
            "LAMBDA_TASK_ROOT": str(code / "task"),
            "PYTHONPATH": f"{code / 'task'}:{code / 'opt/python'}",
            "PATH": os.defpath,
            "LANG": "en_US.UTF-8",
            "TMPDIR": str(FOLDER),
            "AWS_EXECUTION_ENV": f"AWS_Lambda_{version.config.runtime}",
            "AWS_LAMBDA_LOG_LEVEL": self._environment.get("AWS_LAMBDA_LOG_LEVEL", "INFO").upper(),
        }
        for name in ("AWS_XRAY_DAEMON_ADDRESS", "_AWS_XRAY_DAEMON_ADDRESS", "_AWS_XRAY_DAEMON_PORT"):
            environment.pop(name, None)  # there is no daemon
        self._logged = 0
        container = Container(
            [os.environ[RUNTIME_PYTHON], "-m", "awslambdaric", version.config.handler],
            env=environment,
            cwd=code / "task",
            output=FOLDER / f"{version.id.function_name}-{next(_NUMBERS)}.log",
        )
        _CONTAINERS.add(container)
        return container

    def _stop_when_idle(self) -> None:
        with self._is_in_use:
            if self._container is not None:
                self._container.stop()
                _CONTAINERS.discard(self._container)


class Plugin:
    """What localemu loads its executor from."""

    def load(self) -> type[ProcessExecutor]:
        """Return the executor."""
        return ProcessExecutor


class Plugins:
    """What localemu asks for the executor that its settings name: it is ours, whatever they say."""

    def exists(self, _name: str) -> bool:
        """Tell that there is one."""
        return True

    def load(self, _name: str) -> Plugin:
        """Return what it is loaded from."""
        return Plugin()


def _lay_out(version: FunctionVersion) -> Path:
    """Return the folder of a version's code: ``task`` and ``opt``, once for all versions with the same code."""
    parts = [version.config.code, *(layer.code for layer in version.config.layers)]
    folder = FOLDER / "code" / "-".join(part.code_sha256.translate(_FILE_NAME)[:12] for part in parts)
    with _LAYOUT_LOCK:
        if folder.exists():
            return folder
        unfinished = folder.with_suffix(".unfinished")
        for part, place in zip(parts, ["task", *["opt"] * (len(parts) - 1)], strict=True):
            part.prepare_for_execution()
            shutil.copytree(part.get_unzipped_code_location(), unfinished / place, dirs_exist_ok=True)
        unfinished.rename(folder)
    return folder


def _record_start(function: str, request_id: str, container: Container) -> None:
    line = json.dumps({"function": function, "request_id": request_id, "pid": container.pid})
    with (FOLDER / INVOCATIONS).open("a") as file:
        file.write(line + "\n")


def retain_on_deletion() -> None:
    """Have a deleted stack keep what its template says: localemu takes RetainExceptOnCreate for Delete.

    It knows Retain, which differs only where a creation fails.
    """
    initialize = PreprocResource.__init__

    def initialize_retained(self: PreprocResource, **fields: Any) -> None:  # noqa: ANN401 - localemu's
        if fields.get("deletion_policy") == "RetainExceptOnCreate":
            fields["deletion_policy"] = "Retain"
        initialize(self, **fields)

    PreprocResource.__init__ = initialize_retained


def end_circles() -> None:
    """Have localemu model a circle of references: it looks at the template before SAM's transform, too.

    There the schedules are part of their functions, and the role of the schedules names the functions. What comes of
    that first look decides nothing: the transformed template, which has no circle, is looked at again.
    """
    visit = ChangeSetModel._retrieve_or_visit_resource  # noqa: SLF001
    is_unchanged = SimpleNamespace(change_type=ChangeType.UNCHANGED, properties=SimpleNamespace(properties=[]))

    def visit_once(self: ChangeSetModel, resource_name: str) -> Any:  # noqa: ANN401 - localemu's
        in_progress = self.__dict__.setdefault("_tidemill_under_way", set())
        if resource_name in in_progress:
            return is_unchanged
        in_progress.add(resource_name)
        try:
            return visit(self, resource_name)
        finally:
            in_progress.discard(resource_name)

    ChangeSetModel._retrieve_or_visit_resource = visit_once  # noqa: SLF001


def move_stages() -> None:
    """Have an update point a stage at its API's new deployment, as CloudFormation does.

    localemu leaves it at the old one, and deletes that together with the stage.
    """

    def update(_: ApiGatewayStageProvider, request: Any) -> ProgressEvent[Any]:  # noqa: ANN401 - localemu's
        model = {**request.previous_state, "DeploymentId": request.desired_state["DeploymentId"]}
        request.aws_client_factory.apigateway.update_stage(
            restApiId=model["RestApiId"],
            stageName=model["StageName"],
            patchOperations=[{"op": "replace", "path": "/deploymentId", "value": model["DeploymentId"]}],
        )
        return ProgressEvent(
            status=OperationStatus.SUCCESS, resource_model=model, custom_context=request.custom_context
        )

    ApiGatewayStageProvider.update = update


def _end_with_the_drive() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    for container in list(_CONTAINERS):
        with contextlib.suppress(OSError):
            container.stop()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_drive, daemon=True).start()
    runtime_executor.EXECUTOR_PLUGIN_MANAGER = Plugins()  # read when a version starts, so before all
    retain_on_deletion()
    end_circles()
    move_stages()
    sys.argv = sys.argv[:1]
    main()
