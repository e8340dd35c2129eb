"""Clients over all networks: who is one client, also after changes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from examples import ETHERNET, WIFI, connection, subflow
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from loops import snapshot_of

from mptcp_throttle.model import Connection, Token
from mptcp_throttled.answers.joined_clients import JoinedClients
from mptcp_throttled.vocabulary.decision import Decision, Verdict
from mptcp_throttled.vocabulary.snapshot import Snapshot

FREE: Final = Verdict(None, "free")


def joined(snapshot: Snapshot) -> JoinedClients:
    clients = JoinedClients()
    clients.update(snapshot)
    return clients


def content(clients: JoinedClients) -> object:
    by_name = {
        name: ({owner.name: owner.connections for owner in client.owners}, client.device)
        for name, client in clients.by_name.items()
    }
    return by_name, {name: number for name, number in clients.on_network.items() if number}


def subflows_of(clients: JoinedClients) -> dict[str, list[str]]:
    return {
        name: sorted(str(decision.subflow.ends.client) for decision in client.decisions())
        for name, client in clients.by_name.items()
    }


def test_client_has_its_address_on_the_most_preferred_network(tmp_path: Path) -> None:
    clients = joined(snapshot_of(tmp_path, connection(1, subflow("10.1.0.1"), subflow("10.2.0.1"))))
    assert subflows_of(clients) == {"10.2.0.1": ["10.1.0.1:40000", "10.2.0.1:40000"]}
    assert clients.find("10.1.0.1") is clients.find("10.2.0.1")
    assert clients.on_network == {"wifi": 1, "ethernet": 1}


def test_connection_on_one_network_is_of_the_client_with_that_address(tmp_path: Path) -> None:
    both = connection(1, subflow("10.1.0.1"), subflow("10.2.0.1"))
    clients = joined(snapshot_of(tmp_path, both, connection(2, subflow("10.1.0.1", 41000))))
    assert subflows_of(clients) == {"10.2.0.1": ["10.1.0.1:40000", "10.1.0.1:41000", "10.2.0.1:40000"]}
    (client,) = clients.by_name.values()
    assert client.connections == 2


def test_address_of_several_clients_is_a_client_of_its_own(tmp_path: Path) -> None:
    shared = [connection(n, subflow("10.1.0.1", 40000 + n), subflow(f"10.2.0.{n}")) for n in (1, 2)]
    clients = joined(snapshot_of(tmp_path, *shared, connection(3, subflow("10.1.0.1", 41000))))
    assert sorted(clients.by_name) == ["10.1.0.1", "10.2.0.1", "10.2.0.2"]
    assert clients.find("10.1.0.1") is clients.by_name["10.1.0.1"]
    assert clients.on_network == {"wifi": 2, "ethernet": 1}


def test_client_in_no_network_has_its_address(tmp_path: Path) -> None:
    clients = joined(snapshot_of(tmp_path, connection(1, subflow("192.0.2.1"))))
    assert subflows_of(clients) == {"192.0.2.1": ["192.0.2.1:40000"]}
    assert clients.on_network == {None: 1}


SUBFLOWS: Final = [
    subflow(f"10.{network}.0.{host}", 40000 + port) for network in (1, 2) for host in (1, 2) for port in (0, 1)
]
SETS: Final = st.lists(st.lists(st.integers(0, 7), unique=True, max_size=3), max_size=3)


def snapshot_with(sets: list[list[int]]) -> Snapshot:
    """With a connection for each set of the subflows that no earlier one has."""
    used: set[int] = set()
    made: dict[Token, Connection] = {}
    for number, of_connection in enumerate(sets, 1):
        chosen = [n for n in of_connection if n not in used]
        used |= {*chosen}
        if chosen:
            made[Token(number)] = connection(number, *(SUBFLOWS[n] for n in chosen))
    decisions = {
        token: tuple(
            Decision(
                token, each, "wifi" if str(each.ends.client.address).startswith("10.2") else "ethernet", FREE, FREE
            )
            for each in known.subflows
        )
        for token, known in made.items()
    }
    return Snapshot(networks=NETWORKS, connections=Map(made), decisions=Map(decisions))


NETWORKS: Final = (WIFI, ETHERNET)


@given(st.lists(SETS, min_size=2, max_size=4))
def test_clients_after_changes_are_those_made_from_the_beginning(steps: list[list[list[int]]]) -> None:
    clients = JoinedClients()
    for step in steps:
        snapshot = snapshot_with(step)
        clients.update(snapshot)
        assert content(clients) == content(joined(snapshot))
        for decisions in snapshot.decisions.values():
            for decision in decisions:
                client = clients.owners[decision.subflow.ends].client
                assert decision in [*client.decisions()]
                assert clients.by_name[client.name] is client
