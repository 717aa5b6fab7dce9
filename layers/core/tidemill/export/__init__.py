"""Dead letters copied to S3, and read back."""

from tidemill.export.keys import object_key
from tidemill.export.objects import content, restored
from tidemill.export.restoring import restore
from tidemill.export.run import export
from tidemill.export.values import Blame, Exported, ExportError, NotALetterError, Put

__all__ = [
    "Blame", "ExportError", "Exported", "NotALetterError", "Put", "content", "export", "object_key", "restore",
    "restored",
]  # fmt: skip
