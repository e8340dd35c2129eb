"""What anybody writes at the server of a fleet keeps no proxy from knowing what the others have counted."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from typing import Final

import pytest
from model_ledger import KEY, PERIOD, ModelLedger
from model_valkey import Hashes, ModelConnection

from mptcp_throttled.answers import status
from mptcp_throttled.fleet.exchange import ExchangeError
from mptcp_throttled.fleet.keys import MAX_FIELDS, PROXIES, field_of, name_of
from mptcp_throttled.fleet.long_values import FIRST_SECONDS, MOST_OF_FIELD, UNREAD_SECONDS
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.totals_book import FAR_ROUNDS, ROUND_TICKS, Entry
from mptcp_throttled.fleet.totals_server import ValkeyExchange
from mptcp_throttled.fleet.totals_thread import TICK_SECONDS, Identity, TotalsThread
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.fleet import GONE_SECONDS, LATE_SECONDS, OwnTotal

CLIENT: Final = "192.0.2.1"
HASH: Final = name_of(OwnTotal(KEY, ip_address(CLIENT), PERIOD, 0, 0.0), None)
ALL_SECONDS: Final = TICK_SECONDS * ROUND_TICKS * FAR_ROUNDS
"""In so many, each client that carries anything is read."""
FIELDS: Final = {b"p.%08x" % number: b"1" for number in range(3 * MAX_FIELDS)}


class Proxy:
    """One whose thread is stepped by the test, with the commands of the product."""

    def __init__(self, hashes: Hashes, name: str) -> None:
        self.ledger, self.field, self.now = ModelLedger(), field_of(name, "00000000"), 1000.0
        self.connections: list[ModelConnection] = []

        def connect(own: str, _: int) -> ValkeyExchange:
            self.connections.append(ModelConnection(hashes))
            return ValkeyExchange(self.connections[-1], own)  # type: ignore[arg-type]

        identify = lambda: Identity(self.field, None)  # noqa: E731
        self.thread = TotalsThread(name, 1e9, self.ledger, identify, connect, Refusals(), lambda _: None)
        self.ledger.carry(CLIENT, 100)
        self.run(ALL_SECONDS)

    def run(self, seconds: float, each_tick: int = 0) -> None:
        for _ in range(int(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            if each_tick:
                self.ledger.carry(CLIENT, each_tick)
            try:
                self.thread.step(self.now)
            except ExchangeError as error:
                self.thread._note_failure(error)

    def carry_on(self) -> None:
        """Its client carries on, and all of that is published."""
        self.run(ALL_SECONDS, each_tick=1)
        self.run(ALL_SECONDS)

    @property
    def elsewhere(self) -> int:
        return self.ledger.used_elsewhere(CLIENT)


@pytest.fixture
def hashes() -> Hashes:
    return {}


@pytest.fixture
def proxies(hashes: Hashes) -> list[Proxy]:
    """Two, of which the first has read what the second has counted."""
    second = Proxy(hashes, "proxy-2")
    first = Proxy(hashes, "proxy-1")
    assert first.elsewhere == 100
    return [first, second]


@pytest.mark.parametrize(
    "fields", [FIELDS, {b"p.00000000": b"9" * 50_000}, {b"p.00000000": b"9" * 10**6}], ids=["many", "long", "too long"]
)
def test_fields_of_unknown_proxies_hide_no_total(
    hashes: Hashes, proxies: list[Proxy], fields: dict[bytes, bytes]
) -> None:
    first, second = proxies
    hashes[HASH].update(fields)
    for _ in range(3):
        second.carry_on()
        first.carry_on()
        assert first.elsewhere == second.ledger.used(CLIENT)
    assert "has more in it than proxies write" in str(first.thread.state.refusal)
    assert len(first.connections) <= 2


def test_client_that_comes_to_an_oversized_hash_has_used_what_is_in_it(hashes: Hashes, proxies: list[Proxy]) -> None:
    hashes[HASH].update(FIELDS)
    assert Proxy(hashes, "proxy-3").elsewhere == sum(proxy.ledger.used(CLIENT) for proxy in proxies)


def test_proxy_that_has_just_joined_is_read_from_an_oversized_hash(hashes: Hashes, proxies: list[Proxy]) -> None:
    first, _ = proxies
    hashes[HASH].update(FIELDS)
    first.carry_on()
    Proxy(hashes, "proxy-3")
    first.carry_on()
    assert first.elsewhere == 200


def test_proxy_that_left_counts_as_before_in_an_oversized_hash(hashes: Hashes, proxies: list[Proxy]) -> None:
    first, second = proxies
    del hashes[PROXIES][second.field.encode()]
    hashes[HASH].update(FIELDS)
    first.run(2 * ALL_SECONDS, each_tick=1)
    assert first.elsewhere == 100
    # What it had written last is read, too.
    hashes[HASH][second.field.encode()] = b"150"
    first.carry_on()
    assert first.elsewhere == 150


@pytest.mark.parametrize("size", [50_000, 10**6])
def test_long_value_of_a_known_proxy_hides_only_its_own_total(hashes: Hashes, proxies: list[Proxy], size: int) -> None:
    first, second = proxies
    third = Proxy(hashes, "proxy-3")
    first.carry_on()
    hashes[HASH][third.field.encode()] = b"9" * size
    second.carry_on()
    first.carry_on()
    assert first.elsewhere == second.ledger.used(CLIENT) + 100
    assert len(first.connections) <= 4
    third.carry_on()
    first.run(UNREAD_SECONDS, each_tick=1)
    first.carry_on()
    assert first.elsewhere == second.ledger.used(CLIENT) + third.ledger.used(CLIENT)


CLIENTS: Final = [f"192.0.2.{number}" for number in range(1, 31)]


@pytest.fixture
def third(hashes: Hashes, proxies: list[Proxy]) -> Proxy:
    """Another one. Each of the three has carried 100 bytes of each of `CLIENTS`, but 200 of the first."""
    made = Proxy(hashes, "proxy-3")
    for proxy in (made, *proxies):
        for client in CLIENTS:
            proxy.ledger.carry(client, 100)
        proxy.carry_on()
    return made


def write_long_values(hashes: Hashes, field: str, most: int) -> None:
    for name in sorted(hashes.keys() - {PROXIES})[:most]:
        hashes[name][field.encode()] = b"9" * 10**6


def carry_all(*proxies: Proxy) -> None:
    for proxy in proxies:
        for client in CLIENTS:
            proxy.ledger.carry(client, 100)
        proxy.run(2 * ALL_SECONDS)


def test_long_values_in_all_hashes_of_a_known_proxy_cost_few_connections(
    hashes: Hashes, proxies: list[Proxy], third: Proxy
) -> None:
    first, second = proxies
    write_long_values(hashes, third.field, len(CLIENTS))
    began = first.now
    for _ in range(3):
        carry_all(second, first)
    assert [first.ledger.used_elsewhere(client) for client in CLIENTS[1:]] == [500] * 29
    while first.now < began + UNREAD_SECONDS - 2 * ALL_SECONDS:
        carry_all(first)
    assert len(first.connections) <= 2 + 5 * MOST_OF_FIELD


def test_long_values_that_are_gone_hide_a_proxy_for_less_than_a_minute(
    hashes: Hashes, proxies: list[Proxy], third: Proxy
) -> None:
    first, _ = proxies
    hashes[HASH].update(FIELDS)
    carry_all(first)
    write_long_values(hashes, third.field, MOST_OF_FIELD)
    first.run(FIRST_SECONDS / 2, each_tick=1)
    carry_all(third)
    carry_all(first)
    assert [first.ledger.used_elsewhere(client) for client in CLIENTS[1:]] == [300] * 29


def test_long_value_in_place_of_the_own_total_is_written_again(hashes: Hashes, proxies: list[Proxy]) -> None:
    first, _ = proxies
    hashes[HASH].update(FIELDS)
    first.carry_on()
    hashes[HASH][first.field.encode()] = b"9" * 10**6
    first.ledger.changed.clear()
    first.run(ALL_SECONDS)
    first.carry_on()
    assert hashes[HASH][first.field.encode()] == b"%d" % first.ledger.used(CLIENT)
    assert len(first.connections) <= 2


def test_oversized_hash_is_read_by_no_more_commands_than_any_other(hashes: Hashes, proxies: list[Proxy]) -> None:
    first, _ = proxies

    def costs() -> tuple[Counter[bytes], int]:
        (connection,) = first.connections
        connection.commands.clear()
        connection.received = 0
        first.run(4 * ALL_SECONDS, each_tick=1)
        return Counter(connection.commands), connection.received

    well, received_well = costs()
    hashes[HASH].update(FIELDS)
    first.carry_on()
    oversized, received_oversized = costs()
    assert oversized[b"HMGET"] + oversized[b"HSCAN"] == well[b"HSCAN"]
    assert received_oversized - received_well < oversized[b"HMGET"] * 2 * len(f"$18\r\n{first.field}\r\n")


def states(proxy: Proxy) -> dict[str, str]:
    """What `status` says of all proxies."""
    return {shown["name"]: shown["state"] for shown in status.proxies(proxy.thread.state, Now(proxy.now, 0.0))}


@pytest.mark.parametrize("fields", [FIELDS, {b"p.00000000": b"9" * 10**6}], ids=["many", "too long"])
def test_list_of_proxies_that_is_oversized_hides_none(
    hashes: Hashes, proxies: list[Proxy], fields: dict[bytes, bytes]
) -> None:
    first, second = proxies
    hashes[PROXIES].update(fields)
    for _ in range(int(3 * LATE_SECONDS)):
        for proxy in (first, second):
            proxy.run(1.0)
    assert states(first) == {"proxy-1": "reachable", "proxy-2": "reachable"}
    first.run(LATE_SECONDS + 4.0)
    assert states(first) == {"proxy-1": "reachable", "proxy-2": "late"}
    assert "the list of proxies" in str(first.thread.state.refusal)


def test_long_value_in_the_list_hides_only_the_report_of_its_own_proxy(hashes: Hashes, proxies: list[Proxy]) -> None:
    first, second = proxies
    third = Proxy(hashes, "proxy-3")
    first.run(4.0)
    hashes[PROXIES][third.field.encode()] = b"9" * 10**6
    for _ in range(int(6 * LATE_SECONDS)):
        for proxy in (first, second):
            proxy.run(1.0)
    shown = {each["name"]: each for each in status.proxies(first.thread.state, Now(first.now, 0.0))}
    assert {each["state"] for each in shown.values()} == {"reachable"}
    assert shown["proxy-2"]["state_age"] < LATE_SECONDS < shown["proxy-3"]["state_age"]
    assert len(first.connections) <= 8
    third.run(4.0)
    first.run(2 * UNREAD_SECONDS / 5)
    assert states(first)["proxy-3"] == "late"


def test_report_that_somebody_replaces_makes_no_proxy_late(hashes: Hashes, proxies: list[Proxy]) -> None:
    first, second = proxies
    for proxy in (second, first):
        proxy.run(4.0)
    hashes[PROXIES][second.field.encode()] = b"x"
    first.run(GONE_SECONDS + 10.0)
    assert states(first) == {"proxy-1": "reachable", "proxy-2": "reachable"}


def test_names_of_no_proxy_hide_no_proxy_that_is_known(hashes: Hashes, proxies: list[Proxy]) -> None:
    first, second = proxies
    report = hashes[PROXIES].pop(second.field.encode())
    hashes[PROXIES].update(dict.fromkeys([*FIELDS][: MAX_FIELDS - 1], report))
    hashes[HASH].update(FIELDS)
    first.carry_on()
    second.carry_on()
    first.carry_on()
    used = dict(first.ledger.elsewhere[ip_address(CLIENT)].elsewhere.by_field)
    assert used[second.field] == second.ledger.used(CLIENT)


def test_names_of_unknown_proxies_in_list_and_hash_hide_no_total(hashes: Hashes, proxies: list[Proxy]) -> None:
    """More fields than a hash may have are then those that this proxy knows, or has believed."""
    first, second = proxies
    report = hashes[PROXIES][second.field.encode()]
    believed, listed = ([b"%b.%08x" % (name, n) for n in range(MAX_FIELDS - 2)] for name in (b"a", b"b"))
    hashes[HASH].update(dict.fromkeys(believed, b"1"))
    first.carry_on()
    hashes[PROXIES].update(dict.fromkeys(listed, report))
    hashes[HASH].update(dict.fromkeys(listed, b"1"))
    first.carry_on()
    second.carry_on()
    first.carry_on()
    used = dict(first.ledger.elsewhere[ip_address(CLIENT)].elsewhere.by_field)
    assert used[second.field] == second.ledger.used(CLIENT)


def test_totals_of_ever_new_names_stay_bounded() -> None:
    entry = Entry(HASH, OwnTotal(KEY, ip_address(CLIENT), PERIOD, 0, 0.0), 0, 0)
    written = {field_of("old", "00000000"): 10**6}
    entry.believe(written, 1000.0, 500.0, 1e9)
    for number in range(10):
        known = dict.fromkeys(field_of(f"s{number}", f"{each:08x}") for each in range(MAX_FIELDS))
        written |= dict.fromkeys(known, 1)
        asked = entry.fields(known)
        assert len(asked) <= 2 * MAX_FIELDS
        entry.believe({field: written[field] for field in asked}, 1000.0 + number, 500.0, 1e9)
        assert len(entry.believed) <= 2 * MAX_FIELDS
    # What counts most stays.
    assert entry.elsewhere.used >= 10**6
