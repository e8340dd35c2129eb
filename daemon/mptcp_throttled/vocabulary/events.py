"""Events: what an operator wants to be told of, by `mptcp-throttle events`, hooks and the journal.

A new kind is one line of `EventKind`, and the reference page is made from it (`docs/generate`). Whoever sees such an
event makes an `Event` and gives it to `EventLog.say` (`reporting/event_log.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import Self

MOST_ALIKE: Final = 5
"""The most events of one kind and network, at one moment, that are kept one by one."""

_DAY_SECONDS: Final = 86400


class EventKind(StrEnum):
    """The kinds, each with its `MESSAGE_ID` in the journal, which never changes, and its meaning.

    `frequent`: clients, or the server of the fleet, can cause it as often as they like, so that it must not displace
    events of other kinds.
    """

    message_id: str
    frequent: bool
    meaning: str

    def __new__(cls, word: str, message_id: str, frequent: bool, meaning: str) -> Self:
        """A member of this value."""
        kind = str.__new__(cls, word)
        kind._value_ = word
        kind.message_id, kind.frequent, kind.meaning = message_id, frequent, meaning
        return kind

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the journal that mark a line as one about such an event."""
        return {"MESSAGE_ID": self.message_id, "MPTCP_EVENT": str(self)}

    DAEMON_STARTED = "daemon-started", "03e16da33cef488c99e05dcce6237f09", False, "the daemon throttles from now on"
    WINDOW_BEGAN = "window-began", "ae920d5b51344b3297720ae70c339ed9", False, "a window of a schedule holds now"
    WINDOW_ENDED = "window-ended", "69676adaebcb45bfb6b18a7491329057", False, "a window holds no longer"
    RATE_SET = "rate-set-by-hand", "0e5ad019e69141cdaea502afdf3a7494", False, "a rate was set by hand"
    RATE_RESET = "rate-reset", "7bc15ec8d323466ebc5e1691b587c1df", False, "a rate is no longer set by hand"
    BUDGET_WARNING = "budget-warning", "81d9ee27216e4eacace7bd8267f7ced0", False, "`warn_at` of a budget is used"
    BUDGET_STAGE = "budget-stage", "434468e3f1b84847841804734067ef09", False, "a stage below 100% is reached"
    BUDGET_SPENT = "budget-spent", "cb4d933018604396bc2382d4eec41cba", False, "a budget is used up"
    BUDGET_BEGAN = "budget-began", "e41384506ab342638feef78e61420dca", False, "a budget begins again with its period"
    BUDGET_EASED = (
        "budget-eased",
        "d7f0a3f5c0e94d0f8a1c8f6f52f7e1b4",
        False,
        "a stage of a rolling budget ends",
    )
    PAUSED = "paused", "d5ea1a89e10847e0a073f22736ea662c", False, "nothing is throttled; also at a start in a pause"
    RESUMED = "resumed", "5108ccf6c2fa473193eb248f84b77e19", False, "the pause has ended"
    RELOADED = "configuration-reloaded", "702a7e68867e41a4aa9bf0ac459a1f25", False, "changed files are applied"
    REFUSED = "configuration-refused", "456a4b6256fb41579c0cc05b954d2671", False, "a reload has changed nothing"
    FLEET_AWAY = "fleet-away", "e34f000c7a8f47a8b92bd86737c493c2", True, "the server of the fleet cannot be used"
    FLEET_BACK = "fleet-back", "9c9dc90d338b4f10aa1c7938a0fb5d64", True, "totals are shared again"
    CAP_BEGAN = "cap-began", "861b33f5ff91400c8abd7198501e0b6c", True, "a client has a capped subflow on a network"
    CAP_ENDED = "cap-ended", "4390efe020bb4564888e6f254be9d58e", True, "a client has no capped subflow there any more"
    OVERFLOW_RAISED = (
        "overflow-raised",
        "a6386997a5634d32a76e40007a737aa0",
        True,
        "an overflow has raised a client's cap",
    )
    OVERFLOW_LOWERED = (
        "overflow-lowered",
        "85f24fc2f7c345a190816a8f57a136f1",
        True,
        "an overflow has lowered it again, or ended",
    )
    ERROR_BEGAN = "error-began", "6136990b7f914697be840f8c6a83cfa2", True, "something is not applied or not enforced"
    ERROR_ENDED = "error-ended", "5f93e7357238467fa92d3bad63bca659", True, "an error is resolved"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened, in one line of `text` for people.

    It is about a `client` on a `network`, a network, or neither. `rule` has decided, for this `reason`; `until` is when
    that changes by itself, in seconds since the epoch. Each is None if there is none. The event stands for
    `more_events` further ones of the same kind.
    """

    kind: EventKind
    text: str
    network: str | None = None
    client: str | None = None
    rule: str | None = None
    reason: str | None = None
    until: float | None = None
    more_events: int = 0

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the line in the journal, besides its text; those of `FIELDS` that have a value."""
        values = {
            "MPTCP_NETWORK": self.network,
            "MPTCP_CLIENT": self.client,
            "MPTCP_RULE": self.rule,
            "MPTCP_REASON": self.reason,
            "MPTCP_UNTIL": None if self.until is None else f"{self.until:.3f}",
            "MPTCP_MORE_EVENTS": str(self.more_events) if self.more_events else None,
        }
        return {**self.kind.fields, **{name: value for name, value in values.items() if value is not None}}


FIELDS: Final = {
    "MESSAGE_ID": "the kind",
    "MPTCP_EVENT": "the kind, as a word",
    "MPTCP_NETWORK": "the access network",
    "MPTCP_CLIENT": "the address of a client",
    "MPTCP_RULE": "what has decided, such as `schedule` or `by hand`",
    "MPTCP_REASON": "why",
    "MPTCP_UNTIL": "when that changes by itself, in seconds since the epoch",
    "MPTCP_MORE_EVENTS": "for how many further events the line stands",
}
"""The fields in the journal of lines about events, and what they say."""


def coalesced(events: Iterable[Event]) -> list[Event]:
    """The events of one moment. Of more than `MOST_ALIKE` with the same kind and network, the first stands for all."""
    alike: defaultdict[tuple[EventKind, str | None], list[Event]] = defaultdict(list)
    for event in events:
        alike[event.kind, event.network].append(event)
    made: list[Event] = []
    for group in alike.values():
        if len(group) <= MOST_ALIKE:
            made += group
        else:
            first, rest = group[0], len(group) - 1
            made.append(replace(first, text=f"{first.text}; and {rest} more", more_events=rest))
    return made


def until_text(until: float | None, now: float, zone: tzinfo | None) -> str:
    """An end and the present, in seconds since the epoch, as words such as `, until 18:00`; empty without an end."""
    if until is None:
        return ""
    form = "%H:%M" if until - now < _DAY_SECONDS else "%Y-%m-%d %H:%M"
    return f", until {datetime.fromtimestamp(until, zone):{form}}"
