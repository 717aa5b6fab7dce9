"""The recipes for web frameworks: each is an application with its test, which run as they stand on the page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.testing import Mongod
from tools.pages import find_blocks, read_page

RECIPES = ("fastapi", "flask", "django")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_shop_of_a_recipe_passes_its_test(recipe: str, tmp_path: Path, mongod: Mongod) -> None:
    shop, tests = find_blocks(read_page(f"docs/guides/{recipe}.md"), "python")
    (tmp_path / "shop.py").write_text(shop, encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(tests, encoding="utf-8")

    left_out = [word for name in ("cacheprovider", "schemathesis") for word in ("-p", f"no:{name}")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *left_out, "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"TIDEMILL_TEST_MONGODB_URI": mongod.uri},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
