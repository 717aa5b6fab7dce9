"""Housekeeping for failed tasks: moved to the dead letters, exported, kept as long as the deployment says."""

from tidemill.archive.moving import Moved, move
from tidemill.archive.run import Archives, Report, archive

__all__ = ["Archives", "Moved", "Report", "archive", "move"]
