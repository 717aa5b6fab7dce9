"""Write a built template as CloudFormation knows it, without SAM's transform: python layers/translate.py FOLDER FILE.

For tools that take no SAM template, such as CDK's CfnInclude. In it the code of a function or layer is a folder of the
build, relative to the file: `aws cloudformation package` and `sam package` upload it and write where it is then.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

BUILT: Final = {"AWS::Serverless::Function": "CodeUri", "AWS::Serverless::LayerVersion": "ContentUri"}
DEPLOYED: Final = {"AWS::Lambda::Function": "Code", "AWS::Lambda::LayerVersion": "Content"}
PUBLISHING: Final = "AWS::ServerlessRepo::Application"
"""Metadata for `sam publish` alone, whose paths lead from the built template."""

_BUCKET: Final = "the-build"


class NoManagedPolicies:
    """Stands in for the IAM client that would list managed policies by name; the template names none."""

    def load(self) -> dict[str, str]:
        """Return the ARNs by their names."""
        return {}


def translate(folder: Path, file: Path) -> dict[str, Any]:
    """Return the template in *folder* after SAM's transform, with paths to code that lead from *file*."""
    source = yaml_parse((folder / "template.yaml").read_text(encoding="utf-8"))
    source["Metadata"].pop(PUBLISHING, None)
    for resource in source["Resources"].values():
        place = BUILT.get(resource["Type"])
        if place is not None:
            resource["Properties"][place] = f"s3://{_BUCKET}/{resource['Properties'][place]}"
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")  # the transform asks for one
    logging.getLogger("samtranslator").addHandler(logging.NullHandler())  # it tells of features of its own
    template: dict[str, Any] = transform(source, {}, NoManagedPolicies())
    for resource in template["Resources"].values():
        place = DEPLOYED.get(resource["Type"])
        if place is not None:
            built = folder / resource["Properties"][place]["S3Key"]
            resource["Properties"][place] = Path(os.path.relpath(built, file.parent)).as_posix()
    return template


def main(arguments: list[str]) -> int:
    """Write the file."""
    folder, file = map(Path, arguments)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(translate(folder, file), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"  without SAM's transform in {file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
