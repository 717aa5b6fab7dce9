"""Fails as code does that connects to something as it is imported."""

from __future__ import annotations

import os

raise ConnectionError(f"nobody at postgres://reports:{os.environ['AT_IMPORT']}@db.internal/reports")
