"""An index of clients by access network and of their subflows, to answer `top` every second with thousands of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from mptcp_throttle.model import FourTuple
from mptcp_throttled.answers.known_decisions import KnownDecisions
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.snapshot import Snapshot


@dataclass(slots=True, eq=False)
class Client:
    """A client in one access network (None: in none), and the decisions for its live subflows.

    `name` is its first address, `device` the name of its device; None: it has none.
    """

    name: str
    network: str | None
    device: str | None
    decisions: dict[FourTuple, Decision] = field(default_factory=dict)


class ClientIndex:
    """All clients of a snapshot. `update` takes the next snapshot; its time depends on how much has changed.

    `by_network` has the clients of each network by name, `by_subflow` the client of each subflow. For one thread.
    """

    def __init__(self) -> None:
        self.by_network: defaultdict[str | None, dict[str, Client]] = defaultdict(dict)
        self.by_subflow: dict[FourTuple, Client] = {}
        self._known = KnownDecisions()

    def update(self, snapshot: Snapshot) -> None:
        """Bring the index up to date."""
        difference = self._known.take(snapshot)
        if difference is None:
            return
        if difference.networks_changed:
            self.by_network.clear()
            self.by_subflow.clear()
        for decisions in difference.outdated:
            self._remove(decisions)
        for decisions in difference.changed:
            self._add(decisions)

    def _remove(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            ends = decision.subflow.ends
            client = self.by_subflow.pop(ends, None)
            if client is None:
                continue
            del client.decisions[ends]
            if not client.decisions:
                del self.by_network[client.network][client.name]

    def _add(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            ends = decision.subflow.ends
            network, address = self._known.networks.get(decision.network), ends.client.address
            name = str(address if network is None else network.client(address))
            of_network = self.by_network[decision.network]
            client = of_network.get(name)
            if client is None:
                device = self._known.snapshot.device(decision.network, address)
                client = of_network[name] = Client(name, decision.network, device)
            client.decisions[ends] = decision
            self.by_subflow[ends] = client
