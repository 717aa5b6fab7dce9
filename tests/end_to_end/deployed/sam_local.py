"""Prints the environment in which `sam local` runs each function of a built template: for Python of SAM's own venv.

``python sam_local.py BUILT_TEMPLATE MONGODB_URI [NAME=VALUE ...]``; what follows is what ``--env-vars`` sets beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from samcli.commands.local.lib.local_lambda import LocalLambdaRunner  # type: ignore[import-not-found]
from samcli.lib.providers.sam_function_provider import SamFunctionProvider  # type: ignore[import-not-found]
from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider  # type: ignore[import-not-found]


def main(template: str, variables: Sequence[str]) -> None:
    """Print the environments by the functions' names, and the layers that each function has."""
    chosen = dict(variable.split("=", 1) for variable in variables)
    stacks, _ = SamLocalStackProvider.get_stacks(template)
    functions = SamFunctionProvider(stacks)
    runner = LocalLambdaRunner(
        local_runtime=None,
        function_provider=functions,
        cwd=".",
        real_path=".",
        aws_profile=None,
        aws_region=None,
        env_vars_values={"Parameters": chosen},
    )
    told = {
        function.name: {
            "environment": runner.get_invoke_config(function).env_vars.resolve(),
            "layers": [layer.name for layer in function.layers],
        }
        for function in functions.get_all()
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
