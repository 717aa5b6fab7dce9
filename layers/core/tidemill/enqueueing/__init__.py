"""From requests to stored tasks: one, many, or those of an occurrence; each of them once."""

from tidemill.enqueueing.known import unless_known
from tidemill.enqueueing.many import accept_many
from tidemill.enqueueing.one import accept
from tidemill.enqueueing.recurring import accept_occurrence, known_occurrence
from tidemill.enqueueing.values import Accepted

__all__ = ["Accepted", "accept", "accept_many", "accept_occurrence", "known_occurrence", "unless_known"]
