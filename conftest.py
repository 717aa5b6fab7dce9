"""What all tests share, those of the tools too."""

from __future__ import annotations

pytest_plugins = ["tests.fixtures"]
