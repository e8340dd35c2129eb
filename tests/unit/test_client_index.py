"""The index of clients after a change is the same as one made from the beginning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from examples import WIFI, connection, subflow
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from loops import snapshot_of_two_networks

from mptcp_throttle.model import AccessNetwork, ClientPrefix
from mptcp_throttled.answers.client_index import ClientIndex
from mptcp_throttled.vocabulary.decision import Decision, Verdict
from mptcp_throttled.vocabulary.snapshot import Snapshot


def content(index: ClientIndex) -> object:
    of_networks = {
        network: {name: client.decisions for name, client in clients.items()}
        for network, clients in index.by_network.items()
        if clients
    }
    return of_networks, {ends: client.name for ends, client in index.by_subflow.items()}


def fresh(snapshot: Snapshot) -> ClientIndex:
    index = ClientIndex()
    index.update(snapshot)
    return index


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return snapshot_of_two_networks(tmp_path)


def test_clients_have_their_subflows_of_all_connections(snapshot: Snapshot) -> None:
    index = fresh(snapshot)
    assert {network: sorted(clients) for network, clients in index.by_network.items()} == {
        "ethernet": ["10.1.0.1"],
        "wifi": ["10.2.0.1"],
        None: ["192.0.2.1"],
    }
    assert len(index.by_network["wifi"]["10.2.0.1"].decisions) == 2


def test_connection_that_takes_over_address_and_port_of_another_stays(snapshot: Snapshot) -> None:
    index = fresh(snapshot)
    (old,), (other,) = list(snapshot.decisions.values())[1:]
    ends = old.subflow.ends
    moved = replace(snapshot, decisions=Map({old.token: (other,), other.token: (replace(old, token=other.token),)}))
    index.update(moved)
    assert index.by_subflow[ends].decisions[ends].token == other.token
    assert content(index) == content(fresh(moved))


def test_other_client_prefix_is_taken_over(snapshot: Snapshot) -> None:
    index = fresh(snapshot)
    wider: AccessNetwork = replace(WIFI, client_prefix=ClientPrefix(ipv4=16))
    changed = replace(snapshot, networks=(wider, *snapshot.networks[1:]))
    index.update(changed)
    assert list(index.by_network["wifi"]) == ["10.2.0.0"]


SUBFLOWS: Final = [
    subflow(f"10.{network}.0.{host}", 40000 + port) for network in (1, 2) for host in (1, 2) for port in (0, 1)
]


FREE: Final = Verdict(None, "free")


def decided(numbers: frozenset[int]) -> tuple[Decision, ...]:
    return tuple(Decision(connection(1).token, SUBFLOWS[n], "wifi", FREE, FREE) for n in sorted(numbers))


TABLES: Final = st.dictionaries(
    st.integers(1, 4), st.frozensets(st.integers(0, len(SUBFLOWS) - 1), min_size=1).map(decided)
)


@given(st.lists(TABLES, min_size=1, max_size=6))
def test_any_sequence_of_changes_leads_to_the_same_index(tables: list[dict[int, tuple[Decision, ...]]]) -> None:
    index, snapshot = ClientIndex(), Snapshot(networks=(WIFI,))
    for table in tables:
        owned: dict[object, int] = {d.subflow.ends: token for token, of in table.items() for d in of}
        unique = {
            connection(token).token: tuple(d for d in of if owned[d.subflow.ends] == token)
            for token, of in table.items()
        }
        snapshot = replace(snapshot, decisions=Map(unique))
        index.update(snapshot)
    assert content(index) == content(fresh(snapshot))
