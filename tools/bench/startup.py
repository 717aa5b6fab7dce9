"""Start-up: what the first import of each built handler takes, with the bytecode that is built in and without any.

Each import is that of a new process that knows a function's folder and its layers, as they were built for this machine
by ``make build BUILD=build/e2e``. What Lambda adds, and the speed of its processors, the bench does not see.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tidemill import TidemillError
from tools.bench.figures import Figure, Scale, Section, Target
from tools.bench.measuring import spread

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build/e2e"
PYTHON: Final = ROOT / "build/runtime-venv/bin/python"
FUNCTIONS: Final = ("enqueue", "execute", "reclaim", "archive", "operate")
ROUNDS: Final[Mapping[Scale, int]] = {"toy": 1, "quick": 5, "full": 5}

SOON: Final = Target(at_most=900)
"""Milliseconds until the function that people wait for can answer."""

NONE: Final = Target(at_most=0)

IN_LAMBDA: Final = {
    "AWS_LAMBDA_FUNCTION_NAME": "enqueue",
    "EXECUTE_FUNCTION": "execute",
    "MONGODB_SECRET_ARN": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:tidemill-AbCdEf",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",  # nobody is there, and refuses at once
}

IMPORT: Final = """
import sys, time
began = time.perf_counter()
import app
took = time.perf_counter() - began
import json, os
specs = [getattr(one, "__spec__", None) for one in list(sys.modules.values())]
ours = [one.cached for one in specs if one and one.cached and one.origin.startswith(tuple(sys.argv[1:]))]
print(json.dumps({"ms": took * 1000, "modules": len(ours), "compiled": sum(map(os.path.exists, ours))}))
"""


class NotBuiltError(TidemillError):
    """There are no built functions; the message says how to build them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An import: how long it took, how many modules of the layers, and how many of these with bytecode."""

    ms: float
    modules: int
    compiled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Where functions lie, each in a folder of its own, with all their layers, and the Python that runs them."""

    functions: Mapping[str, Path]
    layers: Sequence[Path]
    python: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A handler to be imported, in an environment of these *variables*."""

    name: str
    function: str
    variables: Mapping[str, str] = field(default_factory=dict)
    target: Target | None = None

    def imported(self, code: Code) -> Start:
        """Import it in a new process, which writes no bytecode."""
        layers = [str(layer) for layer in code.layers]
        ended = subprocess.run(
            [str(code.python), "-B", "-s", "-c", IMPORT, *layers],
            cwd=code.functions[self.function],
            env={"PATH": os.defpath, "PYTHONPATH": ":".join(layers), **self.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        )
        return Start(**json.loads(ended.stdout))


FIRST: Final = Case(name="enqueue", function="enqueue", target=SOON)
WAKING: Final = Case(name="enqueue that can wake, with boto3", function="enqueue", variables=IN_LAMBDA, target=SOON)
CASES: Final[Mapping[Scale, Sequence[Case]]] = {
    "toy": [FIRST],
    "quick": [FIRST],
    "full": [FIRST, WAKING, *(Case(name=one, function=one) for one in FUNCTIONS[1:])],
}


def measure(uri: str, scale: Scale) -> Section:  # noqa: ARG001 - there is nothing to ask MongoDB
    """Return the figures; at the scale of a toy, those of the handlers as they lie in this repository.

    Raises:
        NotBuiltError: There are no built functions.
    """
    code = source() if scale == "toy" else built()
    with tempfile.TemporaryDirectory() as folder:
        return compared(code, without_bytecode(code, Path(folder)), CASES[scale], rounds=ROUNDS[scale])


def source() -> Code:
    """Return the functions as they lie in this repository."""
    functions = {name: ROOT / "functions" / name for name in FUNCTIONS}
    return Code(functions=functions, layers=[ROOT / "layers/core", ROOT / "layers/tasks"], python=Path(sys.executable))


def built(folder: Path = BUILD, *, python: Path = PYTHON) -> Code:
    """Return the functions that were built into *folder*, for *python*.

    Raises:
        NotBuiltError: There are none, or nothing that runs them.
    """
    functions = {name: folder / f"{name.capitalize()}Function" for name in FUNCTIONS}
    layers = [folder / "CoreLayer/python", folder / "TasksLayer/python"]
    if not all(one.exists() for one in (*functions.values(), *layers, python)):
        raise NotBuiltError("there are no built functions in build/e2e: `make bench` builds them first")
    return Code(functions=functions, layers=layers, python=python)


def without_bytecode(code: Code, folder: Path) -> Code:
    """Return *code* with layers that have no bytecode, which are copied into *folder*."""
    copies = [folder / str(number) for number, _ in enumerate(code.layers)]
    for layer, copy in zip(code.layers, copies, strict=True):
        shutil.copytree(layer, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return replace(code, layers=copies)


def compared(code: Code, plain: Code, cases: Sequence[Case], *, rounds: int) -> Section:
    """Return the figures of importing handlers of *code*, each time beside the same of *plain*."""
    pairs = [[(case.imported(code), case.imported(plain)) for case in cases] for _ in range(rounds)]
    by_case = list(zip(*pairs, strict=True))
    longer = spread([slow.ms / quick.ms for turn in pairs for quick, slow in turn])
    lacking = max(start.modules - start.compiled for turn in pairs for start, _ in turn)
    return Section(
        title="Start-up: a handler imported in a new process",
        figures=[
            *(_figure(case, its) for case, its in zip(cases, by_case, strict=True)),
            Figure(
                name="without bytecode",
                value=longer.median,
                unit="times as long",
                least=longer.least,
                most=longer.most,
            ),
            Figure(name="imported without bytecode", value=lacking, unit="modules", target=NONE),
        ],
    )


def _figure(case: Case, pairs: Sequence[tuple[Start, Start]]) -> Figure:
    took = spread([as_built.ms for as_built, _ in pairs])
    slow = statistics.median(plain.ms for _, plain in pairs)
    return Figure(
        name=f"import of {case.name}",
        value=took.median,
        unit="ms",
        absolute=f"{pairs[0][0].modules} modules; without bytecode {slow:.0f} ms",
        least=took.least,
        most=took.most,
        target=case.target,
    )
