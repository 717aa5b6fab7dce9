"""The warm state of this process."""

from __future__ import annotations

from tidemill.bootstrap import deployment


def cool_down() -> None:
    """Close what the deployment has opened; the next use reads the environment, as in a cold start."""
    if deployment.cache_info().currsize:
        deployment().reset()
    deployment.cache_clear()
