"""Housekeeping for failed tasks: moved to the dead letters, exported, kept as long as the deployment says."""

from tidemill.archive.moving import Moved, move
from tidemill.archive.run import ArchiveError, Archives, Report, archive

__all__ = ["ArchiveError", "Archives", "Moved", "Report", "archive", "move"]
