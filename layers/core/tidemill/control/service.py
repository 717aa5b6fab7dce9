"""What an executor serves, as it lets others know: beside its seat, or as a worker that is present."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from tidemill.documents import is_text
from tidemill.model import LANES
from tidemill.policies import SELECTIONS, Selection
from tidemill.selection import DEFAULT_RETRY_SHARE, Lanes

MAX_QUEUES: Final = 100
"""So many are stored, as an event may name; of one with more it is not known which it leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Which queues and lanes, in which order: no *queues* are all of them.

    Attributes:
        asked: The selection for all queues, whatever they choose.
        selection, retry_share: For queues that choose none; the deployment's.
    """

    queues: tuple[str, ...] = ()
    lanes: Lanes = LANES
    asked: Selection | None = None
    selection: Selection = "weighted"
    retry_share: float = DEFAULT_RETRY_SHARE

    def covers(self, queue: str, lane: str) -> bool:
        """Tell whether tasks of *queue* and *lane* are served."""
        return lane in self.lanes and (not self.queues or queue in self.queues)

    def document(self) -> dict[str, Any]:
        """Return the stored form, in a bounded size."""
        return {
            "queues": list(self.queues) if len(self.queues) <= MAX_QUEUES else [],
            "lanes": list(self.lanes),
            "asked": self.asked,
            "selection": self.selection,
            "retry_share": self.retry_share,
        }


def service_of(stored: Mapping[str, Any]) -> Service:
    """Return the service that *stored* holds; what makes no sense, or is absent, is as by default."""
    queues, lanes, share = stored.get("queues"), stored.get("lanes"), stored.get("retry_share")
    is_share = isinstance(share, int | float) and not isinstance(share, bool)
    return Service(
        queues=tuple(one for one in queues if is_text(one)) if isinstance(queues, list) else (),
        lanes=tuple(one for one in LANES if one in lanes) if isinstance(lanes, list) else LANES,
        asked=_selection(stored.get("asked")),
        selection=_selection(stored.get("selection")) or "weighted",
        retry_share=float(cast("float", share)) if is_share else DEFAULT_RETRY_SHARE,
    )


def _selection(word: object) -> Selection | None:
    return next((one for one in SELECTIONS if one == word), None)
