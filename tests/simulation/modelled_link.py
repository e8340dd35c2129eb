"""Calls from the daemon's follower to the sniffer's table: they may be slow, lost or answered twice, or fail."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from random import Random
from typing import Final, NoReturn

from modelled_sniffer import ModelSniffer
from timeline import Timeline, VirtualClock

from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttled.control.source import _CALL_SECONDS, Action, Begin, Call, Follower, Wait

_USUAL_SECONDS: Final = 0.0005


class ModelLink:
    """Carries out what a follower wants done, until it is closed.

    `delay` is how many seconds each message takes, `lost` and `twice` the probabilities that a message is lost, and
    that a request is made twice.
    """

    def __init__(
        self, sniffer: ModelSniffer, follower: Follower, clock: VirtualClock, timeline: Timeline, random: Random
    ) -> None:
        self._sniffer = sniffer
        self._follower = follower
        self._clock = clock
        self._timeline = timeline
        self._random = random
        self._actions: Generator[Action, Json, NoReturn] = follower.actions()
        self._number = 0
        self._waiting: tuple[int, Call] | None = None
        self.delay = _USUAL_SECONDS
        self.lost = 0.0
        self.twice = 0.0
        self._take(next(self._actions))

    def close(self) -> None:
        """The daemon is gone."""
        self._number += 1
        self._waiting = None
        self._actions.close()

    def _take(self, action: Action) -> None:
        self._number += 1
        number = self._number
        match action:
            case Begin():
                self._timeline.after(0.0, partial(self._answer, number, None))
            case Wait(seconds):
                self._timeline.after(seconds, partial(self._answer, number, None))
            case Call():
                self._timeline.after(self._delay(), partial(self._arrive, number, action))
                if self.lost or self.delay > _USUAL_SECONDS or not self._sniffer.is_running:
                    self._timeline.after(_CALL_SECONDS, partial(self._fail, number, "no answer in time"))

    def _delay(self) -> float:
        return self.delay if self.delay == _USUAL_SECONDS else self.delay * self._random.uniform(0.1, 1.0)

    def _arrive(self, number: int, call: Call) -> None:
        if number != self._number:
            return
        if not self._sniffer.is_running:
            self._fail(number, "no service answers")
            return
        if self.lost and self._random.random() < self.lost:
            self._timeline.after(_CALL_SECONDS, partial(self._fail, number, "no answer in time"))
            return
        if self.twice and self._random.random() < self.twice:
            self._carry_out(call)
        self._waiting = number, call
        self.look()

    def _carry_out(self, call: Call) -> Json:
        table = self._sniffer.table
        if call.method == "snapshot":
            return table.snapshot(*call.arguments)
        epoch, revision, _, *patience = call.arguments
        # Who waits for a change is asked again at each change.
        return table.changes(epoch, revision, 0.0, *patience)

    def look(self) -> None:
        """The table may have changed: a call that waits for that may be answered."""
        if self._waiting is None:
            return
        number, call = self._waiting
        if not self._sniffer.is_running:
            self._waiting = None
            self._timeline.after(self._delay(), partial(self._fail, number, "the service has closed the connection"))
            return
        answer = self._carry_out(call)
        waits = call.method == "changes" and call.arguments[2] > 0
        if waits and not answer.get("resync") and not answer["changes"]:
            patience = call.arguments[3]
            if patience and number == self._number:
                # A new connection is told of at that age.
                self._timeline.after(patience, partial(self._look_again, number))
            if self.lost or self.delay > _USUAL_SECONDS:
                self._timeline.after(call.arguments[2], partial(self._give, number, answer))
            return
        self._give(number, answer)

    def _give(self, number: int, answer: Json) -> None:
        """The answer is on its way."""
        if number != self._number or self._waiting is None:
            return
        self._waiting = None
        self._timeline.after(self._delay(), partial(self._answer, number, answer))
        if self.delay > _USUAL_SECONDS:
            self._timeline.after(_CALL_SECONDS, partial(self._fail, number, "no answer in time"))

    def _look_again(self, number: int) -> None:
        if self._waiting is not None and self._waiting[0] == number:
            waiting = self._waiting
            answer = self._carry_out(waiting[1])
            if answer.get("resync") or answer["changes"]:
                self.look()

    def _answer(self, number: int, answer: Json) -> None:
        if number == self._number:
            self._take(self._actions.send(answer))

    def _fail(self, number: int, problem: str) -> None:
        if number == self._number:
            self._waiting = None
            self._take(self._actions.throw(RpcError(problem)))
