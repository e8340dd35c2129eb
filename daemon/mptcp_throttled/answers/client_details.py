"""The answer to `client`: one client on all access networks, and what has changed for it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from mptcp_throttle.model import Address, Direction, format_token
from mptcp_throttled.answers.status import describe_subflow
from mptcp_throttled.reporting.recent_decisions import Noted, RecentDecisions

if TYPE_CHECKING:
    from mptcp_throttle.rpc import Json
    from mptcp_throttled.answers.joined_clients import JoinedClient, JoinedClients
    from mptcp_throttled.answers.view import View
    from mptcp_throttled.vocabulary.locator import Locators

_SUBFLOWS: Final = 100
_DECISIONS: Final = 200
_EVENTS: Final = 100


def find(clients: JoinedClients, asked: Address | str, locators: Locators) -> JoinedClient | None:
    """The client with this device or address; None: it has no live subflow, or several clients share the address."""
    if isinstance(asked, str):
        return clients.find(asked)
    for locate in locators.each:
        known = clients.find(locate.device(asked) or str(locate.client(asked)))
        if known is not None:
            return known
    return clients.find(str(asked))


def describe(
    view: View,
    name: str,
    known: JoinedClient | None,
    row: Json,
    explained: Json,
    reported: RecentDecisions,
    events: Iterable[Json],
) -> Json:
    """The answer. `row` is that of the client in `clients`, `explained` the answer to `explain`, both as JSON."""
    decisions = [] if known is None else [*known.decisions()]
    addresses = {decision.subflow.ends.client.address for decision in decisions}
    device = explained["device"]
    names = {name, device, *map(str, addresses), *(part["client"] for part in ({} if row is None else row["networks"]))}

    def is_its(noted: Noted) -> bool:
        address = noted.transition.ends.client.address
        return address in addresses or str(address) in names or (device is not None and noted.device == device)

    changes = reported.latest(_DECISIONS, is_its)
    own_events = [event for event in events if event["client"] in names]
    return {
        "name": name,
        "client": row,
        "explain": explained,
        "subflows": [
            {
                "token": format_token(decision.token),
                "state": view.snapshot.state_of(decision),
                **describe_subflow(decision, view),
            }
            for decision in islice(decisions, _SUBFLOWS)
        ],
        "more_subflows": max(len(decisions) - _SUBFLOWS, 0),
        "decisions": changes,
        "decisions_since": reported.since,
        "events": own_events[: -_EVENTS - 1 : -1],
        "caps": cap_steps(changes, {} if row is None else {part["name"]: part for part in row["networks"]}, view),
    }


_RATE: Final = ("kind", "rate_bps", "rule", "reason")


def cap_steps(changes: list[Json], present: dict[str, Json], view: View) -> list[Json]:
    """By network, the rate of the client's downlink in steps, the oldest first; each lasts until the next.

    `changes` are decisions, the latest first; `present` is what applies on each network now. While any subflow on a
    network is throttled, its rate is the one that was applied last to one of them. As `changes` lack the ends of
    subflows, the last step is what is present now.
    """
    throttled: dict[str, dict[Any, Json]] = {}
    steps: dict[str, list[Json]] = {}
    for change in reversed(changes):
        if change["direction"] != Direction.DOWNLINK or change["network"] is None:
            continue
        of_network = throttled.setdefault(change["network"], {})
        key = change["client"], change["client_port"]
        of_network.pop(key, None)
        if change["kind"] is not None:
            of_network[key] = change
        shown = next(reversed(of_network.values()), change)
        _add(steps.setdefault(change["network"], []), change["at"], shown)
    for name, part in present.items():
        if name is not None:
            _add(steps.setdefault(name, []), view.now.epoch, part)
    return [{"network": network, "steps": of_network} for network, of_network in steps.items()]


def _add(steps: list[Json], at: float, rate: Json) -> None:
    """Add a step, unless kind, rate and rule are those of the last one."""
    step = {"at": at, **{key: rate[key] for key in _RATE}}
    if not steps or any(steps[-1][key] != step[key] for key in _RATE[:-1]):
        steps.append(step)
