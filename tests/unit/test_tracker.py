import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import (
    KEY,
    PROXY,
    Client,
    capable_syn,
    capable_synack,
    join_syn,
    join_synack,
    segment,
    token,
)

from mptcp_sniffer.segment import Segment
from mptcp_sniffer.tracker import Tracker
from mptcp_throttle.model import Connection, Token

OTHER_KEY = b"otherkey"


class Wire:
    """Feeds a tracker and keeps the table that its changes describe."""

    def __init__(self, max_connections: int = 100, max_half_open: int = 100) -> None:
        self.tracker = Tracker([8080], max_connections, max_half_open)
        self.table: dict[Token, Connection] = {}
        self.now = 1000.0

    def send(self, *segments: Segment) -> None:
        for one in segments:
            self.now += 0.001
            for change in self.tracker.observe(one, self.now):
                if change.connection is None:
                    del self.table[change.token]
                else:
                    self.table[change.token] = change.connection

    def open(self, client: Client, key: bytes = KEY, version: int = 1) -> None:
        self.send(client.syn(capable_syn(version)), client.synack(capable_synack(key, version)))

    def join(self, client: Client, of: Token, *, backup: bool = False) -> None:
        self.send(client.syn(join_syn(of, backup=backup)), client.synack(join_synack()))

    def clients(self, of: Token) -> list[str]:
        return [str(subflow.ends.client) for subflow in self.table[of].subflows]


ETHERNET = Client("10.1.0.2", 40000)
WIFI = Client("10.2.0.2", 50000)


@pytest.mark.parametrize("version", [0, 1])
def test_the_proxys_key_names_the_connection(version: int) -> None:
    wire = Wire()
    wire.open(ETHERNET, version=version)
    connection = wire.table[token(version=version)]
    assert connection.version == version
    (subflow,) = connection.subflows
    assert str(subflow.ends) == "10.1.0.2:40000-10.3.0.2:8080"
    assert (subflow.address_id, subflow.backup, subflow.opened_at) == (0, False, 1000.001)


@pytest.mark.parametrize("backup", [False, True])
def test_a_join_adds_a_subflow_to_the_connection_it_names(backup: bool) -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.open(Client("10.1.0.3", 40000), OTHER_KEY)
    wire.join(WIFI, token(), backup=backup)
    assert wire.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]
    assert [subflow.backup for subflow in wire.table[token()].subflows] == [False, backup]
    assert wire.clients(token(OTHER_KEY)) == ["10.1.0.3:40000"]


def test_two_clients_that_interleave_their_handshakes_are_kept_apart() -> None:
    wire = Wire()
    a, b = Client("10.1.0.2", 1), Client("10.1.0.3", 1)
    a2, b2 = Client("10.2.0.2", 2), Client("fd00:2::3", 2)
    wire.send(
        a.syn(capable_syn()), b.syn(capable_syn()), b.synack(capable_synack(OTHER_KEY)), a.synack(capable_synack())
    )
    wire.send(
        b2.syn(join_syn(token(OTHER_KEY))),
        a2.syn(join_syn(token())),
        a2.synack(join_synack()),
        b2.synack(join_synack()),
    )
    assert wire.clients(token()) == ["10.1.0.2:1", "10.2.0.2:2"]
    assert wire.clients(token(OTHER_KEY)) == ["10.1.0.3:1", "[fd00:2::3]:2"]


def test_clients_behind_one_address_are_told_apart_by_port() -> None:
    wire = Wire()
    wire.open(Client("10.1.0.2", 1))
    wire.open(Client("10.1.0.2", 2), OTHER_KEY)
    wire.send(Client("10.1.0.2", 1).fin())
    assert list(wire.table) == [token(OTHER_KEY)]


def test_nothing_is_live_before_the_proxy_has_confirmed_it() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn()))
    assert wire.table == {}
    wire.send(ETHERNET.synack(capable_synack()), WIFI.syn(join_syn(token())))
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_a_join_for_an_unknown_token_changes_nothing() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    before = dict(wire.table)
    wire.join(WIFI, Token(token() ^ 1))
    assert wire.table == before
    assert wire.tracker.counters["unknown_token"] == 1


def test_a_connection_that_falls_back_to_tcp_is_not_tracked() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.synack())
    assert wire.table == {}
    assert wire.tracker.counters["fell_back"] == 1


def test_plain_tcp_is_not_tracked() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(), ETHERNET.synack())
    assert wire.table == {}
    assert wire.tracker.sizes() == {"connections": 0, "subflows": 0, "half_open": 0}


@pytest.mark.parametrize("end", [Client.fin, Client.reset_by_proxy])
def test_fin_and_rst_of_either_side_end_a_subflow_and_the_last_ends_the_connection(end: object) -> None:
    assert callable(end)
    wire = Wire()
    wire.open(ETHERNET)
    wire.join(WIFI, token())
    wire.send(end(WIFI))
    assert wire.clients(token()) == ["10.1.0.2:40000"]
    wire.send(end(ETHERNET))
    assert wire.table == {}
    wire.join(WIFI, token())
    assert wire.table == {}


def test_a_retransmitted_syn_and_synack_are_one_subflow() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.syn(capable_syn()))
    wire.send(ETHERNET.synack(capable_synack()), ETHERNET.synack(capable_synack()))
    wire.join(WIFI, token())
    wire.join(WIFI, token())
    assert wire.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]
    assert wire.table[token()].subflows[0].opened_at == 1000.001


def test_reused_ports_end_the_old_subflow_once_the_proxy_answers_the_new_one() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    again = Client(ETHERNET.address, ETHERNET.port, seq=777)
    wire.send(again.syn(capable_syn()))
    assert list(wire.table) == [token()]
    wire.send(again.synack(capable_synack(OTHER_KEY)))
    assert list(wire.table) == [token(OTHER_KEY)]


def test_reused_ports_of_plain_tcp_end_the_old_subflow() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    again = Client(ETHERNET.address, ETHERNET.port, seq=777)
    wire.send(again.syn(), again.synack())
    assert wire.table == {}


def test_a_spoofed_syn_on_a_live_subflow_changes_nothing() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.send(Client(ETHERNET.address, ETHERNET.port, seq=5).syn(capable_syn()))
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_a_token_given_out_again_replaces_the_connection_whose_end_was_missed() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.open(Client("10.1.0.9", 9))
    assert wire.clients(token()) == ["10.1.0.9:9"]


def test_other_ports_are_not_ours() -> None:
    wire = Wire()
    wire.send(segment("10.1.0.2", 40000, PROXY, 443, "S", capable_syn()))
    wire.send(segment(PROXY, 443, "10.1.0.2", 40000, "SA", capable_synack(), ack=101))
    assert wire.table == {}


def test_malformed_options_are_counted_and_ignored() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn() + b"xyz"))
    assert wire.table == {}
    assert wire.tracker.counters["malformed"] == 1


def test_unanswered_syns_are_bounded_and_the_oldest_is_forgotten() -> None:
    wire = Wire(max_half_open=10)
    wire.send(*(Client("10.1.0.2", port).syn(capable_syn()) for port in range(1, 100)))
    assert wire.tracker.sizes()["half_open"] == 10
    wire.send(Client("10.1.0.2", 1).synack(capable_synack()))
    assert wire.table == {}
    wire.send(Client("10.1.0.2", 99).synack(capable_synack()))
    assert wire.clients(token()) == ["10.1.0.2:99"]


def test_unanswered_syns_expire() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn()))
    wire.now += 100
    wire.send(WIFI.syn(capable_syn()))
    assert wire.tracker.sizes()["half_open"] == 1


def test_beyond_the_bound_a_connection_is_not_tracked_and_those_known_stay() -> None:
    wire = Wire(max_connections=1)
    wire.open(ETHERNET)
    wire.open(WIFI, OTHER_KEY)
    assert list(wire.table) == [token()]
    assert wire.tracker.counters["connections_not_tracked"] == 1


_ENDS = [Client(address, port, seq) for address in ("10.1.0.2", "fd00:2::2") for port in (1, 2) for seq in (100, 200)]
_KEYS = [KEY, OTHER_KEY]
_SEGMENTS = st.one_of(
    st.sampled_from([c.syn(capable_syn(v)) for c in _ENDS for v in (0, 1)]),
    st.sampled_from([c.synack(capable_synack(k)) for c in _ENDS for k in _KEYS]),
    st.sampled_from([c.syn(join_syn(token(k), backup=b)) for c in _ENDS for k in _KEYS for b in (False, True)]),
    st.sampled_from([c.synack(join_synack()) for c in _ENDS]),
    st.sampled_from([c.synack() for c in _ENDS]),
    st.sampled_from([end for c in _ENDS for end in (c.fin(), c.reset_by_proxy())]),
)


@given(st.lists(_SEGMENTS, max_size=60))
def test_in_any_order_of_segments_the_table_stays_consistent_and_bounded(segments: list[Segment]) -> None:
    wire = Wire(max_connections=1, max_half_open=2)
    for one in segments:
        wire.send(one)
        sizes = wire.tracker.sizes()
        subflows = [subflow.ends for connection in wire.table.values() for subflow in connection.subflows]
        assert len(set(subflows)) == len(subflows) == sizes["subflows"]
        assert len(wire.table) == sizes["connections"] <= 1
        assert all(connection.subflows for connection in wire.table.values())
        assert sizes["half_open"] <= 2
