"""Messages to the control loop from other threads: a wake-up, or a request to change something in its next step."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Generic

from mptcp_throttle.errors import NotYetAppliedError, UserError
from mptcp_throttled.control.requests import Request, T

_ANSWER_SECONDS: Final = 5.0


class Message(Generic[T]):
    """A request that a caller waits for: the loop calls `carry_out` before a step and `answer` after it."""

    def __init__(self, request: Request[T]) -> None:
        self._request = request
        self._result: T
        self.answered: Future[T] = Future()

    def carry_out(self, carry_out: Callable[[Request[T]], T]) -> None:
        """Let `carry_out` make the change, unless the caller has given up; a UserError goes to the caller."""
        if self.answered.set_running_or_notify_cancel():
            try:
                self._result = carry_out(self._request)
            except UserError as refusal:
                self.answered.set_exception(refusal)

    def answer(self) -> None:
        """Return the result to the caller."""
        if not self.answered.done():
            self.answered.set_result(self._result)


class Inbox:
    """Filled by any thread, emptied by one."""

    def __init__(self) -> None:
        # SimpleQueue is the only queue that a signal handler may use, whatever it interrupts.
        self._queue: queue.SimpleQueue[Message[Any] | None] = queue.SimpleQueue()

    def wake(self) -> None:
        """End the present or the next `wait`."""
        self._queue.put(None)

    def ask(self, request: Request[T]) -> T:
        """The answer to a request, after the step that applies it.

        Raises UserError if the request is refused, or if the answer does not come in time.
        """
        message = Message(request)
        self._queue.put(message)
        try:
            return message.answered.result(_ANSWER_SECONDS)
        except TimeoutError as error:
            if message.answered.cancel():
                raise UserError(f"not accepted in {_ANSWER_SECONDS:g} s: busy; see status") from error
            raise NotYetAppliedError(f"saved, but not applied after {_ANSWER_SECONDS:g} s; see status") from error

    def wait(self, seconds: float) -> list[Message[Any]]:
        """The requests that have arrived, in order; waits up to `seconds` for the first message."""
        messages = []
        try:
            messages.append(self._queue.get(timeout=max(seconds, 0.0)))
            while True:
                messages.append(self._queue.get_nowait())
        except queue.Empty:
            return [message for message in messages if message is not None]
