"""Leases by a server of hashes: two proxies exchange rounds, and believe nothing that no proxy has written."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest
from model_valkey import Hashes, ModelConnection

from mptcp_throttle.model import Direction
from mptcp_throttle.valkey.connection import ValkeyError
from mptcp_throttle.valkey.lease_names import NAMES, RECORD, hash_of
from mptcp_throttled.fleet.lease_book import Kept, LeaseBook, Request
from mptcp_throttled.fleet.lease_server import ABOUT, LOST, LeaseServer, field_of_rate
from mptcp_throttled.fleet.lease_thread import LeaseThread
from mptcp_throttled.fleet.leases import Statement, pool
from mptcp_throttled.fleet.members import (
    AWAY_SECONDS,
    HEARD_SECONDS,
    IN_VAIN_SECONDS,
    LEASE_SECONDS,
    MOST_MEMBERS,
    PARTS,
    SELDOM_SECONDS,
    Members,
    Record,
)
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.lifecycle.kept_leases import KeptLeases
from mptcp_throttled.vocabulary.fleet import WHOLE, RateKey, SharedRates

KEY: Final = RateKey("lte", ip_address("10.0.0.1"), Direction.DOWNLINK)
SECRET: Final = b"0123456789abcdef"


@dataclass
class Proxy:
    """A proxy whose kernel has at once what it shall have, unless it is `stuck`."""

    name: str
    connection: ModelConnection
    kept: Kept = field(default_factory=Kept)
    now: float = 1000.0
    stuck: bool = False
    applied: SharedRates | None = None
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        members = Members(self.name, self.now, self.kept.part, self.kept.known, self.kept.contact, self.kept.last_sent)
        self.book = LeaseBook(members, self.kept.leases, lambda: self.applied, self.apply, self.now)
        self.server = LeaseServer(self.connection, self.name, None)  # type: ignore[arg-type]
        self.sessions = 0

    def apply(self) -> None:
        if not self.stuck:
            self.applied = self.book.held

    def round(self) -> None:
        """A second passes, and a round of commands."""
        self.now += 1.0
        self.book.follow(self.now)
        try:
            if not self.book.in_session:
                if self.book.must_wait(self.now):
                    return
                self.sessions += 1
                self.book.open(self.server.records(), hash((self.name, self.sessions)) % 2**64, self.now)
            request = self.book.compose(self.now)
            if request is not None:
                answer = self.server.exchange(request, self.now)
                self.refused += answer.refused
                self.book.take(answer.round, answer.statements, answer.changed, self.now)
        except ValkeyError:
            self.book.close()

    @property
    def held(self) -> float:
        return self.book.held.held(KEY) / WHOLE


@pytest.fixture
def hashes() -> Hashes:
    return {}


@pytest.fixture
def proxies(hashes: Hashes) -> list[Proxy]:
    """Two, which have half of the fleet each."""
    made = [Proxy(name, ModelConnection(hashes)) for name in ("one", "two")]
    rounds(made, 30)
    assert [proxy.book.kept().part for proxy in made] == [PARTS // 2] * 2
    return made


def join(hashes: Hashes, *names: str) -> None:
    """Let there be proxies that say nothing more."""
    for name in names:
        hashes.setdefault(NAMES, {})[name.encode()] = b""
        hashes[hash_of(name)] = {RECORD: str(Record(1, 1, 0)).encode(), LOST: b"", ABOUT: b""}


def thread_of(proxy: Proxy, *, is_wanted: bool = True) -> tuple[LeaseThread, Refusals]:
    refusals = Refusals()
    return LeaseThread(proxy.book, lambda _: proxy.server, lambda: is_wanted, lambda: None, refusals), refusals


def rounds(proxies: list[Proxy], number: int) -> None:
    for _ in range(number):
        for proxy in proxies:
            proxy.round()
        assert len(proxies) == 1 or sum(proxy.held for proxy in proxies) <= 1


def test_rate_is_leased_where_it_is_wanted(proxies: list[Proxy]) -> None:
    one, two = proxies
    one.book.want({KEY: WHOLE}, one.now)
    rounds(proxies, 2)
    assert one.held == pytest.approx(30 / 32 + 1 / 64)
    two.book.want({KEY: WHOLE}, two.now)
    rounds(proxies, 4)
    assert [one.held, two.held] == [pytest.approx(15 / 32 + 1 / 64)] * 2
    one.book.want({}, one.now)
    rounds(proxies, 4)
    assert [one.held, two.held] == [pytest.approx(1 / 64), pytest.approx(30 / 32 + 1 / 64)]


def test_rate_that_is_not_wanted_is_not_read_and_leaves_no_field(proxies: list[Proxy], hashes: Hashes) -> None:
    one, _ = proxies
    one.book.want({KEY: WHOLE}, one.now)
    rounds(proxies, 2)
    assert field_of_rate(KEY, None) in hashes[hash_of("one")]
    one.book.want({}, one.now)
    rounds(proxies, 4)
    assert set(hashes[hash_of("one")]) == {RECORD, LOST, ABOUT}
    one.connection.commands.clear()
    rounds(proxies, 1)
    assert one.connection.commands == [b"HGET", b"HSET", b"EXPIRE", b"HSET", b"HKEYS", *[b"HMGET"] * 3]


def test_statement_is_written_only_if_it_changes(proxies: list[Proxy]) -> None:
    one, _ = proxies
    one.book.want({KEY: WHOLE}, one.now)
    rounds(proxies, 2)
    one.connection.commands.clear()
    rounds(proxies, 5)
    assert one.connection.commands.count(b"HSET") == 2 * 5


def test_kernel_that_is_late_keeps_the_claim(proxies: list[Proxy]) -> None:
    one, two = proxies
    one.book.want({KEY: WHOLE}, one.now)
    rounds(proxies, 2)
    one.stuck = True
    two.book.want({KEY: WHOLE}, two.now)
    rounds(proxies, 6)
    assert two.held == pytest.approx(1 / 64)
    one.stuck = False
    one.apply()
    rounds(proxies, 3)
    assert two.held == pytest.approx(15 / 32 + 1 / 64)


def test_claim_is_what_a_step_may_just_apply(proxies: list[Proxy], hashes: Hashes) -> None:
    one, two = proxies
    one.stuck = True  # A step has begun with the lease below, and has not ended.
    one.book.want({KEY: WHOLE}, one.now)
    rounds(proxies, 2)
    assert one.held == pytest.approx(30 / 32 + 1 / 64)
    two.book.want({KEY: WHOLE}, two.now)
    rounds(proxies, 4)
    assert one.held == pytest.approx(15 / 32 + 1 / 64)
    assert Statement.parse(hashes[hash_of("one")][field_of_rate(KEY, None)].decode()).claim == pool(WHOLE)


def test_server_away_or_full_leaves_the_last_lease_and_then_the_part(proxies: list[Proxy]) -> None:
    one, two = proxies
    one.book.want({KEY: WHOLE}, one.now)
    rounds(proxies, 2)
    one.connection.is_lost, two.connection.full = True, True
    rounds(proxies, int(LEASE_SECONDS) - 1)
    assert one.held == pytest.approx(30 / 32 + 1 / 64)
    rounds(proxies, 3)
    assert [one.held, two.held] == [pytest.approx(15 / 32 + 1 / 64), pytest.approx(1 / 64)]
    rounds(proxies, int(AWAY_SECONDS))
    assert [one.held, two.held] == [pytest.approx(15 / 32 + 1 / 64)] * 2
    assert one.book.held.is_away
    one.connection.is_lost = two.connection.full = False
    rounds(proxies, 20)
    assert [one.held, two.held] == [pytest.approx(30 / 32 + 1 / 64), pytest.approx(1 / 64)]


def test_proxy_is_heard_again_once_no_client_has_its_part_unclaimed(proxies: list[Proxy]) -> None:
    one, _ = proxies
    one.connection.is_lost = True
    rounds([one], int(LEASE_SECONDS + AWAY_SECONDS) + 2)
    one.stuck, one.connection.is_lost = True, False
    rounds([one], 3)
    assert one.book.compose(one.now) is None
    one.stuck = False
    one.apply()
    assert one.book.compose(one.now) is not None


def test_wiped_server_changes_no_rate(proxies: list[Proxy], hashes: Hashes) -> None:
    one, two = proxies
    one.book.want({KEY: WHOLE}, one.now)
    two.book.want({KEY: WHOLE // 10}, two.now)
    rounds(proxies, 4)
    before = [one.held, two.held]
    hashes.clear()
    for _ in range(30):
        rounds(proxies, 1)
        assert [one.held, two.held] == before


@pytest.mark.parametrize("value", [b"", b"NaN", b"-1", b"9" * 40, b"0123456789abcdef 1 -5", b"\xff\xfe", b"x" * 5000])
def test_value_that_no_proxy_has_written_is_refused_and_harms_nobody(
    proxies: list[Proxy], hashes: Hashes, value: bytes
) -> None:
    one, two = proxies
    one.book.want({KEY: WHOLE}, one.now)
    rounds(proxies, 2)
    join(hashes, "three")
    about = {**hashes[hash_of("three")], ABOUT: hashes[hash_of("one")][ABOUT]}
    for damaged in (RECORD, LOST, ABOUT, field_of_rate(KEY, None)):
        hashes[hash_of("three")] = {**about, damaged: value}
        rounds(proxies, 5)
        assert one.held == pytest.approx(30 / 32 + 1 / 64)
    assert any("of 'three' is no" in line for line in one.refused)
    assert all(len(line) < 250 and "\n" not in line for line in (*one.refused, *two.refused))


def test_value_of_a_compromised_proxy_is_refused_beyond_its_own_bound(proxies: list[Proxy], hashes: Hashes) -> None:
    one, _ = proxies
    join(hashes, "compromised", *(f"p{number}" for number in range(10)))
    for field_, most in ((ABOUT, 2**18), (LOST, 2560)):
        one.refused.clear()
        before, hashes[hash_of("compromised")][field_] = (
            hashes[hash_of("compromised")][field_],
            b"p1 1" * (most // 4 + 1),
        )
        rounds(proxies, 1)
        assert one.refused == [
            f"mptcp-throttle:lease:compromised:stated has a value of {most + 4} bytes; allowed: up to {most}"
        ]
        hashes[hash_of("compromised")][field_] = before


@pytest.mark.parametrize("name", [b"", b"Three", b"-", b"\xff", b"t\nhree", b"x" * 40])
def test_name_that_no_proxy_can_have_is_no_proxy(proxies: list[Proxy], hashes: Hashes, name: bytes) -> None:
    one, _ = proxies
    hashes[NAMES][name] = b""
    rounds(proxies, 2)
    assert {*one.book.kept().known} == {"two"}
    assert "is not of a proxy" in one.refused[0]
    assert "\n" not in one.refused[0]


def test_too_many_proxies_leave_each_with_what_it_knows(proxies: list[Proxy], hashes: Hashes) -> None:
    one, _ = proxies
    join(hashes, *(f"p{number}" for number in range(MOST_MEMBERS)))
    rounds(proxies, int(LEASE_SECONDS + AWAY_SECONDS) + 3)
    assert one.held == pytest.approx(15 / 32 + 1 / 64)
    with pytest.raises(ValkeyError, match=r"^66 proxies share rates; allowed: up to 64$"):
        one.server.records()


def test_proxy_that_may_not_write_has_its_part_after_a_while(proxies: list[Proxy]) -> None:
    one, two = proxies
    one.connection.writable = {NAMES}
    rounds(proxies, int(IN_VAIN_SECONDS + LEASE_SECONDS + AWAY_SECONDS) + 3)
    assert one.held == pytest.approx(15 / 32 + 1 / 64)
    one.connection.writable = two.connection.writable
    rounds(proxies, int(SELDOM_SECONDS))
    assert one.book.in_session


def test_proxy_is_back_at_once_after_a_long_time_out_of_reach(proxies: list[Proxy]) -> None:
    one, _ = proxies
    one.connection.is_lost = True
    rounds(proxies, int(IN_VAIN_SECONDS) + 20)
    one.connection.is_lost = False
    rounds(proxies, 3)
    assert one.book.in_session


def test_proxies_that_are_only_told_of_take_no_part_of_a_present_one(proxies: list[Proxy], hashes: Hashes) -> None:
    join(hashes, "compromised")
    told = b" ".join(b"p%d %d" % (number, PARTS // MOST_MEMBERS) for number in range(MOST_MEMBERS - 4))
    hashes[hash_of("compromised")][LOST] = told
    for proxy in proxies:
        proxy.connection.is_lost = True
    rounds(proxies, int(LEASE_SECONDS) + 1)
    for proxy in proxies:
        proxy.connection.is_lost = False
    rounds(proxies, 30)
    assert [proxy.book.kept().part for proxy in proxies] == [PARTS // 2] * 2
    assert [proxy.book.in_session for proxy in proxies] == [True] * 2


def test_list_of_proxies_without_an_end_is_named(hashes: Hashes) -> None:
    proxy = Proxy("one", ModelConnection(hashes, too_long=NAMES))
    with pytest.raises(ValkeyError, match=r"^mptcp-throttle:leases is too long, or no hash$"):
        proxy.server.records()


def test_proxy_that_is_one_too_many_is_named_and_ends_the_session(proxies: list[Proxy], hashes: Hashes) -> None:
    one, _ = proxies
    first = [f"p{number}" for number in range(MOST_MEMBERS - 2)]
    join(hashes, *first)
    rounds(proxies, 1)
    assert one.book.in_session
    for name in first:
        del hashes[hash_of(name)]
    join(hashes, "surplus")
    rounds(proxies, 1)
    assert not one.book.in_session
    assert one.book.surplus == "surplus"


def test_statement_of_an_earlier_instance_is_deleted_in_the_end(hashes: Hashes) -> None:
    hashes[hash_of("one")] = {field_of_rate(KEY, None): b"0123456789abcdef 5 5"}
    one = Proxy("one", ModelConnection(hashes))
    rounds([one], int(HEARD_SECONDS))
    assert field_of_rate(KEY, None) in hashes[hash_of("one")]
    rounds([one], 2)
    assert field_of_rate(KEY, None) not in hashes[hash_of("one")]


def test_part_that_the_server_has_lost_is_told_to_who_joins(proxies: list[Proxy], hashes: Hashes) -> None:
    one, _ = proxies
    hashes.clear()
    rounds([one], 2)
    three = Proxy("three", ModelConnection(hashes))
    rounds([one, three], 30)
    assert "two" not in three.book.kept().known
    assert one.book.kept().part + three.book.kept().part <= PARTS // 2


def test_no_proxy_writes_what_another_states(proxies: list[Proxy], hashes: Hashes) -> None:
    """The server permits each proxy its own hash alone: docs/explanation/fleet.md."""
    one, two = proxies
    for proxy in proxies:
        proxy.connection.writable = {hash_of(proxy.name), NAMES}
    one.book.want({KEY: WHOLE}, one.now)
    two.book.want({KEY: WHOLE}, two.now)
    rounds(proxies, 5)
    hashes.clear()
    rounds(proxies, 20)
    assert [one.held, two.held] == [pytest.approx(15 / 32 + 1 / 64)] * 2


def test_server_is_asked_only_for_rates_of_which_a_proxy_says_anything(proxies: list[Proxy]) -> None:
    one, two = proxies
    others = [KEY._replace(client=ip_address(f"10.0.1.{number}")) for number in range(2)]
    one.book.want({KEY: WHOLE, others[0]: WHOLE}, one.now)
    two.book.want({KEY: WHOLE, others[1]: WHOLE}, two.now)
    rounds(proxies, 4)
    one.connection.asked.clear()
    rounds([one], 1)
    assert one.connection.asked[2] == (b"HMGET", hash_of("two"), field_of_rate(KEY, None))


def test_only_rates_are_told_of_which_anything_else_is_stated(hashes: Hashes) -> None:
    server = LeaseServer(ModelConnection(hashes), "one", None)  # type: ignore[arg-type]
    record, own, other = Record(1, 1, 0), Statement(1, 5, 5), Statement(1, 7, 7)
    join(hashes, "two")
    server.records()

    def changed(writes: Mapping[RateKey, Statement], deletes: tuple[RateKey, ...] = ()) -> Sequence[RateKey]:
        answer = server.exchange(Request(writes, deletes, record, {}), 0.0)
        assert [*answer.statements] == ([] if deletes else [KEY])
        assert deletes or answer.statements[KEY] == {
            name: Statement.parse(hashed[field_of_rate(KEY, None)].decode())
            for name in ("one", "two")
            if field_of_rate(KEY, None) in (hashed := hashes[hash_of(name)]) and name.encode() in hashes[NAMES]
        }
        return answer.changed

    assert changed({KEY: own}) == [KEY]
    assert changed({}) == []
    hashes[hash_of("two")] |= {ABOUT: hashes[hash_of("one")][ABOUT], field_of_rate(KEY, None): str(other).encode()}
    assert changed({}) == [KEY]
    assert changed({}) == []
    hashes[hash_of("two")][field_of_rate(KEY, None)] = str(own).encode()
    assert changed({}) == [KEY]
    del hashes[NAMES][b"two"]
    assert changed({}) == [KEY]
    hashes[NAMES][b"two"] = b""
    assert changed({}) == [KEY]
    hashes[hash_of("two")][ABOUT] = b""
    del hashes[hash_of("two")][field_of_rate(KEY, None)]
    assert changed({}) == [KEY]
    assert changed({}, (KEY,)) == []
    assert changed({KEY: own}) == [KEY]


def test_name_of_a_rate_tells_nobody_without_the_secret_whose_it_is() -> None:
    assert b"10.0.0.1" in field_of_rate(KEY, None)
    assert b"10.0.0.1" not in field_of_rate(KEY, SECRET)
    assert len({field_of_rate(KEY._replace(direction=each), SECRET) for each in Direction}) == 2


def test_second_proxy_of_the_same_name_is_named_as_the_reason(hashes: Hashes) -> None:
    twins = [Proxy("one", ModelConnection(hashes)) for _ in range(2)]
    threads = [thread_of(twin)[0] for twin in twins]
    threads[0].step(0.0)
    threads[1].step(0.0)
    with pytest.raises(ValkeyError, match="another proxy has the name of this one"):
        threads[0].step(0.0)


def test_thread_exchanges_nothing_while_no_rate_is_shared(hashes: Hashes) -> None:
    proxy = Proxy("one", ModelConnection(hashes))
    thread_of(proxy, is_wanted=False)[0].step(0.0)
    assert proxy.connection.commands == []


@pytest.mark.parametrize("before", [0, 1, 600])
def test_hash_without_an_end_ends_one_session_a_minute(hashes: Hashes, before: int) -> None:
    keys = [KEY._replace(client=ip_address(f"10.1.{number >> 8}.{number & 255}")) for number in range(before)]
    now = time.monotonic()
    join(hashes, "a", "compromised", "z")
    proxy = Proxy("one", ModelConnection(hashes, too_long=hash_of("compromised")), now=now)
    proxy.book.want(dict.fromkeys([*keys, KEY], WHOLE), now)
    thread, refusals = thread_of(proxy)
    with pytest.raises(ValkeyError, match=r"^mptcp-throttle:lease:compromised:stated is too long, or no hash$"):
        thread.step(0.0)
    for second in range(1, 60):
        thread.step(float(second))
    assert {*proxy.book.kept().known} == {"a", "z"}
    with pytest.raises(ValkeyError, match="is too long"):
        thread.step(60.0)
    assert refusals.number == 2


def test_value_that_is_refused_in_each_round_is_said_once_a_minute(
    proxies: list[Proxy], hashes: Hashes, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = proxies
    join(hashes, "three")
    hashes[hash_of("three")][RECORD] = b"NaN"
    thread, refusals = thread_of(one)
    for second in range(70):
        with suppress(ValkeyError):  # this thread's clock is not that of the book
            thread.step(float(second))
    assert [line for line in caplog.messages if line.startswith("fleet: refused: ")] == [
        "fleet: refused: 'NaN' of 'three' is no record; allowed: a session, a number, and a part up to 720720"
    ] * 2
    assert refusals.number == 70


def test_lease_follows_the_time_after_an_error(hashes: Hashes, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy("one", ModelConnection(hashes, is_lost=True))
    thread, _ = thread_of(proxy, is_wanted=False)
    followed = threading.Semaphore(0)

    def follow(_: float) -> None:
        followed.release()
        raise RuntimeError("once more")

    monkeypatch.setattr(proxy.book, "follow", follow)
    thread.start()
    try:
        assert all(followed.acquire(timeout=10.0) for _ in range(2))
    finally:
        thread.stop()


@pytest.mark.parametrize("place", ["connecting", "exchanging"])
def test_thread_that_is_stopped_sends_and_keeps_nothing_later(hashes: Hashes, place: str) -> None:
    proxy = Proxy("one", ModelConnection(hashes))
    reached, stopped, kept = threading.Event(), threading.Event(), list[Kept]()

    def wait() -> None:
        reached.set()
        assert stopped.wait(10.0)

    def connect(_: int) -> LeaseServer:
        if place == "connecting":
            wait()
        return proxy.server

    def keep() -> None:
        kept.append(proxy.book.kept())

    thread = LeaseThread(proxy.book, connect, lambda: True, keep, Refusals())
    if place == "exchanging":
        proxy.connection.before = lambda verb: wait() if verb == b"EXPIRE" else None
    thread.start()
    assert reached.wait(10.0)
    thread.stop()
    at_stop = proxy.book.kept()
    sent = len(proxy.connection.commands)
    stopped.set()
    thread.join(10.0)
    assert kept == []
    assert proxy.book.kept() == at_stop
    assert place == "exchanging" or len(proxy.connection.commands) == sent == 0


def test_next_instance_goes_on_with_the_leases(proxies: list[Proxy], hashes: Hashes, tmp_path: Path) -> None:
    one, two = proxies
    one.book.want({KEY: WHOLE}, one.now)
    rounds(proxies, 2)
    KeptLeases(tmp_path / "leases.json", "boot").save(one.book.kept(), is_end=True)
    kept = KeptLeases(tmp_path / "leases.json", "boot").load(one.now + 2)
    later = Proxy("one", ModelConnection(hashes), kept, one.now + 2)
    later.book.follow(later.now)
    for _ in range(30):
        later.book.want({KEY: WHOLE}, later.now)
        rounds([later, two], 1)
        assert later.held == pytest.approx(30 / 32 + 1 / 64)


def test_file_of_leases_is_for_the_daemon_alone(proxies: list[Proxy], tmp_path: Path) -> None:
    KeptLeases(tmp_path / "leases.json", "boot").save(proxies[0].book.kept(), is_end=True)
    assert (tmp_path / "leases.json").stat().st_mode & 0o777 == 0o600


def test_next_instance_out_of_reach_goes_on_with_its_part(proxies: list[Proxy], hashes: Hashes, tmp_path: Path) -> None:
    one, _ = proxies
    one.connection.is_lost = True
    rounds([one], int(LEASE_SECONDS + AWAY_SECONDS) + 2)
    KeptLeases(tmp_path / "leases.json", "boot").save(one.book.kept(), is_end=True)
    kept = KeptLeases(tmp_path / "leases.json", "boot").load(one.now + 2)
    later = Proxy("one", ModelConnection(hashes, is_lost=True), kept, one.now + 2)
    rounds([later], 1)
    assert later.held == pytest.approx(15 / 32 + 1 / 64)


def test_next_instance_after_a_boot_has_its_part_and_no_lease(proxies: list[Proxy], tmp_path: Path) -> None:
    one, _ = proxies
    one.book.want({KEY: WHOLE}, one.now)
    rounds(proxies, 2)
    KeptLeases(tmp_path / "leases.json", "boot").save(one.book.kept(), is_end=True)
    kept = KeptLeases(tmp_path / "leases.json", "another boot").load(5.0)
    assert (kept.part, kept.known, kept.leases) == (PARTS // 2, {"two": Record(0, 0, PARTS // 2)}, {})


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "part": -1, "known": {}}', "\x00"])
def test_file_of_leases_that_is_damaged_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "leases.json").write_text(text)
    assert KeptLeases(tmp_path / "leases.json", "boot").load(1.0) == Kept()


def test_part_of_the_pot_is_what_is_left_of_floors() -> None:
    assert pool(WHOLE) == WHOLE * 30 // 32
