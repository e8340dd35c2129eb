"""The changes that the page can make: what each asks of the daemon, what it has done in words, and what undoes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

from pydantic import Field

from mptcp_throttle.config.validation import Flag, Name, Section, text_that
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import MAX_DURATION, Rate

Call = Callable[..., Awaitable[Json]]
"""Calls a method of the daemon with parameters. Raises RpcError."""

Step = tuple[str, dict[str, Json]]
"""A change by its name, and the body of its request."""

Seconds = Annotated[float, Field(gt=0, le=MAX_DURATION)]
_Text = Annotated[str, text_that(lambda text: len(text) <= 64, "up to 64 printable characters")]
_Short = Annotated[str, text_that(lambda text: len(text) <= 32, "up to 32 printable characters")]
_LEAST_VOLUME: Final = 1_000_000
_MOST_UNDONE: Final = 50
_MOST_WAITED: Final = 30.0
"""Seconds since a change was asked for; two answers are waited for up to 10 s each."""
_CHOICE: Final = ("every", "direction")
_ALL_RATES: Final = tuple((direction, kind) for direction in ("downlink", "uplink") for kind in ("cap", "limit"))


class Undo(NamedTuple):
    """The changes that undo one, in order; or the `problem` why it cannot be undone. Neither: nothing was changed."""

    steps: Sequence[Step] = ()
    problem: str | None = None


class Change(Section):
    """`hidden`: the answer has names in place of addresses. `names` are the keys that may name a client."""

    hidden: Flag = False
    names: ClassVar[tuple[str, ...]] = ()


class OfRates(Change):
    """Changes rates of a network, or of a client there."""

    names = ("client",)
    network: Name
    client: _Text | None = None

    @property
    def subject(self) -> tuple[str, ...]:
        """The parameters that say whose rates are meant."""
        return (self.network,) if self.client is None else (self.network, self.client)


class SetRate(OfRates):
    """Override a rate; `rate` null is unlimited, `seconds` null is until reset."""

    direction: Literal["downlink", "uplink"]
    kind: Literal["cap", "limit"]
    rate: _Short | None
    seconds: Seconds | None = None


class Free(OfRates):
    """No rate at all, for some seconds."""

    seconds: Seconds


class ResetRate(OfRates):
    """Return to the configured rates of a network, or to the network's of a client."""


class Pause(Change):
    """Free all subflows; `seconds` null is until resumed."""

    seconds: Seconds | None = None


class Resume(Change):
    """End a pause."""


class OfBudgets(Change):
    """Changes the budget of a network, a device, or the client with an address."""

    names = ("name",)
    name: _Text
    every: Literal["day", "week", "month"] | None = None
    direction: Literal["down", "up", "both"] | None = None

    @property
    def choice(self) -> tuple[str | None, str | None]:
        """The parameters that say which budget is meant."""
        return self.every, self.direction


class BudgetAdd(OfBudgets):
    """Add to a budget; what is not used `until` then is lost."""

    amount: _Short
    until: _Text | None = None


class BudgetTakeBack(OfBudgets):
    """Take back what was added: what was used of it is used of the budget itself."""

    amount: _Short
    until: _Text | None = None


class BudgetReset(OfBudgets):
    """Begin budgets of a network and its clients, or of a client, again."""


class BudgetSetUsed(OfBudgets):
    """Set what is used of a budget."""

    amount: _Short


CHANGES: Final[dict[str, type[Change]]] = {
    "set_rate": SetRate,
    "reset_rate": ResetRate,
    "free": Free,
    "budget_add": BudgetAdd,
    "budget_take_back": BudgetTakeBack,
    "budget_reset": BudgetReset,
    "budget_set_used": BudgetSetUsed,
    "pause": Pause,
    "resume": Resume,
}
"""By the name in the path."""


def calls(change: Change) -> list[tuple[Json, ...]]:
    """The methods of the daemon that make a change, with their parameters."""
    match change:
        case SetRate():
            return [_set_rate(change, change.direction, change.kind, change.rate, change.seconds)]
        case Free():
            return [_set_rate(change, *kind, None, change.seconds) for kind in _ALL_RATES]
        case ResetRate():
            return [("reset_rate", *change.subject)]
        case Pause(seconds=seconds):
            return [("pause", seconds)]
        case BudgetAdd(name=name, amount=amount, until=until):
            return [("budget_add", name, amount, until, *change.choice)]
        case BudgetTakeBack(name=name, amount=amount, until=until):
            return [("budget_take_back", name, amount, until, *change.choice)]
        case BudgetReset(name=name):
            return [("budget_reset", name, *change.choice)]
        case BudgetSetUsed(name=name, amount=amount):
            return [("budget_set_used", name, amount, *change.choice)]
    return [("resume",)]


def _set_rate(change: OfRates, direction: str, kind: str, rate: str | None, seconds: float | None) -> tuple[Json, ...]:
    network, *client = change.subject
    return "set_rate", network, direction, kind, rate, seconds, *client


def in_words(change: Change) -> str:
    """What a change does, in one line."""
    match change:
        case SetRate(direction=direction, kind=kind, rate=rate, seconds=seconds):
            uplink = "uplink " if direction == "uplink" else ""
            return f"{_whose(change)}: {uplink}{kind} {rate or 'unlimited'}{_for(seconds)}"
        case Free(seconds=seconds):
            return f"{_whose(change)}: free{_for(seconds)}"
        case ResetRate():
            return f"{_whose(change)}: no rate by hand"
        case Pause(seconds=seconds):
            return f"paused{_for(seconds)}"
        case BudgetAdd(name=name, amount=amount, until=until):
            return f"{name}: {amount} added{'' if until is None else f', until {until}'}"
        case BudgetTakeBack(name=name, amount=amount):
            return f"{name}: {amount} taken back"
        case BudgetReset(name=name):
            return f"{name}: nothing of its budget is used"
        case BudgetSetUsed(name=name, amount=amount):
            return f"{name}: {amount} of its budget are used"
    return "resumed"


def _whose(change: OfRates) -> str:
    return " for ".join(change.subject)


def _for(seconds: float | None) -> str:
    return "" if seconds is None else f" for {seconds:g} s"


async def undo_of(change: Change, call: Call) -> Undo:
    """What will undo a change, which is not made yet. Raises RpcError."""
    match change:
        case OfRates():
            subject = dict(zip(("network", "client"), change.subject, strict=False))
            before = (await call("overrides", *change.subject))["overrides"]
            again = [("set_rate", {**subject, **override}) for override in before]
            return Undo(again if isinstance(change, ResetRate) else [("reset_rate", subject), *again])
        case OfBudgets():
            uses = (await call("budgets", change.name))["budgets"]
            every, direction = change.choice
            meant = (use for use in uses if every in (None, use["every"]) and direction in (None, use["direction"]))
            return _undo_of_budget(change, [*meant])
    paused = (await call("status"))["daemon"]["pause"]
    if paused is not None:
        return Undo([("pause", {"seconds": paused["seconds_left"]})])
    return Undo([("resume", {})] if isinstance(change, Pause) else [])


async def is_as_asked(change: Change, call: Call) -> bool | None:
    """Whether rates and pauses are now what the first call of a change asks for; None: of budgets that is not known.

    Raises RpcError.
    """
    match change:
        case OfBudgets():
            return None
        case OfRates():
            by_hand = (await call("overrides", *change.subject))["overrides"]
            return not by_hand if isinstance(change, ResetRate) else any(_is_asked(change, each) for each in by_hand)
    pause = (await call("status"))["daemon"]["pause"]
    if isinstance(change, Pause):
        return pause is not None and _is_left(change.seconds, pause["seconds_left"])
    return pause is None


def _is_asked(change: OfRates, override: Json) -> bool:
    _, _, direction, kind, rate, seconds, *_ = calls(change)[0]
    shown = override["rate"]
    same_rate = shown is None if rate is None else shown is not None and Rate.parse(shown) == Rate.parse(rate)
    return (
        same_rate
        and (direction, kind) == (override["direction"], override["kind"])
        and _is_left(seconds, override["seconds"])
    )


def _is_left(asked: float | None, left: float | None) -> bool:
    """Whether these seconds may be left of those that were asked for, within the time that answers take."""
    if asked is None or left is None:
        return asked is left
    return asked - _MOST_WAITED < left <= asked


def _undo_of_budget(change: OfBudgets, uses: Sequence[Json]) -> Undo:
    """`uses` are the budgets that are meant, as they are before."""
    match change:
        case BudgetAdd() | BudgetTakeBack():
            method = "budget_take_back" if isinstance(change, BudgetAdd) else "budget_add"
            return Undo([(method, change.model_dump(exclude={"hidden"}, exclude_none=True))])
        case BudgetReset():
            return _set_back([use for use in uses if use["used"]])
        case BudgetSetUsed(name=name, every=every, direction=direction):
            # Of a network, what its clients have used is among them.
            of_subject = [use for use in uses if use["client"] is None or name not in use["networks"]]
            body = {"name": name, "amount": "0", "every": every, "direction": direction}
            nothing = Undo([("budget_set_used", body)])
            return _set_back(of_subject) if of_subject else nothing
    return Undo()


def _set_back(uses: Sequence[Json]) -> Undo:
    named = [(use["client"] or use["network"] or use["device"], use) for use in uses]
    if len(named) > _MOST_UNDONE:
        return Undo(problem=f"more than {_MOST_UNDONE} clients have used some of it")
    chosen = Counter((name, use["every"], use["direction"]) for name, use in named)
    if any(number > 1 for number in chosen.values()):
        return Undo(problem="a client has several such budgets")
    steps = [
        ("budget_set_used", {"name": name, "amount": _volume(use["used"]), **{key: use[key] for key in _CHOICE}})
        for name, use in named
    ]
    return Undo(steps)


def _volume(count: int) -> str:
    """A number of bytes as the daemon reads it, exact from the least that it allows on."""
    return "0" if count < _LEAST_VOLUME else f"{count / 1000:.3f}kB"
