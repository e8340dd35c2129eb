import weakref

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
from worlds import configuration

from mptcp_sniffer.capture import InterfaceLost
from mptcp_sniffer.events import Event, EventKind
from mptcp_sniffer.handshake import Ends
from mptcp_sniffer.kernel_events import KernelEvent, KernelEventKind
from mptcp_sniffer.kernel_list import KernelList, ListedSubflow
from mptcp_sniffer.segment import PackedEndpoint, Segment
from mptcp_sniffer.sniffer import Sniffer
from mptcp_sniffer.stop import Stop
from mptcp_sniffer.tracker import Bounds, TableChange, Tracker
from mptcp_throttle.model import Connection, Subflow, Token, Trust

OTHER_KEY = b"otherkey"
TOKEN, OTHER_TOKEN = token(), token(OTHER_KEY)


class Wire:
    """Sends segments to a tracker and keeps the table that its changes give."""

    def __init__(
        self,
        max_connections: int = 100,
        max_half_open: int = 100,
        trust: Trust = Trust.HANDSHAKE,
        *,
        steered: bool = False,
        ports: tuple[int, ...] = (8080,),
    ) -> None:
        self.events: list[Event] = []
        bounds = Bounds(max_connections, max_half_open)
        self.tracker = Tracker(ports, bounds, trust, self.events.append, steered=steered)
        self.table: dict[Token, Connection] = {}
        self.now = 1000.0

    def send(self, *segments: Segment, by_proxy: bool | None = None) -> None:
        for each in segments:
            self.now += 0.001
            self.take(self.tracker.observe(each, self.now, by_proxy))

    def take(self, changes: list[TableChange]) -> None:
        for change in changes:
            if change.connection is None:
                self.table.pop(change.token, None)
            else:
                self.table[change.token] = change.connection

    def open(self, client: Client, key: bytes = KEY, version: int = 1) -> None:
        self.send(*opening(client, key, version))

    def join(
        self, client: Client, key: bytes = KEY, version: int = 1, *, backup: bool = False, address_id: int = 2
    ) -> None:
        self.send(*joining(client, key, version, backup=backup, address_id=address_id))

    def listed(self, *clients: Client, of: Token = TOKEN, backup: bool = False, at: float | None = None) -> None:
        """The kernel list has these subflows alone."""
        self.kernel_list({client.ends: ListedSubflow(of, 7, backup) for client in clients}, at=at)

    def kernel_list(
        self, subflows: dict[Ends, ListedSubflow], *, at: float | None = None, on_all_ports: bool = True
    ) -> None:
        at = self.now if at is None else at
        self.take(self.tracker.apply_kernel_list(KernelList(at, subflows, on_all_ports)))

    def event(self, kind: KernelEventKind, ends: Ends, of: Token = TOKEN, *, backup: bool = False) -> list[TableChange]:
        changes = self.tracker.apply_kernel_event(KernelEvent(kind, of, ends, backup), self.now)
        self.take(changes)
        return changes

    def subflows(self, of: Token = TOKEN) -> tuple[Subflow, ...]:
        return self.table[of].subflows

    def clients(self, of: Token = TOKEN) -> list[str]:
        return [str(subflow.ends.client) for subflow in self.subflows(of)]

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]


def opening(client: Client, key: bytes = KEY, version: int = 1) -> list[Segment]:
    return [
        client.syn(capable_syn(version)),
        client.synack(capable_synack(key, version)),
        client.ack(capable_ack(key, version)),
    ]


def joining(
    client: Client, key: bytes = KEY, version: int = 1, *, backup: bool = True, address_id: int | None = None
) -> list[Segment]:
    address_id = client.port % 256 if address_id is None else address_id
    return [
        client.syn(join_syn(token(key, version), backup=backup, address_id=address_id)),
        client.synack(join_synack(key, version, address_id=4)),
        client.ack(join_ack(key, version)),
    ]


ETHERNET = Client("10.1.0.2", 40000)
WIFI = Client("10.2.0.2", 50000)
AGAIN = Client(ETHERNET.address, ETHERNET.port, seq=777)  # another connection on the same ports
EARLY = Client(ETHERNET.address, ETHERNET.port, early=bytes(300))  # TCP Fast Open
ANSWERED = Client(ETHERNET.address, ETHERNET.port, early=bytes(300), answer=bytes(200))
OVER_ETHERNET, OVER_WIFI, OVER_BOTH = ["10.1.0.2:40000"], ["10.2.0.2:50000"], ["10.1.0.2:40000", "10.2.0.2:50000"]


def test_segments_together_lead_to_one_change_of_each_connection() -> None:
    wire = Wire()
    fin = WIFI.fin()
    segments = [*opening(ETHERNET), *joining(WIFI), *opening(Client("10.1.0.3", 1), OTHER_KEY), fin]
    changes = wire.tracker.observe_all([(segment, 1000.0, None) for segment in segments])
    assert [change.token for change in changes] == [TOKEN, OTHER_TOKEN]
    wire.take(changes)
    assert wire.clients() == ["10.1.0.2:40000"]


def test_connection_that_has_come_and_gone_between_two_changes_has_ended() -> None:
    segments = [*opening(ETHERNET), ETHERNET.fin()]
    tracker = Tracker([8080], Bounds(100, 100))
    assert tracker.observe_all([(segment, 1000.0, None) for segment in segments]) == [TableChange(TOKEN, None)]


def test_tracker_is_freed_at_once_when_the_last_capture_is_lost() -> None:
    sniffer = Sniffer(configuration(), lambda: None, Stop())
    with sniffer._track() as tracker:
        tracker.observe_all([(segment, 1000.0, None) for segment in (*opening(ETHERNET), *joining(WIFI))])
    lost = weakref.ref(tracker)
    del tracker
    sniffer._give_up(InterfaceLost("eth0", "down"))
    assert lost() is None


def test_answered_join_is_known_before_it_is_proved() -> None:
    wire = Wire()
    *begun, third_ack = joining(WIFI)[:3]
    changes = wire.tracker.observe_all([(segment, 1000.0, None) for segment in (*opening(ETHERNET), *begun)])
    assert [len(change.connection.subflows) for change in changes if change.connection is not None] == [1]
    assert wire.tracker.take_joining() == {TOKEN}
    wire.tracker.observe(third_ack, 1000.1)
    assert wire.tracker.take_joining() == set()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def opened(wire: Wire) -> Wire:
    """A connection over Ethernet is open."""
    wire.open(ETHERNET)
    return wire


@pytest.fixture
def joined(opened: Wire) -> Wire:
    """And has been joined over Wi-Fi."""
    opened.join(WIFI)
    return opened


@pytest.fixture
def confirmed() -> Wire:
    return confirmed_wire()


@pytest.mark.parametrize("version", [0, 1])
def test_connection_token_is_derived_from_the_proxys_key(wire: Wire, version: int) -> None:
    wire.open(ETHERNET, version=version)
    connection = wire.table[token(version=version)]
    assert connection.version == version
    (subflow,) = connection.subflows
    assert str(subflow.ends) == "10.1.0.2:40000-10.3.0.2:8080"
    assert (subflow.address_id, subflow.backup, subflow.opened_at) == (0, False, 1000.001)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("backup", [False, True])
def test_join_adds_a_subflow_to_the_connection_with_its_token(wire: Wire, backup: bool, version: int) -> None:
    wire.open(ETHERNET, version=version)
    wire.open(Client("10.1.0.3", 40000), OTHER_KEY, version)
    wire.join(WIFI, version=version, backup=backup)
    assert wire.clients(token(version=version)) == OVER_BOTH
    subflows = wire.table[token(version=version)].subflows
    assert [(s.backup, s.backup_at_join) for s in subflows] == [(False, False), (backup, backup)]
    assert wire.clients(token(OTHER_KEY, version)) == ["10.1.0.3:40000"]


def test_clients_behind_one_address_are_told_apart_by_port(wire: Wire) -> None:
    wire.open(Client("10.1.0.2", 1))
    wire.open(Client("10.1.0.2", 2), OTHER_KEY)
    wire.send(Client("10.1.0.2", 1).fin())
    assert list(wire.table) == [OTHER_TOKEN]


def test_subflow_is_not_live_before_its_third_ack(wire: Wire) -> None:
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.synack(capable_synack()))
    assert wire.table == {}
    wire.send(ETHERNET.ack(capable_ack()), WIFI.syn(join_syn(TOKEN)), WIFI.synack(join_synack()))
    assert wire.clients() == OVER_ETHERNET
    assert wire.kinds() == ["opened", "established", "joining"]


def test_join_with_an_unknown_token_changes_nothing(opened: Wire) -> None:
    before = dict(opened.table)
    opened.join(WIFI, OTHER_KEY)
    assert opened.table == before
    assert opened.tracker.counters["unknown_token"] == 1


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("forged", ["synack", "ack"])
def test_join_with_a_wrong_hmac_changes_nothing(wire: Wire, forged: str, version: int) -> None:
    wire.open(ETHERNET, version=version)
    before = dict(wire.table)
    wire.send(
        WIFI.syn(join_syn(token(version=version))),
        WIFI.synack(join_synack(OTHER_KEY if forged == "synack" else KEY, version)),
        WIFI.ack(join_ack(OTHER_KEY if forged == "ack" else KEY, version)),
    )
    assert wire.table == before
    assert wire.tracker.counters["wrong_hmac"] == 1


def test_third_ack_with_wrong_key_or_sequence_number_changes_nothing(wire: Wire) -> None:
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.synack(capable_synack()), ETHERNET.ack(capable_ack(OTHER_KEY)))
    blind = segment(ETHERNET.address, ETHERNET.port, PROXY, 8080, "A", capable_ack(), seq=101, ack=5)
    wire.send(blind)
    assert wire.table == {}
    assert wire.tracker.counters["wrong_key"] == 2
    wire.send(ETHERNET.ack(capable_ack()))
    assert list(wire.table) == [TOKEN]


SYN, SYN_ACK, THIRD_ACK = opening(ETHERNET)
UNTRACKED: dict[str, tuple[list[Segment], str | None]] = {
    "SYN/ACK without an option": ([SYN, ETHERNET.synack(), THIRD_ACK], "fell_back"),
    "SYN/ACK with another option": ([SYN, ETHERNET.synack(join_synack()), THIRD_ACK], "fell_back"),
    "the same, SYN/ACK first": ([ETHERNET.synack(join_synack()), SYN, THIRD_ACK], "fell_back"),
    "malformed option": ([ETHERNET.syn(capable_syn() + b"xyz"), SYN_ACK, THIRD_ACK], "malformed"),
    "version 0, another key than that of the SYN": (
        [*opening(ETHERNET, version=0)[:2], ETHERNET.ack(capable_ack(KEY, 0, client_key=OTHER_KEY))],
        "wrong_key",
    ),
    "another port": (
        [
            segment("10.1.0.2", 40000, PROXY, 443, "S", capable_syn()),
            segment(PROXY, 443, "10.1.0.2", 40000, "SA", capable_synack(), ack=101),
            segment("10.1.0.2", 40000, PROXY, 443, "A", capable_ack(), seq=101, ack=101),
        ],
        None,
    ),
}


@pytest.mark.parametrize(("segments", "counter"), UNTRACKED.values(), ids=UNTRACKED)
def test_bad_handshake_opens_no_connection(wire: Wire, segments: list[Segment], counter: str | None) -> None:
    wire.send(*segments)
    assert wire.table == {}
    assert counter is None or wire.tracker.counters[counter] == 1


@pytest.mark.parametrize(("client", "right"), [(ETHERNET, {0}), (ANSWERED, {0, 300})], ids=["plain", "Fast Open"])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 299, 300, 301, 2**31])
def test_syn_ack_acknowledges_the_syn_or_all_its_data(wire: Wire, client: Client, right: set[int], beyond: int) -> None:
    syn, synack, third_ack = opening(client)
    number = (client.seq + 1 + beyond) % 2**32
    tried = synack._replace(acknowledgment=number), third_ack._replace(sequence=number)
    wire.send(syn, *tried)
    assert bool(wire.table) is (beyond in right)
    wire.send(synack, third_ack)
    assert wire.clients() == OVER_ETHERNET
    overtaken = Wire()
    overtaken.send(tried[0], syn, tried[1])
    assert bool(overtaken.table) is (beyond in right)


@pytest.mark.parametrize(("client", "right"), [(ETHERNET, 0), (ANSWERED, 300)], ids=["plain", "Fast Open"])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 299, 300, 301, 2**31])
def test_third_ack_comes_after_what_the_syn_ack_acknowledges(
    wire: Wire, client: Client, right: int, beyond: int
) -> None:
    *begun, third_ack = opening(client)
    wire.send(*begun, third_ack._replace(sequence=(client.seq + 1 + beyond) % 2**32))
    assert bool(wire.table) is (beyond == right)
    wire.send(third_ack)
    assert wire.clients() == OVER_ETHERNET


@pytest.mark.parametrize("beyond", [-1, 0, 1, 199, 200, 201, 2**31])
def test_third_ack_acknowledges_the_syn_ack_or_all_its_data(wire: Wire, beyond: int) -> None:
    *begun, third_ack = opening(ANSWERED)
    wire.send(*begun, third_ack._replace(acknowledgment=(901 + beyond) % 2**32))
    assert bool(wire.table) is (beyond in {0, 200})
    wire.send(third_ack)
    assert wire.clients() == OVER_ETHERNET


def test_tcp_without_mptcp_is_not_tracked(wire: Wire) -> None:
    wire.send(ETHERNET.syn(), ETHERNET.synack(), ETHERNET.ack())
    assert wire.table == {}
    assert set(wire.tracker.sizes().values()) == {0}


OPENED, JOINED = opening(ETHERNET), [*opening(ETHERNET), *joining(WIFI, address_id=3)]
JOIN_SYN, JOIN_SYN_ACK, JOIN_ACK = joining(WIFI)
BLIND_JOIN_ACK = segment(WIFI.address, WIFI.port, PROXY, 8080, "A", join_ack(), seq=101, ack=5)
CAPTURED: dict[str, list[tuple[list[Segment], list[str]]]] = {
    "the first data segment replaces a lost third ACK": [
        ([SYN, SYN_ACK, ETHERNET.ack(capable_ack() + (100).to_bytes(2))], OVER_ETHERNET)
    ],
    "a JOIN may overtake the third ACK of its connection": [
        ([SYN, SYN_ACK, JOIN_SYN, THIRD_ACK, JOIN_SYN_ACK, JOIN_ACK], OVER_BOTH)
    ],
    "the third ACK of a JOIN needs the right sequence numbers": [
        ([*OPENED, JOIN_SYN, JOIN_SYN_ACK, BLIND_JOIN_ACK], OVER_ETHERNET),
        ([JOIN_ACK], OVER_BOTH),
    ],
    "Fast Open": [([*opening(EARLY), *joining(WIFI)], OVER_BOTH)],
    "Fast Open in version 0": [([*opening(EARLY, version=0), *joining(WIFI, version=0)], OVER_BOTH)],
    "Fast Open, the data refused": [([EARLY.syn(capable_syn()), SYN_ACK, THIRD_ACK, *joining(WIFI)], OVER_BOTH)],
    "Fast Open with data in the SYN/ACK": [([*opening(ANSWERED), *joining(WIFI)], OVER_BOTH)],
    "Fast Open, the data of the SYN/ACK refused": [([*opening(ANSWERED)[:2], EARLY.ack(capable_ack())], OVER_ETHERNET)],
    "Fast Open, the handshake sent again": [
        ([*opening(EARLY), SYN, *opening(EARLY), EARLY.ack_by_proxy()], OVER_ETHERNET),
        ([AGAIN.syn(capable_syn()), AGAIN.synack(capable_synack(OTHER_KEY))], []),
    ],
    "FIN": [(JOINED, OVER_BOTH), ([WIFI.fin()], OVER_ETHERNET), ([ETHERNET.fin()], [])],
    "RST": [([*JOINED, WIFI.reset_by_proxy()], OVER_ETHERNET), ([ETHERNET.reset_by_proxy()], [])],
    "REMOVE_ADDR ends the subflows of the sender's address": [
        ([*JOINED, ETHERNET.ack(remove_addr(1, 2))], OVER_BOTH),
        ([ETHERNET.ack(remove_addr(9, 3))], OVER_ETHERNET),
        ([ETHERNET.ack_by_proxy(remove_addr(0))], []),
    ],
    "a checksum failure on the only subflow ends the connection": [
        ([*JOINED, WIFI.ack_by_proxy(fail())], OVER_BOTH),
        ([WIFI.reset_by_proxy(), ETHERNET.ack_by_proxy(fail())], []),
    ],
    "a fast close has the receiver's key": [
        ([*JOINED, WIFI.ack(fastclose(OTHER_KEY)), WIFI.ack_by_proxy(fastclose(KEY))], OVER_BOTH),
        ([WIFI.ack(fastclose(KEY)), *joining(WIFI)], []),
        (OPENED, OVER_ETHERNET),
        ([ETHERNET.ack_by_proxy(fastclose(CLIENT_KEY), flags="RA")], []),
    ],
    "ports reused by plain TCP end the old subflow": [([*OPENED, AGAIN.syn(), AGAIN.synack()], [])],
    "a spoofed SYN changes nothing": [
        ([*OPENED, Client(ETHERNET.address, ETHERNET.port, seq=5).syn(capable_syn())], OVER_ETHERNET)
    ],
    "a reused token replaces the connection whose end was missed": [
        ([*OPENED, *opening(Client("10.1.0.9", 9))], ["10.1.0.9:9"])
    ],
}


@pytest.mark.parametrize("steps", CAPTURED.values(), ids=CAPTURED)
def test_segments_open_and_end_subflows(wire: Wire, steps: list[tuple[list[Segment], list[str]]]) -> None:
    for segments, clients in steps:
        wire.send(*segments)
        assert [client for known in wire.table for client in wire.clients(known)] == clients


@pytest.mark.parametrize(
    ("segments", "clients"),
    [
        ([SYN, THIRD_ACK], OVER_ETHERNET),
        ([SYN, SYN_ACK], OVER_ETHERNET),
        ([SYN_ACK, THIRD_ACK], OVER_ETHERNET),
        ([SYN, THIRD_ACK, JOIN_SYN, WIFI.ack(join_ack(OTHER_KEY))], OVER_BOTH),
    ],
    ids=["of clients", "of the proxy", "without SYN", "JOIN of clients"],
)
def test_trust_token_accepts_handshakes_seen_in_part(segments: list[Segment], clients: list[str]) -> None:
    wire = Wire(trust=Trust.TOKEN)
    wire.send(*segments)
    assert wire.clients() == clients
    assert wire.tracker.sizes()["half_open"] == (0 if THIRD_ACK in segments else 1)


APPENDED = bytes.fromhex("011e0351")  # NOP and MP_PRIO of the uplink program
FROM_CLIENT, FROM_PROXY = ETHERNET.ack(), ETHERNET.ack_by_proxy()
PRIORITIES: dict[str, list[tuple[Segment, bool]]] = {
    "backup while either side asks for it": [
        (ETHERNET.ack(prio(backup=True)), True),
        (ETHERNET.ack_by_proxy(prio(backup=True)), True),
        (ETHERNET.ack(prio(backup=False)), True),
        (ETHERNET.ack_by_proxy(prio(backup=False)), False),
    ],
    "what the uplink program appends is not the proxy's": [
        (FROM_PROXY._replace(options=FROM_PROXY.options + APPENDED), False),
        (FROM_PROXY._replace(options=FROM_PROXY.options + bytes.fromhex("1e035101")), True),
    ],
    "the same of a client is the client's": [
        (FROM_CLIENT._replace(options=FROM_CLIENT.options + APPENDED), True),
        (FROM_CLIENT._replace(options=FROM_CLIENT.options + bytes.fromhex("1e035101")), True),
    ],
    "the proxy's counts beside one of the uplink program": [
        (FROM_PROXY._replace(options=bytes.fromhex("1e035101 00000000 011e0350")), True)
    ],
}


@pytest.mark.parametrize("steps", PRIORITIES.values(), ids=PRIORITIES)
def test_mp_prio_makes_a_subflow_a_backup(opened: Wire, steps: list[tuple[Segment, bool]]) -> None:
    for sent, backup in steps:
        opened.send(sent)
        assert opened.subflows()[0].backup is backup


def test_reset_event_has_the_reason_of_mp_tcprst(opened: Wire) -> None:
    opened.send(ETHERNET.reset_by_proxy(tcprst(3)))
    assert [event.detail for event in opened.events if event.kind is EventKind.CLOSED] == ["RST, reason 3"]


def test_connection_without_subflows_can_be_joined_again_for_a_while(opened: Wire) -> None:
    opened.send(ETHERNET.reset_by_proxy())
    assert opened.table == {}
    opened.now += 50
    opened.join(WIFI)
    assert opened.clients() == OVER_WIFI
    opened.send(WIFI.fin())
    opened.now += 100
    opened.tracker.expire(opened.now)
    opened.join(WIFI)
    assert opened.table == {}
    assert set(opened.tracker.sizes().values()) == {0}


@pytest.mark.parametrize("by_client", [True, False])
def test_mp_prio_of_either_side_changes_its_own_subflow(joined: Wire, by_client: bool) -> None:
    send = ETHERNET.ack if by_client else ETHERNET.ack_by_proxy
    joined.send(send(prio(backup=True)))
    assert [(s.backup, s.backup_at_join) for s in joined.subflows()] == [(True, False), (False, False)]
    joined.send(send(prio(backup=False)))
    assert not any(subflow.backup for subflow in joined.subflows())


def test_mp_prio_of_version_0_applies_to_the_senders_address_id(wire: Wire) -> None:
    wire.open(ETHERNET, version=0)
    wire.join(WIFI, version=0, address_id=3)
    wire.send(ETHERNET.ack(prio(backup=True, address_id=3)))
    assert [subflow.backup for subflow in wire.table[token(version=0)].subflows] == [False, True]


def test_mp_prio_with_an_address_id_is_ignored_in_version_1(opened: Wire) -> None:
    opened.join(WIFI, address_id=3)
    opened.send(ETHERNET.ack(prio(backup=True, address_id=0)), WIFI.ack_by_proxy(prio(backup=True, address_id=0)))
    assert [subflow.backup for subflow in opened.subflows()] == [False, False]
    assert opened.tracker.counters["malformed"] == 2


OPENINGS = [*opening(Client("10.1.0.2", 1, early=bytes(9))), *opening(Client("10.1.0.3", 8080), OTHER_KEY, 0)]
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
    in_order, shuffled = Wire(trust=trust), Wire(trust=trust)
    in_order.send(*OPENINGS, *JOININGS)
    assert in_order.clients() == ["10.1.0.2:1", "10.2.0.2:2", "[fd00:2::2]:3"]
    assert in_order.clients(token(OTHER_KEY, 0)) == ["10.1.0.3:8080", "10.2.0.3:4", "10.2.0.3:8080"]
    shuffled.send(*data.draw(st.permutations(OPENINGS)))
    repeated = data.draw(st.lists(st.sampled_from(OPENINGS + JOININGS), max_size=6))
    shuffled.send(*data.draw(st.permutations(JOININGS + repeated)))
    shuffled.send(*data.draw(st.lists(st.sampled_from(OPENINGS + JOININGS), max_size=6)))
    assert account(shuffled) == account(in_order)
    assert shuffled.tracker.sizes() == in_order.tracker.sizes()
    assert EventKind.CLOSED not in shuffled.kinds()


def test_segments_that_overtook_another_handshake_do_not_count(wire: Wire) -> None:
    wire.send(ETHERNET.synack(capable_synack()), ETHERNET.ack(capable_ack()), AGAIN.syn(capable_syn()))
    assert wire.table == {}
    wire.send(AGAIN.synack(capable_synack(OTHER_KEY)), AGAIN.ack(capable_ack(OTHER_KEY)))
    assert list(wire.table) == [OTHER_TOKEN]
    credulous = Wire(trust=Trust.TOKEN)
    credulous.send(ETHERNET.synack(capable_synack()), AGAIN.syn(capable_syn()))
    assert credulous.table == {}


def test_retransmitted_syn_ack_of_a_join_is_reported_once(opened: Wire) -> None:
    syn, synack, _ = joining(WIFI)
    opened.send(syn, synack, synack)
    assert opened.kinds().count(EventKind.JOINING) == 1


def failures(wire: Wire) -> list[str]:
    return [event.detail for event in wire.events if event.kind is EventKind.FAILED]


def test_join_that_is_reset_or_not_completed_has_failed(opened: Wire) -> None:
    for client in (WIFI, Client("10.2.0.2", 50001)):
        opened.send(*joining(client)[:2])
    assert failures(opened) == []
    opened.send(WIFI.reset_by_proxy(tcprst(3)))
    assert failures(opened) == ["RST, reason 3"]
    # The connection is forgotten before the JOIN is.
    opened.send(ETHERNET.ack(fastclose(KEY)))
    opened.tracker.expire(opened.now + 100)
    assert failures(opened) == ["RST, reason 3", "not completed"]


def test_join_whose_ports_are_reused_has_failed(opened: Wire) -> None:
    opened.send(*joining(WIFI)[:2], Client(WIFI.address, WIFI.port, seq=777).syn(join_syn(TOKEN)))
    assert failures(opened) == ["ports reused"]


def test_join_has_not_failed_if_the_kernel_has_accepted_it(opened: Wire) -> None:
    opened.send(*joining(WIFI)[:2])
    opened.listed(ETHERNET, WIFI)
    opened.tracker.expire(opened.now + 100)
    assert failures(opened) == []


def test_retransmitted_handshake_is_one_subflow(wire: Wire) -> None:
    wire.send(ETHERNET.syn(capable_syn()), ETHERNET.syn(capable_syn()))
    wire.send(ETHERNET.synack(capable_synack()), ETHERNET.synack(capable_synack()))
    wire.send(ETHERNET.ack(capable_ack()), ETHERNET.ack(capable_ack()))
    wire.join(WIFI)
    wire.join(WIFI)
    assert wire.clients() == OVER_BOTH
    assert wire.subflows()[0].opened_at == pytest.approx(1000.001, abs=1e-6)
    assert wire.kinds().count(EventKind.ESTABLISHED) == 2


def test_reused_ports_end_the_old_subflow_at_the_new_syn_ack(opened: Wire) -> None:
    opened.send(AGAIN.syn(capable_syn()))
    assert list(opened.table) == [TOKEN]
    opened.send(AGAIN.synack(capable_synack(OTHER_KEY)))
    assert opened.table == {}
    opened.send(AGAIN.ack(capable_ack(OTHER_KEY)))
    assert list(opened.table) == [OTHER_TOKEN]


@pytest.mark.parametrize("is_direction_known", [False, True])
def test_client_may_have_the_proxys_port_too(is_direction_known: bool) -> None:
    wire, client = Wire(), Client("10.1.0.2", 8080)

    def send(segment: Segment, *, by_proxy: bool) -> None:
        wire.send(segment, by_proxy=by_proxy if is_direction_known else None)

    send(client.syn(capable_syn()), by_proxy=False)
    send(client.synack(capable_synack()), by_proxy=True)
    send(client.ack(capable_ack()), by_proxy=False)
    wire.join(WIFI)
    assert wire.clients() == ["10.1.0.2:8080", "10.2.0.2:50000"]
    send(client.ack_by_proxy(prio(backup=True)), by_proxy=True)
    send(client.ack(prio(backup=False)), by_proxy=False)
    assert wire.subflows()[0].backup, "the proxy still asks for it"
    send(client.fin_by_proxy(), by_proxy=True)
    assert wire.clients() == OVER_WIFI


def test_client_with_the_proxys_port_may_be_refused_by_it() -> None:
    wire, client = Wire(), Client("10.2.0.2", 8080)
    wire.open(ETHERNET)
    wire.send(client.syn(join_syn(TOKEN)), client.synack(join_synack()), client.reset_by_proxy())
    assert wire.tracker.sizes()["half_open"] == 0


def test_what_arrives_in_the_name_of_the_proxy_is_ignored(wire: Wire) -> None:
    forged = Client(PROXY, 40000)
    for client in (ETHERNET, forged):
        wire.send(*opening(client), by_proxy=False)
    assert wire.table == {}
    assert wire.tracker.counters["wrong_direction"] == 2
    wire.open(ETHERNET)
    wire.send(ETHERNET.reset_by_proxy(), ETHERNET.ack_by_proxy(prio(backup=True)), by_proxy=False)
    assert [subflow.backup for subflow in wire.subflows()] == [False]


def test_connection_of_the_proxy_to_another_host_is_not_tracked(wire: Wire) -> None:
    origin = Client("10.4.0.2", 40000)
    wire.send(origin.syn(capable_syn()), origin.ack(capable_ack()), by_proxy=True)
    wire.send(origin.synack(capable_synack()), by_proxy=False)
    assert wire.tracker.sizes()["half_open"] == 0


def test_half_open_handshakes_are_bounded_and_the_oldest_is_forgotten() -> None:
    wire = Wire(max_half_open=10)
    wire.send(*(Client("10.1.0.2", port).syn(capable_syn()) for port in range(1, 100)))
    assert wire.tracker.sizes()["half_open"] == 10
    for port in (1, 99):
        client = Client("10.1.0.2", port)
        wire.send(client.synack(capable_synack()), client.ack(capable_ack()))
    assert wire.clients() == ["10.1.0.2:99"]


def test_half_open_handshakes_expire(wire: Wire) -> None:
    wire.send(ETHERNET.syn(capable_syn()))
    wire.now += 100
    wire.send(WIFI.syn(capable_syn()))
    assert wire.tracker.sizes()["half_open"] == 1


def test_connection_beyond_the_bound_is_not_tracked() -> None:
    wire = Wire(max_connections=1)
    wire.open(ETHERNET)
    wire.open(WIFI, OTHER_KEY)
    assert list(wire.table) == [TOKEN]
    assert wire.tracker.counters["connections_not_tracked"] == 1


def test_authenticated_connection_replaces_one_that_is_not() -> None:
    wire = Wire(max_connections=1, trust=Trust.TOKEN)
    wire.send(WIFI.syn(capable_syn()), WIFI.synack(capable_synack(OTHER_KEY)))
    assert list(wire.table) == [OTHER_TOKEN]
    wire.open(ETHERNET)
    assert list(wire.table) == [TOKEN]
    wire.send(WIFI.syn(capable_syn()), WIFI.synack(capable_synack(OTHER_KEY)))
    assert list(wire.table) == [TOKEN]


def test_connections_older_than_the_sniffer_come_from_the_kernel_list(wire: Wire) -> None:
    wire.listed(ETHERNET, WIFI)
    assert wire.clients() == OVER_BOTH
    wire.send(WIFI.fin())
    assert wire.clients() == OVER_ETHERNET


def test_join_without_known_keys_needs_the_kernel_list(wire: Wire) -> None:
    wire.listed(ETHERNET)
    wire.join(WIFI, backup=True, address_id=9)
    assert wire.clients() == OVER_ETHERNET
    assert wire.tracker.take_kernel_list_request()
    wire.now += 1
    wire.listed(ETHERNET, WIFI, backup=True)
    joined = wire.subflows()[1]
    assert (joined.address_id, joined.backup_at_join, joined.opened_at) == (9, True, 1000.001)


def test_join_to_another_connection_tells_nothing_of_a_listed_subflow(wire: Wire) -> None:
    wire.open(ETHERNET, OTHER_KEY)
    wire.send(WIFI.syn(join_syn(OTHER_TOKEN, address_id=9)))
    wire.listed(ETHERNET, of=OTHER_TOKEN)
    wire.listed(WIFI)
    assert wire.subflows()[0].address_id == 7


@pytest.mark.parametrize("captured", [0, 1, 2])
def test_connection_listed_before_its_handshake_gets_the_keys_later(wire: Wire, captured: int) -> None:
    handshake = opening(ETHERNET)
    wire.send(*handshake[:captured])
    wire.listed(ETHERNET)
    wire.send(*handshake[captured:])
    wire.join(WIFI)
    assert wire.clients() == OVER_BOTH
    assert wire.subflows()[0].opened_at == pytest.approx(1000.001, abs=1e-6)
    assert wire.kinds() == ["opened", "established", "joining", "established"]


@pytest.mark.parametrize("captured", [0, 1, 2])
def test_subflow_listed_before_its_handshake_is_corrected_by_it(opened: Wire, captured: int) -> None:
    handshake = joining(WIFI, address_id=9)
    opened.send(*handshake[:captured])
    opened.listed(ETHERNET, WIFI)
    assert opened.clients() == OVER_BOTH
    opened.send(*handshake[captured:])
    joined = opened.subflows()[1]
    assert (joined.address_id, joined.backup_at_join) == (9, True)
    assert joined.opened_at == pytest.approx(1000.004, abs=1e-6)
    assert EventKind.CLOSED not in opened.kinds()


def test_handshake_on_the_ports_of_a_listed_subflow_ends_that_one(wire: Wire) -> None:
    wire.listed(ETHERNET)
    wire.open(ETHERNET, OTHER_KEY)
    assert list(wire.table) == [OTHER_TOKEN]


def test_subflow_missing_in_the_kernel_list_ends_unless_seen_since(opened: Wire) -> None:
    opened.now += 10
    opened.join(WIFI)
    opened.listed()
    assert opened.clients() == OVER_WIFI


def test_forged_fin_is_undone_by_the_kernel_list(opened: Wire) -> None:
    assert not opened.tracker.take_kernel_list_request()
    opened.send(ETHERNET.fin())
    assert opened.tracker.take_kernel_list_request()
    assert not opened.tracker.take_kernel_list_request()
    opened.listed(ETHERNET)
    assert opened.table == {}
    opened.now += 1
    opened.listed(ETHERNET)
    assert opened.clients() == OVER_ETHERNET


def test_backup_flag_of_the_kernel_list_overrules_older_segments(opened: Wire) -> None:
    opened.send(ETHERNET.ack(prio(backup=True)))
    opened.listed(ETHERNET, backup=False)
    assert opened.subflows()[0].backup
    opened.now += 1
    opened.listed(ETHERNET, backup=False)
    assert not opened.subflows()[0].backup


def test_kernel_event_ends_a_subflow_of_its_connection_only(joined: Wire) -> None:
    for of, left in ((OTHER_TOKEN, 2), (TOKEN, 1)):
        joined.event(KernelEventKind.CLOSED, WIFI.ends, of)
        assert len(joined.clients()) == left
    joined.listed(ETHERNET, WIFI)  # a list that was read just before
    assert joined.clients() == OVER_ETHERNET


def test_closed_subflow_stays_while_something_is_queued(confirmed: Wire) -> None:
    confirmed.event(KernelEventKind.CLOSED, WIFI.ends)
    assert confirmed.tracker.take_kernel_list_request()
    confirmed.listed(ETHERNET, WIFI)  # a list that was read just before
    assert [subflow.stalled for subflow in confirmed.subflows()] == [False, True]
    confirmed.listed(ETHERNET, WIFI, at=confirmed.now + 0.001)  # the event was of an earlier subflow on its ports
    assert [subflow.stalled for subflow in confirmed.subflows()] == [False, False]
    confirmed.event(KernelEventKind.CLOSED, WIFI.ends)
    confirmed.now += 1
    confirmed.listed(ETHERNET)
    assert confirmed.clients() == OVER_ETHERNET


def test_subflows_that_are_closing_are_bounded_and_none_is_added() -> None:
    wire = confirmed_wire(max_half_open=64)
    clients = [Client("10.2.0.2", port) for port in range(1, 101)]
    for client in clients:
        wire.join(client)
    wire.now += 1
    closing = ListedSubflow(TOKEN, 2, backup=False, closing=True)
    wire.kernel_list({client.ends: closing for client in (*clients, Client("10.2.0.3", 1))})
    assert wire.clients() == [f"10.2.0.2:{port}" for port in range(37, 101)]
    assert all(subflow.stalled for subflow in wire.subflows())


def test_kernel_list_changes_the_priority_of_a_subflow_that_is_closing(confirmed: Wire) -> None:
    closing = ListedSubflow(TOKEN, 2, backup=True, closing=True)
    confirmed.kernel_list({ETHERNET.ends: closing, WIFI.ends: ListedSubflow(TOKEN, 2, backup=False)})
    assert [(s.stalled, s.backup) for s in confirmed.subflows()] == [(True, True), (False, False)]


def test_retransmitted_handshake_does_not_revive_a_closed_subflow(confirmed: Wire) -> None:
    client = Client("10.2.0.2", 1)
    confirmed.join(client)
    confirmed.event(KernelEventKind.CLOSED, client.ends)
    confirmed.join(client)
    assert [subflow.stalled for subflow in confirmed.subflows()] == [False, False, True]


def test_kernel_event_changes_the_backup_flag(opened: Wire) -> None:
    for backup in (True, False):
        opened.event(KernelEventKind.PRIORITY, ETHERNET.ends, backup=backup)
        assert opened.subflows()[0].backup is backup


# While steering may have told the kernel


@pytest.fixture
def steered() -> Wire:
    """An open connection, of whose priorities the kernel confirms what the client has asked for."""
    wire = Wire(steered=True)
    wire.tracker.kernel_confirms = True
    wire.open(ETHERNET)
    wire.listed(ETHERNET)
    wire.now += 10
    return wire


def backups(wire: Wire) -> list[bool]:
    return [subflow.backup for subflow in wire.subflows()]


@pytest.mark.parametrize("source", ["event", "list"])
def test_backup_that_no_client_has_asked_for_is_one_of_steering(steered: Wire, source: str) -> None:
    for backup in (True, False, True):
        if source == "event":
            steered.event(KernelEventKind.PRIORITY, ETHERNET.ends, backup=backup)
        else:
            steered.listed(ETHERNET, backup=backup)
        assert backups(steered) == [False]
    assert EventKind.BACKUP_CHANGED not in steered.kinds()


@pytest.mark.parametrize("source", ["event", "list"])
def test_backup_that_the_client_asks_for_is_one_when_the_kernel_says_so(steered: Wire, source: str) -> None:
    def kernel_says(backup: bool) -> None:
        steered.now += 10
        if source == "event":
            steered.event(KernelEventKind.PRIORITY, ETHERNET.ends, backup=backup)
        else:
            steered.listed(ETHERNET, backup=backup)

    steered.send(ETHERNET.ack(prio(backup=True)))
    assert backups(steered) == [False], "it may be forged"
    kernel_says(False)
    assert backups(steered) == [False]
    kernel_says(True)
    assert backups(steered) == [True]
    steered.send(ETHERNET.ack(prio(backup=False)))
    kernel_says(True)
    assert backups(steered) == [True], "the withdrawal may be forged"
    kernel_says(False)
    kernel_says(True)
    assert backups(steered) == [False], "steering holds it back now"


def test_claim_of_the_proxys_side_lets_the_kernel_be_believed_no_more(steered: Wire) -> None:
    steered.send(ETHERNET.ack_by_proxy(prio(backup=False)))
    steered.event(KernelEventKind.PRIORITY, ETHERNET.ends, backup=True)
    assert backups(steered) == [False]


def test_subflow_that_joins_as_a_backup_is_one_while_steering_may_act(steered: Wire) -> None:
    steered.join(WIFI, backup=True)
    for kernel_says in (True, False, True):
        steered.now += 10
        steered.kernel_list(
            {
                ETHERNET.ends: ListedSubflow(TOKEN, 0, backup=True),
                WIFI.ends: ListedSubflow(TOKEN, 2, backup=kernel_says),
            }
        )
        assert backups(steered) == [False, kernel_says]


def test_kernel_is_believed_of_a_subflow_whose_join_was_not_captured(steered: Wire) -> None:
    """The daemon knows better if it was steering."""
    steered.listed(ETHERNET, WIFI, backup=True)
    assert backups(steered) == [False, True]


def test_backup_that_the_proxys_kernel_asks_for_needs_no_claim(steered: Wire) -> None:
    listed = ListedSubflow(TOKEN, 0, backup=False, backup_by_proxy=True)
    steered.kernel_list({ETHERNET.ends: listed})
    assert backups(steered) == [True]
    steered.now += 10
    steered.listed(ETHERNET)
    assert backups(steered) == [False]


def from_port(port: int) -> Ends:
    """Of a subflow that the proxy's host has opened to the client's Wi-Fi."""
    return Ends(WIFI.ends.client, PackedEndpoint(WIFI.ends.proxy.address, port))


def test_subflow_that_the_proxy_has_opened_is_known_by_its_token(opened: Wire) -> None:
    opened.listed(ETHERNET)
    assert not opened.tracker.expects_other_ports
    opened.event(KernelEventKind.ESTABLISHED, from_port(40001))
    assert opened.tracker.expects_other_ports
    assert opened.tracker.take_kernel_list_request()
    subflows = {
        from_port(40001): ListedSubflow(TOKEN, 7, backup=False),
        from_port(40002): ListedSubflow(OTHER_TOKEN, 7, backup=False),
        ETHERNET.ends: ListedSubflow(TOKEN, 0, backup=False),
    }
    opened.kernel_list(subflows)
    assert opened.clients() == OVER_BOTH
    assert list(opened.table) == [TOKEN]
    assert opened.tracker.expects_other_ports
    opened.now += 1
    opened.listed(ETHERNET)
    assert opened.clients() == OVER_ETHERNET
    assert not opened.tracker.expects_other_ports


def test_connection_has_the_port_that_accepted_it() -> None:
    wire = Wire(ports=(8080, 8443))
    announced = Ends(WIFI.ends.client, PackedEndpoint(WIFI.ends.proxy.address, 8443))
    subflows = {
        announced: ListedSubflow(TOKEN, 2, backup=False),
        ETHERNET.ends: ListedSubflow(TOKEN, 0, backup=False, is_first=True),
    }
    wire.kernel_list(subflows)
    assert wire.table[TOKEN].port == 8080
    wire.now += 1
    wire.kernel_list({announced: subflows[announced]})
    assert [each.ends.proxy.port for each in wire.table[TOKEN].subflows] == [8443]
    assert wire.table[TOKEN].port == 8080
    captured = Wire(ports=(8080, 8443))
    captured.open(ETHERNET)
    captured.kernel_list(subflows | {ETHERNET.ends: subflows[ETHERNET.ends]._replace(is_first=False)})
    assert captured.table[TOKEN].port == 8080


@pytest.mark.parametrize("on_all_ports", [True, False])
def test_list_older_than_a_subflow_of_the_proxy_leaves_other_ports_listed(opened: Wire, on_all_ports: bool) -> None:
    opened.listed(ETHERNET)
    listed, read_before = {ETHERNET.ends: ListedSubflow(TOKEN, 0, backup=False)}, opened.now
    opened.now += 0.1
    opened.event(KernelEventKind.ESTABLISHED, from_port(40001))
    opened.kernel_list(listed, at=read_before, on_all_ports=on_all_ports)
    assert opened.tracker.expects_other_ports
    opened.now += 1
    opened.kernel_list(listed, on_all_ports=False)
    assert opened.tracker.expects_other_ports
    opened.listed(ETHERNET)
    assert not opened.tracker.expects_other_ports


def test_subflows_of_another_service_do_not_ask_for_other_ports(opened: Wire) -> None:
    opened.tracker.expects_other_ports = True
    asked_at = opened.now
    opened.now += 0.1
    opened.event(KernelEventKind.ESTABLISHED, from_port(443), OTHER_TOKEN)
    opened.kernel_list({}, at=asked_at)
    assert not opened.tracker.expects_other_ports


def test_subflow_that_the_proxy_opened_early_asks_for_other_ports_later(wire: Wire) -> None:
    wire.listed()
    assert not wire.tracker.expects_other_ports
    assert wire.event(KernelEventKind.ESTABLISHED, from_port(40001)) == []
    assert not wire.tracker.expects_other_ports
    wire.open(ETHERNET)
    assert wire.tracker.expects_other_ports
    assert wire.tracker.take_kernel_list_request()


def test_events_of_other_connections_do_not_widen_the_kernel_list(opened: Wire) -> None:
    opened.listed(ETHERNET)
    assert opened.event(KernelEventKind.ESTABLISHED, from_port(40002), OTHER_TOKEN) == []
    assert not opened.tracker.expects_other_ports


def test_subflow_moves_to_the_token_in_the_kernel_list(opened: Wire) -> None:
    opened.now += 1
    opened.listed(ETHERNET, of=OTHER_TOKEN)
    opened.now += 1
    opened.listed(ETHERNET, of=OTHER_TOKEN)
    assert list(opened.table) == [OTHER_TOKEN]


def test_stalled_subflow_is_published_as_stalled_until_it_recovers(opened: Wire) -> None:
    for stalled in (True, False):
        listed = ListedSubflow(TOKEN, 0, backup=False, stalled=stalled)
        opened.kernel_list({ETHERNET.ends: listed})
        assert opened.subflows()[0].stalled is stalled
    assert [event.kind for event in opened.events[-2:]] == [EventKind.STALLED, EventKind.RECOVERED]


@pytest.mark.parametrize("is_join_captured", [False, True])
def test_subflow_learned_from_the_kernel_list_is_as_that_says(opened: Wire, is_join_captured: bool) -> None:
    if is_join_captured:
        opened.send(WIFI.syn(join_syn(TOKEN)))
    listed = ListedSubflow(TOKEN, 2, backup=True, stalled=True)
    opened.kernel_list({ETHERNET.ends: ListedSubflow(TOKEN, 0, backup=False), WIFI.ends: listed})
    learned = opened.subflows()[1]
    assert (learned.backup, learned.stalled) == (True, True)


def test_idle_subflows_expire_without_a_kernel_list(opened: Wire) -> None:
    opened.now += 50
    opened.join(WIFI)
    opened.take(opened.tracker.expire(opened.now + 30, idle_seconds=60))
    assert opened.clients() == OVER_WIFI


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
            wire.kernel_list(step)
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
    assert not wire.tracker.take_kernel_list_request()
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
def test_what_a_client_seems_to_end_is_left_to_the_kernel_list(confirmed: Wire, forged: Segment) -> None:
    before = confirmed.table[TOKEN]
    confirmed.send(forged, by_proxy=False)
    assert confirmed.table[TOKEN] == before
    assert confirmed.tracker.take_kernel_list_request()
    confirmed.listed(ETHERNET, WIFI)
    assert len(confirmed.clients()) == 2
    confirmed.send(forged, by_proxy=False)
    confirmed.listed(ETHERNET)
    assert confirmed.clients() == OVER_ETHERNET


def test_priority_of_the_kernel_list_counts_whatever_was_captured_last(confirmed: Wire) -> None:
    confirmed.send(WIFI.ack(prio(backup=True)), by_proxy=False)
    confirmed.listed(ETHERNET, WIFI, backup=True)
    assert [subflow.backup for subflow in confirmed.subflows()] == [True, True]


def test_what_the_proxy_ends_itself_counts_at_once(confirmed: Wire) -> None:
    confirmed.send(WIFI.ack_by_proxy(flags="FA"), by_proxy=True)
    assert confirmed.clients() == OVER_ETHERNET


def test_new_subflow_that_is_not_in_the_kernel_list_yet_stays(wire: Wire) -> None:
    wire.tracker.kernel_confirms = True
    wire.open(ETHERNET)
    wire.listed()
    assert wire.clients() == OVER_ETHERNET
    wire.listed(of=TOKEN, at=wire.now + 1)
    assert wire.table == {}
