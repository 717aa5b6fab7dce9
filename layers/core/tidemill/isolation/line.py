"""The two connections of a run, at the executor's end, and what was heard over them."""

from __future__ import annotations

import contextlib
import select
import socket
from types import TracebackType
from typing import Any, Final, Self

from tidemill.conclusions import Conclusion
from tidemill.isolation.frames import Frames, GarbledError, send
from tidemill.isolation.helper import Helper
from tidemill.isolation.order import IsolatedRun
from tidemill.isolation.wire import CANCEL, MAX_ANSWER_BYTES, answer_of, order_document

_SEND_WITHIN_SEC: Final = 10.0
_READ_BYTES: Final = 64 * 1024


class Line:
    """Connects a run with its child, which answers, and with the forkserver, which kills the child and buries it.

    Attributes:
        is_forked: There is a child, which waits for its order.
        has_begun: The child has called the function, or was about to.
        conclusion: What the child answered.
        refusal: Why there is no child, or the child did not call the function.
        is_silent: The child's end is closed.
        is_garbled: What the child sent is no answer.
        is_over: The child is buried, and ``status`` is how it ended (as `os.waitpid` has it); or it has lost
            its forkserver, and ``status`` is ``None``.
    """

    def __init__(self, helper: Helper) -> None:
        self._helper = helper
        self._talk, self._child_end = socket.socketpair()
        self._watch, self._forkserver_end = socket.socketpair()
        for one in (self._child_end, self._watch, self._forkserver_end):
            one.settimeout(None)  # whatever a function has made the default
        self._talk.settimeout(_SEND_WITHIN_SEC)
        self._answers, self._notes = Frames(limit=MAX_ANSWER_BYTES), Frames(limit=MAX_ANSWER_BYTES)
        self._poll = select.poll()
        for one in (self._talk, self._watch):
            self._poll.register(one, select.POLLIN)
        self.is_forked = self.has_begun = self.is_silent = self.is_garbled = self.is_over = False
        self.conclusion: Conclusion | None = None
        self.refusal: str | None = None
        self.status: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._talk, self._watch, self._child_end, self._forkserver_end):
            one.close()

    def ask_for_child(self) -> None:
        """Have the helper fork.

        Raises:
            HelperLostError: It is gone.
        """
        self._helper.ask_for_child(self._child_end, self._forkserver_end)

    def order(self, order: IsolatedRun) -> None:
        """Tell the child what to run; of one that does not listen more is heard later."""
        with contextlib.suppress(OSError):
            send(self._talk, order_document(order))

    def cancel(self) -> None:
        """Tell the child that its task is cancelled."""
        with contextlib.suppress(OSError):
            self._talk.sendall(CANCEL)

    def hang_up(self) -> None:
        """Have the child killed, and all it has started."""
        with contextlib.suppress(OSError):
            self._watch.shutdown(socket.SHUT_WR)

    def listen(self, wait: float) -> bool:
        """Hear what comes within *wait* seconds; false where nothing did."""
        ready = self._poll.poll(wait * 1000)
        for fd, _ in ready:
            if fd == self._talk.fileno():
                self._hear_child()
            else:
                self._hear_forkserver()
        return bool(ready)

    def hear_out(self) -> None:
        """Hear all that has come."""
        while self.listen(0):
            pass

    @property
    def is_decided(self) -> bool:
        """Whether nothing more can come that matters."""
        return self.conclusion is not None or self.refusal is not None or self.is_garbled or self.is_over

    def _hear_child(self) -> None:
        data = _read(self._talk)
        try:
            for message in self._answers.add(data):
                self._note_answer(message)
        except GarbledError:
            self.is_garbled = True
        self.is_silent = not data
        if self.is_silent or self.is_garbled:
            self._poll.unregister(self._talk)

    def _note_answer(self, message: dict[str, Any]) -> None:
        if self.is_garbled:
            return
        if "begun" in message:
            self.has_begun = True
        elif "refused" in message:
            self.refusal = str(message["refused"])
        elif self.conclusion is None:
            self.conclusion = answer_of(message)
            self.is_garbled = self.conclusion is None

    def _hear_forkserver(self) -> None:
        self._helper.gave_sign()
        data = _read(self._watch)
        for message in self._notes.add(data):
            if "forked" in message:
                self.is_forked = True
                self._child_end.close()
                self._forkserver_end.close()
            elif "ended" in message:
                self.is_over, self.status = True, message["ended"]
            else:
                self.refusal = message["refused"]
        if not data:
            self.is_over = True
            self._poll.unregister(self._watch)


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_READ_BYTES)
    except OSError:  # it ended with something unread
        return b""
