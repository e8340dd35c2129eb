import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import (
    CLIENT_KEY,
    KEY,
    PROXY,
    Client,
    capable_ack,
    capable_syn,
    capable_synack,
    fail,
    fastclose,
    join_ack,
    join_syn,
    join_synack,
    prio,
    remove_addr,
    segment,
    tcprst,
    token,
)

from mptcp_sniffer.events import Event, EventKind
from mptcp_sniffer.handshake import Ends
from mptcp_sniffer.kernel_events import KernelEvent, KernelEventKind
from mptcp_sniffer.kernel_list import KernelList, ListedSubflow
from mptcp_sniffer.segment import PackedEndpoint, Segment
from mptcp_sniffer.tracker import Bounds, TableChange, Tracker
from mptcp_throttle.model import Connection, Token, Trust

OTHER_KEY = b"otherkey"


class Wire:
    """Sends segments to a tracker and keeps the table that its changes give."""

    def __init__(self, max_connections: int = 100, max_half_open: int = 100, trust: Trust = Trust.HANDSHAKE) -> None:
        self.events: list[Event] = []
        self.tracker = Tracker([8080], Bounds(max_connections, max_half_open), trust, self.events.append)
        self.table: dict[Token, Connection] = {}
        self.now = 1000.0

    def send(self, *segments: Segment, by_proxy: bool | None = None) -> None:
        for one in segments:
            self.now += 0.001
            self.take(self.tracker.observe(one, self.now, by_proxy))

    def take(self, changes: list[TableChange]) -> None:
        for change in changes:
            if change.connection is None:
                self.table.pop(change.token, None)
            else:
                self.table[change.token] = change.connection

    def open(self, client: Client, key: bytes = KEY, version: int = 1) -> None:
        self.send(
            client.syn(capable_syn(version)),
            client.synack(capable_synack(key, version)),
            client.ack(capable_ack(key, version)),
        )

    def join(
        self, client: Client, key: bytes = KEY, version: int = 1, *, backup: bool = False, address_id: int = 2
    ) -> None:
        self.send(
            client.syn(join_syn(token(key, version), backup=backup, address_id=address_id)),
            client.synack(join_synack(key, version)),
            client.ack(join_ack(key, version)),
        )

    def listed(self, *clients: Client, of: Token, backup: bool = False, at: float | None = None) -> None:
        """The kernel list has these subflows and no others."""
        at = self.now if at is None else at
        subflow = ListedSubflow(of, 7, backup)
        self.take(self.tracker.apply_kernel_list(KernelList(at, {client.ends: subflow for client in clients})))

    def clients(self, of: Token) -> list[str]:
        return [str(subflow.ends.client) for subflow in self.table[of].subflows]


ETHERNET = Client("10.1.0.2", 40000)
WIFI = Client("10.2.0.2", 50000)


@pytest.mark.parametrize("version", [0, 1])
def test_connection_token_is_derived_from_the_proxys_key(version: int) -> None:
    wire = Wire()
    wire.open(ETHERNET, version=version)
    connection = wire.table[token(version=version)]
    assert connection.version == version
    (subflow,) = connection.subflows
    assert str(subflow.ends) == "10.1.0.2:40000-10.3.0.2:8080"
    assert (subflow.address_id, subflow.backup, subflow.opened_at) == (0, False, 1000.001)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("backup", [False, True])
def test_join_adds_a_subflow_to_the_connection_with_its_token(backup: bool, version: int) -> None:
    wire = Wire()
    wire.open(ETHERNET, version=version)
    wire.open(Client("10.1.0.3", 40000), OTHER_KEY, version)
    wire.join(WIFI, version=version, backup=backup)
    assert wire.clients(token(version=version)) == ["10.1.0.2:40000", "10.2.0.2:50000"]
    subflows = wire.table[token(version=version)].subflows
    assert [(s.backup, s.backup_at_join) for s in subflows] == [(False, False), (backup, backup)]
    assert wire.clients(token(OTHER_KEY, version)) == ["10.1.0.3:40000"]


def test_interleaved_handshakes_of_two_clients_are_kept_apart() -> None:
    wire = Wire()
    a, b = Client("10.1.0.2", 1), Client("10.1.0.3", 1)
    a2, b2 = Client("10.2.0.2", 2), Client("fd00:2::3", 2)
    wire.send(
        a.syn(capable_syn()), b.syn(capable_syn()), b.synack(capable_synack(OTHER_KEY)), a.synack(capable_synack())
    )
    wire.send(a.ack(capable_ack()), b.ack(capable_ack(OTHER_KEY)))
    wire.send(
        b2.syn(join_syn(token(OTHER_KEY))),
        a2.syn(join_syn(token())),
        a2.synack(join_synack()),
        b2.synack(join_synack(OTHER_KEY)),
        b2.ack(join_ack(OTHER_KEY)),
        a2.ack(join_ack()),
    )
    assert wire.clients(token()) == ["10.1.0.2:1", "10.2.0.2:2"]
    assert wire.clients(token(OTHER_KEY)) == ["10.1.0.3:1", "[fd00:2::3]:2"]


def test_clients_behind_one_address_are_told_apart_by_port() -> None:
    wire = Wire()
    wire.open(Client("10.1.0.2", 1))
    wire.open(Client("10.1.0.2", 2), OTHER_KEY)
    wire.send(Client("10.1.0.2", 1).fin())
    assert list(wire.table) == [token(OTHER_KEY)]


def test_subflow_is_not_live_before_its_third_ack() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.synack(capable_synack()))
    assert wire.table == {}
    wire.send(ETHERNET.ack(capable_ack()), WIFI.syn(join_syn(token())), WIFI.synack(join_synack()))
    assert wire.clients(token()) == ["10.1.0.2:40000"]
    assert [event.kind for event in wire.events] == [EventKind.OPENED, EventKind.ESTABLISHED, EventKind.JOINING]


def test_first_data_segment_replaces_a_lost_third_ack() -> None:
    wire = Wire()
    with_data_length = capable_ack() + (100).to_bytes(2)
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.synack(capable_synack()), ETHERNET.ack(with_data_length))
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_join_with_an_unknown_token_changes_nothing() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    before = dict(wire.table)
    wire.join(WIFI, OTHER_KEY)
    assert wire.table == before
    assert wire.tracker.counters["unknown_token"] == 1


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("forged", ["synack", "ack"])
def test_join_with_a_wrong_hmac_changes_nothing(forged: str, version: int) -> None:
    wire = Wire()
    wire.open(ETHERNET, version=version)
    before = dict(wire.table)
    wire.send(
        WIFI.syn(join_syn(token(version=version))),
        WIFI.synack(join_synack(OTHER_KEY if forged == "synack" else KEY, version)),
        WIFI.ack(join_ack(OTHER_KEY if forged == "ack" else KEY, version)),
    )
    assert wire.table == before
    assert wire.tracker.counters["wrong_hmac"] == 1


def test_third_ack_with_wrong_key_or_sequence_number_changes_nothing() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.synack(capable_synack()), ETHERNET.ack(capable_ack(OTHER_KEY)))
    blind = segment(ETHERNET.address, ETHERNET.port, PROXY, 8080, "A", capable_ack(), seq=101, ack=5)
    wire.send(blind)
    assert wire.table == {}
    assert wire.tracker.counters["wrong_key"] == 2
    wire.send(ETHERNET.ack(capable_ack()))
    assert list(wire.table) == [token()]


def test_version_0_third_ack_must_repeat_the_key_of_the_syn() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn(0)), ETHERNET.synack(capable_synack(KEY, 0)))
    wire.send(ETHERNET.ack(capable_ack(KEY, 0, client_key=OTHER_KEY)))
    assert wire.table == {}


def test_connection_that_falls_back_to_tcp_is_not_tracked() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.synack(), ETHERNET.ack(capable_ack()))
    assert wire.table == {}
    assert wire.tracker.counters["fell_back"] == 1


def test_checksum_failure_on_the_only_subflow_ends_the_connection() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.join(WIFI)
    wire.send(WIFI.ack_by_proxy(fail()))
    assert len(wire.clients(token())) == 2
    wire.send(WIFI.reset_by_proxy(), ETHERNET.ack_by_proxy(fail()))
    assert wire.table == {}


def test_tcp_without_mptcp_is_not_tracked() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(), ETHERNET.synack(), ETHERNET.ack())
    assert wire.table == {}
    assert set(wire.tracker.sizes().values()) == {0}


@pytest.mark.parametrize("end", [Client.fin, Client.reset_by_proxy])
def test_fin_or_rst_of_either_side_ends_a_subflow(end: object) -> None:
    assert callable(end)
    wire = Wire()
    wire.open(ETHERNET)
    wire.join(WIFI)
    wire.send(end(WIFI))
    assert wire.clients(token()) == ["10.1.0.2:40000"]
    wire.send(end(ETHERNET))
    assert wire.table == {}


def test_reset_event_has_the_reason_of_mp_tcprst() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.send(ETHERNET.reset_by_proxy(tcprst(3)))
    assert [event.detail for event in wire.events if event.kind is EventKind.CLOSED] == ["RST, reason 3"]


def test_connection_without_subflows_can_be_joined_again_for_a_while() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.send(ETHERNET.reset_by_proxy())
    assert wire.table == {}
    wire.now += 50
    wire.join(WIFI)
    assert wire.clients(token()) == ["10.2.0.2:50000"]
    wire.send(WIFI.fin())
    wire.now += 100
    wire.tracker.expire(wire.now)
    wire.join(WIFI)
    assert wire.table == {}
    assert set(wire.tracker.sizes().values()) == {0}


@pytest.mark.parametrize("by_client", [True, False])
def test_mp_prio_of_either_side_changes_its_own_subflow(by_client: bool) -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.join(WIFI)
    send = ETHERNET.ack if by_client else ETHERNET.ack_by_proxy
    wire.send(send(prio(backup=True)))
    assert [(s.backup, s.backup_at_join) for s in wire.table[token()].subflows] == [(True, False), (False, False)]
    wire.send(send(prio(backup=False)))
    assert not any(subflow.backup for subflow in wire.table[token()].subflows)


@pytest.mark.parametrize(("by_client", "backup"), [(True, True), (False, False)])
def test_mp_prio_that_the_uplink_program_appends_is_not_the_proxys(by_client: bool, backup: bool) -> None:
    wire = Wire()
    wire.open(ETHERNET)
    ack = (ETHERNET.ack if by_client else ETHERNET.ack_by_proxy)()
    wire.send(ack._replace(options=ack.options + bytes.fromhex("011e0351")))
    assert wire.table[token()].subflows[0].backup is backup
    wire.send(ack._replace(options=ack.options + bytes.fromhex("1e035101")))
    assert wire.table[token()].subflows[0].backup


def test_mp_prio_of_the_proxy_counts_beside_one_of_the_uplink_program() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    ack = ETHERNET.ack_by_proxy()
    wire.send(ack._replace(options=bytes.fromhex("1e035101") + bytes.fromhex("00000000") + bytes.fromhex("011e0350")))
    assert wire.table[token()].subflows[0].backup


def test_subflow_is_backup_while_either_side_asks_for_it() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.send(ETHERNET.ack(prio(backup=True)), ETHERNET.ack_by_proxy(prio(backup=True)))
    wire.send(ETHERNET.ack(prio(backup=False)))
    assert wire.table[token()].subflows[0].backup
    wire.send(ETHERNET.ack_by_proxy(prio(backup=False)))
    assert not wire.table[token()].subflows[0].backup


def test_mp_prio_of_version_0_applies_to_the_senders_address_id() -> None:
    wire = Wire()
    wire.open(ETHERNET, version=0)
    wire.join(WIFI, version=0, address_id=3)
    wire.send(ETHERNET.ack(prio(backup=True, address_id=3)))
    assert [subflow.backup for subflow in wire.table[token(version=0)].subflows] == [False, True]


def test_mp_prio_with_an_address_id_is_ignored_in_version_1() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.join(WIFI, address_id=3)
    wire.send(ETHERNET.ack(prio(backup=True, address_id=0)), WIFI.ack_by_proxy(prio(backup=True, address_id=0)))
    assert [subflow.backup for subflow in wire.table[token()].subflows] == [False, False]
    assert wire.tracker.counters["malformed"] == 2


def test_remove_addr_ends_the_subflows_of_the_senders_address() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.join(WIFI, address_id=3)
    wire.send(ETHERNET.ack(remove_addr(1, 2)))
    assert len(wire.clients(token())) == 2
    wire.send(ETHERNET.ack(remove_addr(9, 3)))
    assert wire.clients(token()) == ["10.1.0.2:40000"]
    wire.send(ETHERNET.ack_by_proxy(remove_addr(0)))
    assert wire.table == {}


def test_fast_close_with_the_receivers_key_ends_the_connection() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.join(WIFI)
    wire.send(WIFI.ack(fastclose(OTHER_KEY)))
    wire.send(WIFI.ack_by_proxy(fastclose(KEY)))
    assert len(wire.clients(token())) == 2
    wire.send(WIFI.ack(fastclose(KEY)))
    wire.join(WIFI)
    assert wire.table == {}
    wire.open(ETHERNET)
    wire.send(ETHERNET.ack_by_proxy(fastclose(CLIENT_KEY), flags="RA"))
    assert wire.table == {}


def opening(client: Client, key: bytes = KEY, version: int = 1) -> list[Segment]:
    return [
        client.syn(capable_syn(version)),
        client.synack(capable_synack(key, version)),
        client.ack(capable_ack(key, version)),
    ]


def joining(client: Client, key: bytes = KEY, version: int = 1) -> list[Segment]:
    return [
        client.syn(join_syn(token(key, version), backup=True, address_id=client.port % 256)),
        client.synack(join_synack(key, version, address_id=4)),
        client.ack(join_ack(key, version)),
    ]


OPENINGS = [*opening(Client("10.1.0.2", 1)), *opening(Client("10.1.0.3", 8080), OTHER_KEY, 0)]
JOININGS = [
    *joining(Client("10.2.0.2", 2)),
    *joining(Client("fd00:2::2", 3)),
    *joining(Client("10.2.0.3", 4), OTHER_KEY, 0),
    *joining(Client("10.2.0.3", 8080), OTHER_KEY, 0),
]


def account(wire: Wire) -> dict[Token, set[tuple[str, int, bool, bool]]]:
    return {
        of: {(str(s.ends), s.address_id, s.backup, s.backup_at_join) for s in connection.subflows}
        for of, connection in wire.table.items()
    }


@given(st.sampled_from(Trust), st.data())
def test_segments_of_a_handshake_may_come_in_any_order_and_more_than_once(trust: Trust, data: st.DataObject) -> None:
    in_order, other = Wire(trust=trust), Wire(trust=trust)
    in_order.send(*OPENINGS, *JOININGS)
    other.send(*data.draw(st.permutations(OPENINGS)))
    repeated = data.draw(st.lists(st.sampled_from(OPENINGS + JOININGS), max_size=6))
    other.send(*data.draw(st.permutations(JOININGS + repeated)))
    other.send(*data.draw(st.lists(st.sampled_from(OPENINGS + JOININGS), max_size=6)))
    assert account(other) == account(in_order)
    assert other.tracker.sizes() == in_order.tracker.sizes()
    assert EventKind.CLOSED not in [event.kind for event in other.events]


def test_join_may_overtake_the_third_ack_of_its_connection() -> None:
    wire = Wire()
    syn, synack, ack = opening(ETHERNET)
    join_first, *join_rest = joining(WIFI)
    wire.send(syn, synack, join_first, ack, *join_rest)
    assert wire.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]


def test_segments_that_overtook_another_handshake_do_not_count() -> None:
    wire = Wire()
    again = Client(ETHERNET.address, ETHERNET.port, seq=777)
    wire.send(ETHERNET.synack(capable_synack()), ETHERNET.ack(capable_ack()), again.syn(capable_syn()))
    assert wire.table == {}
    wire.send(again.synack(capable_synack(OTHER_KEY)), again.ack(capable_ack(OTHER_KEY)))
    assert list(wire.table) == [token(OTHER_KEY)]
    credulous = Wire(trust=Trust.TOKEN)
    credulous.send(ETHERNET.synack(capable_synack()), again.syn(capable_syn()))
    assert credulous.table == {}


@pytest.mark.parametrize("is_syn_first", [True, False])
def test_connection_whose_syn_ack_has_another_option_is_not_tracked(is_syn_first: bool) -> None:
    wire = Wire()
    syn_and_answer = [ETHERNET.syn(capable_syn()), ETHERNET.synack(join_synack())]
    wire.send(*syn_and_answer[:: 1 if is_syn_first else -1], ETHERNET.ack(capable_ack()))
    assert wire.table == {}
    assert wire.tracker.counters["fell_back"] == 1


def test_third_ack_of_a_join_needs_the_right_sequence_numbers_too() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.send(*joining(WIFI)[:2])
    wire.send(segment(WIFI.address, WIFI.port, PROXY, 8080, "A", join_ack(), seq=101, ack=5))
    assert wire.clients(token()) == ["10.1.0.2:40000"]
    wire.send(WIFI.ack(join_ack()))
    assert wire.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]


def test_retransmitted_syn_ack_of_a_join_is_reported_once() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    syn, synack, _ = joining(WIFI)
    wire.send(syn, synack, synack)
    assert [event.kind for event in wire.events].count(EventKind.JOINING) == 1


def failures(wire: Wire) -> list[str]:
    return [event.detail for event in wire.events if event.kind is EventKind.FAILED]


def test_join_that_is_reset_or_not_completed_has_failed() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    for client in (WIFI, Client("10.2.0.2", 50001)):
        wire.send(*joining(client)[:2])
    assert failures(wire) == []
    wire.send(WIFI.reset_by_proxy(tcprst(3)))
    assert failures(wire) == ["RST, reason 3"]
    # The connection is forgotten before the JOIN is.
    wire.send(ETHERNET.ack(fastclose(KEY)))
    wire.tracker.expire(wire.now + 100)
    assert failures(wire) == ["RST, reason 3", "not completed"]


def test_join_whose_ports_are_reused_has_failed() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.send(*joining(WIFI)[:2], Client(WIFI.address, WIFI.port, seq=777).syn(join_syn(token())))
    assert failures(wire) == ["ports reused"]


def test_join_has_not_failed_if_the_kernel_has_accepted_it() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.send(*joining(WIFI)[:2])
    wire.listed(ETHERNET, WIFI, of=token())
    wire.tracker.expire(wire.now + 100)
    assert failures(wire) == []


def test_retransmitted_handshake_is_one_subflow() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.syn(capable_syn()))
    wire.send(ETHERNET.synack(capable_synack()), ETHERNET.synack(capable_synack()))
    wire.send(ETHERNET.ack(capable_ack()), ETHERNET.ack(capable_ack()))
    wire.join(WIFI)
    wire.join(WIFI)
    assert wire.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]
    assert wire.table[token()].subflows[0].opened_at == pytest.approx(1000.001, abs=1e-6)
    assert [event.kind for event in wire.events].count(EventKind.ESTABLISHED) == 2


def test_reused_ports_end_the_old_subflow_at_the_new_syn_ack() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    again = Client(ETHERNET.address, ETHERNET.port, seq=777)
    wire.send(again.syn(capable_syn()))
    assert list(wire.table) == [token()]
    wire.send(again.synack(capable_synack(OTHER_KEY)))
    assert wire.table == {}
    wire.send(again.ack(capable_ack(OTHER_KEY)))
    assert list(wire.table) == [token(OTHER_KEY)]


def test_ports_reused_by_plain_tcp_end_the_old_subflow() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    again = Client(ETHERNET.address, ETHERNET.port, seq=777)
    wire.send(again.syn(), again.synack())
    assert wire.table == {}


def test_spoofed_syn_on_a_live_subflow_changes_nothing() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.send(Client(ETHERNET.address, ETHERNET.port, seq=5).syn(capable_syn()))
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_reused_token_replaces_the_connection_whose_end_was_missed() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.open(Client("10.1.0.9", 9))
    assert wire.clients(token()) == ["10.1.0.9:9"]


def test_segments_of_other_ports_are_ignored() -> None:
    wire = Wire()
    wire.send(segment("10.1.0.2", 40000, PROXY, 443, "S", capable_syn()))
    wire.send(segment(PROXY, 443, "10.1.0.2", 40000, "SA", capable_synack(), ack=101))
    wire.send(segment("10.1.0.2", 40000, PROXY, 443, "A", capable_ack(), seq=101, ack=101))
    assert wire.table == {}


@pytest.mark.parametrize("is_direction_known", [False, True])
def test_client_may_have_the_proxys_port_too(is_direction_known: bool) -> None:
    wire, client = Wire(), Client("10.1.0.2", 8080)

    def send(segment: Segment, *, by_proxy: bool) -> None:
        wire.send(segment, by_proxy=by_proxy if is_direction_known else None)

    send(client.syn(capable_syn()), by_proxy=False)
    send(client.synack(capable_synack()), by_proxy=True)
    send(client.ack(capable_ack()), by_proxy=False)
    wire.join(WIFI)
    assert wire.clients(token()) == ["10.1.0.2:8080", "10.2.0.2:50000"]
    send(client.ack_by_proxy(prio(backup=True)), by_proxy=True)
    send(client.ack(prio(backup=False)), by_proxy=False)
    assert wire.table[token()].subflows[0].backup, "the proxy still asks for it"
    send(client.fin_by_proxy(), by_proxy=True)
    assert wire.clients(token()) == ["10.2.0.2:50000"]


def test_client_with_the_proxys_port_may_be_refused_by_it() -> None:
    wire, client = Wire(), Client("10.2.0.2", 8080)
    wire.open(ETHERNET)
    wire.send(client.syn(join_syn(token())), client.synack(join_synack()), client.reset_by_proxy())
    assert wire.tracker.sizes()["half_open"] == 0


def test_what_arrives_in_the_name_of_the_proxy_is_ignored() -> None:
    wire = Wire()
    forged = Client(PROXY, 40000)
    for client in (ETHERNET, forged):
        handshake = (client.syn(capable_syn()), client.synack(capable_synack()), client.ack(capable_ack()))
        wire.send(*handshake, by_proxy=False)
    assert wire.table == {}
    assert wire.tracker.counters["wrong_direction"] == 2
    wire.open(ETHERNET)
    wire.send(ETHERNET.reset_by_proxy(), ETHERNET.ack_by_proxy(prio(backup=True)), by_proxy=False)
    assert [subflow.backup for subflow in wire.table[token()].subflows] == [False]


def test_connection_of_the_proxy_to_another_host_is_not_tracked() -> None:
    wire = Wire()
    origin = Client("10.4.0.2", 40000)
    wire.send(origin.syn(capable_syn()), origin.ack(capable_ack()), by_proxy=True)
    wire.send(origin.synack(capable_synack()), by_proxy=False)
    assert wire.tracker.sizes()["half_open"] == 0


def test_malformed_options_are_counted_and_ignored() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn() + b"xyz"), ETHERNET.synack(capable_synack()), ETHERNET.ack(capable_ack()))
    assert wire.table == {}
    assert wire.tracker.counters["malformed"] == 1


def test_half_open_handshakes_are_bounded_and_the_oldest_is_forgotten() -> None:
    wire = Wire(max_half_open=10)
    wire.send(*(Client("10.1.0.2", port).syn(capable_syn()) for port in range(1, 100)))
    assert wire.tracker.sizes()["half_open"] == 10
    for port in (1, 99):
        client = Client("10.1.0.2", port)
        wire.send(client.synack(capable_synack()), client.ack(capable_ack()))
    assert wire.clients(token()) == ["10.1.0.2:99"]


def test_half_open_handshakes_expire() -> None:
    wire = Wire()
    wire.send(ETHERNET.syn(capable_syn()))
    wire.now += 100
    wire.send(WIFI.syn(capable_syn()))
    assert wire.tracker.sizes()["half_open"] == 1


def test_connection_beyond_the_bound_is_not_tracked() -> None:
    wire = Wire(max_connections=1)
    wire.open(ETHERNET)
    wire.open(WIFI, OTHER_KEY)
    assert list(wire.table) == [token()]
    assert wire.tracker.counters["connections_not_tracked"] == 1


def test_trust_token_accepts_handshakes_seen_in_one_direction() -> None:
    from_clients, from_proxy = Wire(trust=Trust.TOKEN), Wire(trust=Trust.TOKEN)
    from_clients.send(ETHERNET.syn(capable_syn()), ETHERNET.ack(capable_ack()))
    from_clients.send(WIFI.syn(join_syn(token(), backup=True)), WIFI.ack(join_ack(OTHER_KEY)))
    assert from_clients.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]
    from_proxy.send(ETHERNET.syn(capable_syn()), ETHERNET.synack(capable_synack()))
    assert from_proxy.clients(token()) == ["10.1.0.2:40000"]


def test_trust_token_accepts_a_connection_whose_syn_was_missed() -> None:
    wire = Wire(trust=Trust.TOKEN)
    wire.send(ETHERNET.synack(capable_synack()), ETHERNET.ack(capable_ack()))
    assert wire.clients(token()) == ["10.1.0.2:40000"]
    assert wire.tracker.sizes()["half_open"] == 0


def test_authenticated_connection_replaces_one_that_is_not() -> None:
    wire = Wire(max_connections=1, trust=Trust.TOKEN)
    wire.send(WIFI.syn(capable_syn()), WIFI.synack(capable_synack(OTHER_KEY)))
    assert list(wire.table) == [token(OTHER_KEY)]
    wire.open(ETHERNET)
    assert list(wire.table) == [token()]
    wire.send(WIFI.syn(capable_syn()), WIFI.synack(capable_synack(OTHER_KEY)))
    assert list(wire.table) == [token()]


def test_connections_older_than_the_sniffer_come_from_the_kernel_list() -> None:
    wire = Wire()
    wire.listed(ETHERNET, WIFI, of=token())
    assert wire.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]
    wire.send(WIFI.fin())
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_join_without_known_keys_needs_the_kernel_list() -> None:
    wire = Wire()
    wire.listed(ETHERNET, of=token())
    wire.join(WIFI, backup=True, address_id=9)
    assert wire.clients(token()) == ["10.1.0.2:40000"]
    assert wire.tracker.needs_kernel_list()
    wire.now += 1
    wire.listed(ETHERNET, WIFI, of=token(), backup=True)
    joined = wire.table[token()].subflows[1]
    assert (joined.address_id, joined.backup_at_join, joined.opened_at) == (9, True, 1000.001)


def test_join_to_another_connection_tells_nothing_of_a_listed_subflow() -> None:
    wire = Wire()
    wire.open(ETHERNET, OTHER_KEY)
    wire.send(WIFI.syn(join_syn(token(OTHER_KEY), address_id=9)))
    wire.listed(ETHERNET, of=token(OTHER_KEY))
    wire.listed(WIFI, of=token())
    assert wire.table[token()].subflows[0].address_id == 7


@pytest.mark.parametrize("captured", [0, 1, 2])
def test_connection_listed_before_its_handshake_gets_the_keys_later(captured: int) -> None:
    wire = Wire()
    handshake = [ETHERNET.syn(capable_syn()), ETHERNET.synack(capable_synack()), ETHERNET.ack(capable_ack())]
    wire.send(*handshake[:captured])
    wire.listed(ETHERNET, of=token())
    wire.send(*handshake[captured:])
    wire.join(WIFI)
    assert wire.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]
    assert wire.table[token()].subflows[0].opened_at == pytest.approx(1000.001, abs=1e-6)
    assert [event.kind for event in wire.events] == [
        EventKind.OPENED,
        EventKind.ESTABLISHED,
        EventKind.JOINING,
        EventKind.ESTABLISHED,
    ]


@pytest.mark.parametrize("captured", [0, 1, 2])
def test_subflow_listed_before_its_handshake_is_corrected_by_it(
    captured: int,
) -> None:
    wire = Wire()
    wire.open(ETHERNET)
    handshake = [
        WIFI.syn(join_syn(token(), backup=True, address_id=9)),
        WIFI.synack(join_synack()),
        WIFI.ack(join_ack()),
    ]
    wire.send(*handshake[:captured])
    wire.listed(ETHERNET, WIFI, of=token())
    assert wire.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]
    wire.send(*handshake[captured:])
    joined = wire.table[token()].subflows[1]
    assert (joined.address_id, joined.backup_at_join) == (9, True)
    assert joined.opened_at == pytest.approx(1000.004, abs=1e-6)
    assert EventKind.CLOSED not in [event.kind for event in wire.events]


def test_handshake_on_the_ports_of_a_listed_subflow_ends_that_one() -> None:
    wire = Wire()
    wire.listed(ETHERNET, of=token())
    wire.open(ETHERNET, OTHER_KEY)
    assert list(wire.table) == [token(OTHER_KEY)]


def test_subflow_missing_in_the_kernel_list_ends_unless_seen_since() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.now += 10
    wire.join(WIFI)
    wire.listed(of=token())
    assert wire.clients(token()) == ["10.2.0.2:50000"]


def test_forged_fin_is_undone_by_the_kernel_list() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    assert not wire.tracker.needs_kernel_list()
    wire.send(ETHERNET.fin())
    assert wire.tracker.needs_kernel_list()
    assert not wire.tracker.needs_kernel_list()
    wire.listed(ETHERNET, of=token())
    assert wire.table == {}
    wire.now += 1
    wire.listed(ETHERNET, of=token())
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_backup_flag_of_the_kernel_list_overrules_older_segments() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.send(ETHERNET.ack(prio(backup=True)))
    wire.listed(ETHERNET, of=token(), backup=False)
    assert wire.table[token()].subflows[0].backup
    wire.now += 1
    wire.listed(ETHERNET, of=token(), backup=False)
    assert not wire.table[token()].subflows[0].backup


def closed_event(of: Token) -> KernelEvent:
    return KernelEvent(KernelEventKind.CLOSED, of, WIFI.ends, backup=False)


def test_kernel_event_ends_a_subflow_of_its_connection_only() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.join(WIFI)
    for of, left in ((token(OTHER_KEY), 2), (token(), 1)):
        wire.take(wire.tracker.apply_kernel_event(closed_event(of), wire.now))
        assert len(wire.clients(token())) == left
    wire.listed(ETHERNET, WIFI, of=token())  # a list that was read just before
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_closed_subflow_stays_while_something_is_queued() -> None:
    wire = confirmed_wire()
    wire.take(wire.tracker.apply_kernel_event(closed_event(token()), wire.now))
    assert wire.tracker.needs_kernel_list()
    wire.listed(ETHERNET, WIFI, of=token())  # a list that was read just before
    assert [subflow.stalled for subflow in wire.table[token()].subflows] == [False, True]
    wire.listed(ETHERNET, WIFI, of=token(), at=wire.now + 0.001)  # the event was of an earlier subflow on its ports
    assert [subflow.stalled for subflow in wire.table[token()].subflows] == [False, False]
    wire.take(wire.tracker.apply_kernel_event(closed_event(token()), wire.now))
    wire.now += 1
    wire.listed(ETHERNET, of=token())
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_subflows_that_are_closing_are_bounded_and_none_is_added() -> None:
    wire = confirmed_wire(max_half_open=64)
    clients = [Client("10.2.0.2", port) for port in range(1, 101)]
    for client in clients:
        wire.join(client)
    wire.now += 1
    closing = ListedSubflow(token(), 2, backup=False, closing=True)
    listed = {client.ends: closing for client in (*clients, Client("10.2.0.3", 1))}
    wire.take(wire.tracker.apply_kernel_list(KernelList(wire.now, listed)))
    assert wire.clients(token()) == [f"10.2.0.2:{port}" for port in range(37, 101)]
    assert all(subflow.stalled for subflow in wire.table[token()].subflows)


def test_kernel_list_changes_the_priority_of_a_subflow_that_is_closing() -> None:
    wire = confirmed_wire()
    closing = ListedSubflow(token(), 2, backup=True, closing=True)
    listed = {ETHERNET.ends: closing, WIFI.ends: ListedSubflow(token(), 2, backup=False)}
    wire.take(wire.tracker.apply_kernel_list(KernelList(wire.now, listed)))
    assert [(one.stalled, one.backup) for one in wire.table[token()].subflows] == [(True, True), (False, False)]


def test_retransmitted_handshake_does_not_revive_a_closed_subflow() -> None:
    wire = confirmed_wire()
    client = Client("10.2.0.2", 1)
    wire.join(client)
    wire.take(
        wire.tracker.apply_kernel_event(KernelEvent(KernelEventKind.CLOSED, token(), client.ends, False), wire.now)
    )
    wire.join(client)
    assert [subflow.stalled for subflow in wire.table[token()].subflows] == [False, False, True]


def test_kernel_event_changes_the_backup_flag() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    for backup in (True, False):
        event = KernelEvent(KernelEventKind.PRIORITY, token(), ETHERNET.ends, backup)
        wire.take(wire.tracker.apply_kernel_event(event, wire.now))
        assert wire.table[token()].subflows[0].backup is backup


def test_subflow_that_the_proxy_has_opened_is_known_by_its_token() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.listed(ETHERNET, of=token())
    assert not wire.tracker.expects_other_ports
    opened = Ends(WIFI.ends.client, PackedEndpoint(WIFI.ends.proxy.address, 40001))
    event = KernelEvent(KernelEventKind.ESTABLISHED, token(), opened, backup=False)
    wire.take(wire.tracker.apply_kernel_event(event, wire.now))
    assert wire.tracker.expects_other_ports
    assert wire.tracker.needs_kernel_list()
    foreign = Ends(WIFI.ends.client, PackedEndpoint(WIFI.ends.proxy.address, 40002))
    subflows = {
        opened: ListedSubflow(token(), 7, backup=False),
        foreign: ListedSubflow(token(OTHER_KEY), 7, backup=False),
        ETHERNET.ends: ListedSubflow(token(), 0, backup=False),
    }
    wire.take(wire.tracker.apply_kernel_list(KernelList(wire.now, subflows)))
    assert wire.clients(token()) == ["10.1.0.2:40000", "10.2.0.2:50000"]
    assert list(wire.table) == [token()]
    assert wire.tracker.expects_other_ports
    wire.now += 1
    wire.listed(ETHERNET, of=token())
    assert wire.clients(token()) == ["10.1.0.2:40000"]
    assert not wire.tracker.expects_other_ports


@pytest.mark.parametrize("ports", ["all", "proxy"])
def test_kernel_list_older_than_a_subflow_that_the_proxy_opened(ports: str) -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.listed(ETHERNET, of=token())
    listed = {ETHERNET.ends: ListedSubflow(token(), 0, backup=False)}
    read_before = KernelList(wire.now, listed, on_all_ports=ports == "all")
    wire.now += 0.1
    opened = Ends(WIFI.ends.client, PackedEndpoint(WIFI.ends.proxy.address, 40001))
    event = KernelEvent(KernelEventKind.ESTABLISHED, token(), opened, backup=False)
    wire.take(wire.tracker.apply_kernel_event(event, wire.now))
    wire.take(wire.tracker.apply_kernel_list(read_before))
    assert wire.tracker.expects_other_ports
    wire.now += 1
    wire.take(wire.tracker.apply_kernel_list(KernelList(wire.now, listed, on_all_ports=False)))
    assert wire.tracker.expects_other_ports
    wire.listed(ETHERNET, of=token())
    assert not wire.tracker.expects_other_ports


def test_subflows_of_another_service_do_not_ask_for_other_ports() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.tracker.expects_other_ports = True
    asked_at = wire.now
    wire.now += 0.1
    opened = Ends(WIFI.ends.client, PackedEndpoint(WIFI.ends.proxy.address, 443))
    event = KernelEvent(KernelEventKind.ESTABLISHED, token(OTHER_KEY), opened, backup=False)
    wire.take(wire.tracker.apply_kernel_event(event, wire.now))
    wire.take(wire.tracker.apply_kernel_list(KernelList(asked_at, {}, on_all_ports=True)))
    assert not wire.tracker.expects_other_ports


def test_subflow_that_the_proxy_opens_before_the_connection_is_captured() -> None:
    wire = Wire()
    wire.listed(of=token())
    assert not wire.tracker.expects_other_ports
    opened = Ends(WIFI.ends.client, PackedEndpoint(WIFI.ends.proxy.address, 40001))
    event = KernelEvent(KernelEventKind.ESTABLISHED, token(), opened, backup=False)
    assert wire.tracker.apply_kernel_event(event, wire.now) == []
    assert not wire.tracker.expects_other_ports
    wire.open(ETHERNET)
    assert wire.tracker.expects_other_ports
    assert wire.tracker.needs_kernel_list()


def test_events_of_other_connections_do_not_widen_the_kernel_list() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.listed(ETHERNET, of=token())
    foreign = Ends(WIFI.ends.client, PackedEndpoint(WIFI.ends.proxy.address, 40002))
    event = KernelEvent(KernelEventKind.ESTABLISHED, token(OTHER_KEY), foreign, backup=False)
    assert wire.tracker.apply_kernel_event(event, wire.now) == []
    assert not wire.tracker.expects_other_ports


def test_subflow_moves_to_the_token_in_the_kernel_list() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.now += 1
    wire.listed(ETHERNET, of=token(OTHER_KEY))
    wire.now += 1
    wire.listed(ETHERNET, of=token(OTHER_KEY))
    assert list(wire.table) == [token(OTHER_KEY)]


def test_stalled_subflow_is_published_as_stalled_until_it_recovers() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    for stalled in (True, False):
        listed = ListedSubflow(token(), 0, backup=False, stalled=stalled)
        wire.take(wire.tracker.apply_kernel_list(KernelList(wire.now, {ETHERNET.ends: listed})))
        assert wire.table[token()].subflows[0].stalled is stalled
    assert [event.kind for event in wire.events[-2:]] == [EventKind.STALLED, EventKind.RECOVERED]


@pytest.mark.parametrize("is_join_captured", [False, True])
def test_subflow_learned_from_the_kernel_list_is_as_that_says(is_join_captured: bool) -> None:
    wire = Wire()
    wire.open(ETHERNET)
    if is_join_captured:
        wire.send(WIFI.syn(join_syn(token())))
    listed = {
        ETHERNET.ends: ListedSubflow(token(), 0, backup=False),
        WIFI.ends: ListedSubflow(token(), 2, backup=True, stalled=True),
    }
    wire.take(wire.tracker.apply_kernel_list(KernelList(wire.now, listed)))
    learned = wire.table[token()].subflows[1]
    assert (learned.backup, learned.stalled) == (True, True)


def test_idle_subflows_expire_without_a_kernel_list() -> None:
    wire = Wire()
    wire.open(ETHERNET)
    wire.now += 50
    wire.join(WIFI)
    wire.take(wire.tracker.expire(wire.now + 30, idle_seconds=60))
    assert wire.clients(token()) == ["10.2.0.2:50000"]


_ENDS = [Client(address, port, seq) for address in ("10.1.0.2", "fd00:2::2") for port in (1, 2) for seq in (100, 200)]
_KEYS = [KEY, OTHER_KEY]
_SEGMENTS = st.one_of(
    st.sampled_from([c.syn(capable_syn(v)) for c in _ENDS for v in (0, 1)]),
    st.sampled_from([c.synack(capable_synack(k)) for c in _ENDS for k in _KEYS]),
    st.sampled_from([c.ack(capable_ack(k)) for c in _ENDS for k in _KEYS]),
    st.sampled_from([c.syn(join_syn(token(k), backup=b)) for c in _ENDS for k in _KEYS for b in (False, True)]),
    st.sampled_from([c.synack(join_synack(k)) for c in _ENDS for k in _KEYS]),
    st.sampled_from([c.ack(join_ack(k)) for c in _ENDS for k in _KEYS]),
    st.sampled_from([c.synack() for c in _ENDS]),
    st.sampled_from([end for c in _ENDS for end in (c.fin(), c.reset_by_proxy())]),
    st.sampled_from(
        [
            send(option)
            for c in _ENDS
            for send in (c.ack, c.ack_by_proxy)
            for option in (prio(backup=True), remove_addr(0, 2), fastclose(KEY), fastclose(CLIENT_KEY), fail())
        ]
    ),
)
_LISTINGS = st.dictionaries(
    st.sampled_from([c.ends for c in _ENDS]),
    st.builds(ListedSubflow, st.sampled_from([token(k) for k in _KEYS]), st.just(2), st.booleans()),
)


@given(st.sampled_from(Trust), st.lists(st.one_of(_SEGMENTS, _LISTINGS), max_size=60))
def test_table_stays_consistent_and_bounded_in_any_order_of_segments(
    trust: Trust, steps: list[Segment | dict[Ends, ListedSubflow]]
) -> None:
    wire = Wire(max_connections=1, max_half_open=2, trust=trust)
    for step in steps:
        if isinstance(step, Segment):
            wire.send(step)
        else:
            wire.now += 1
            wire.take(wire.tracker.apply_kernel_list(KernelList(wire.now, step)))
        sizes = wire.tracker.sizes()
        subflows = [subflow.ends for connection in wire.table.values() for subflow in connection.subflows]
        assert len(set(subflows)) == len(subflows) == sizes["subflows"]
        assert len(wire.table) == sizes["connections"] <= 1
        assert all(connection.subflows for connection in wire.table.values())
        assert max(sizes["half_open"], sizes["orphans"]) <= 2


def confirmed_wire(max_half_open: int = 100) -> Wire:
    """Two subflows, on a host whose kernel list can be read."""
    wire = Wire(max_half_open=max_half_open)
    wire.tracker.kernel_confirms = True
    wire.open(ETHERNET)
    wire.join(WIFI)
    wire.now += 1
    assert not wire.tracker.needs_kernel_list()
    return wire


@pytest.mark.parametrize(
    "forged",
    [
        WIFI.fin(),
        WIFI.ack(flags="R"),
        WIFI.ack(prio(backup=True)),
        WIFI.ack(remove_addr(2)),
        WIFI.ack(fail()),
        WIFI.ack(fastclose(KEY)),
    ],
)
def test_what_a_client_seems_to_end_is_left_to_the_kernel_list(forged: Segment) -> None:
    wire = confirmed_wire()
    before = wire.table[token()]
    wire.send(forged, by_proxy=False)
    assert wire.table[token()] == before
    assert wire.tracker.needs_kernel_list()
    wire.listed(ETHERNET, WIFI, of=token())
    assert len(wire.clients(token())) == 2
    wire.send(forged, by_proxy=False)
    wire.listed(ETHERNET, of=token())
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_priority_of_the_kernel_list_counts_whatever_was_captured_last() -> None:
    wire = confirmed_wire()
    wire.send(WIFI.ack(prio(backup=True)), by_proxy=False)
    wire.listed(ETHERNET, WIFI, of=token(), backup=True)
    assert [subflow.backup for subflow in wire.table[token()].subflows] == [True, True]


def test_what_the_proxy_ends_itself_counts_at_once() -> None:
    wire = confirmed_wire()
    wire.send(WIFI.ack_by_proxy(flags="FA"), by_proxy=True)
    assert wire.clients(token()) == ["10.1.0.2:40000"]


def test_new_subflow_that_is_not_in_the_kernel_list_yet_stays() -> None:
    wire = Wire()
    wire.tracker.kernel_confirms = True
    wire.open(ETHERNET)
    wire.listed(of=token())
    assert wire.clients(token()) == ["10.1.0.2:40000"]
    wire.listed(of=token(), at=wire.now + 1)
    assert wire.table == {}
