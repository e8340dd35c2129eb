"""Totals of budgets at a real server that is killed, wiped, slow, full or failed over, and to which others write."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from model_ledger import KEY, PERIOD, ModelLedger
from polling import eventually

from mptcp_lab.free_port import free_port
from mptcp_lab.process import start_process
from mptcp_lab.valkey_server import PASSWORD, Authority, ValkeyServer, acl_of, programs
from mptcp_throttle.model import Direction
from mptcp_throttle.valkey.connection import Connection, ValkeyError
from mptcp_throttle.valkey.lease_names import NAMES, RECORD
from mptcp_throttle.valkey.lease_names import hash_of as hash_of_leases
from mptcp_throttle.valkey.resp import ErrorReply, encoded
from mptcp_throttle.valkey.server import Credentials, ServerUrl
from mptcp_throttled.fleet.keys import MAX_FIELDS, field_of, name_of
from mptcp_throttled.fleet.lease_book import Request
from mptcp_throttled.fleet.lease_server import Answer, LeaseServer, field_of_rate
from mptcp_throttled.fleet.leases import Statement
from mptcp_throttled.fleet.members import FORGET_SECONDS, Record
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.totals import LOWER_SECONDS
from mptcp_throttled.fleet.totals_server import connect
from mptcp_throttled.fleet.totals_thread import Identity, TotalsThread
from mptcp_throttled.vocabulary.fleet import LATE_SECONDS, OwnTotal, Presence, RateKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CLIENT: Final = "192.0.2.1"
SECOND: Final = "192.0.2.2"
LINK: Final = 1e9
# The server is back: so soon all totals must be right.
RIGHT_SECONDS: Final = 5.0
RATE: Final = RateKey("lte", ip_address(CLIENT), Direction.DOWNLINK)
CLAIM: Final = Statement(1, 10**9, 10**9)
NO_CREDENTIALS: Final = Credentials()


def hash_of(client: str) -> str:
    return name_of(OwnTotal(KEY, ip_address(client), PERIOD, 0, 0.0), None).decode()


class Proxy:
    """A proxy of a fleet: the product's thread, with a model of the ledger."""

    def __init__(self, name: str, url: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self.ledger = ModelLedger()
        self.field = field_of(name, "00000000")
        parsed = ServerUrl.parse(url)
        self.thread = TotalsThread(
            name,
            LINK,
            self.ledger,
            lambda: Identity(self.field, None),
            lambda own, attempt: connect(parsed, credentials, own, attempt),
            Refusals(),
            lambda _: None,
        )
        self.thread.start()

    @property
    def problem(self) -> str | None:
        return self.thread.state.problem

    def close(self) -> None:
        self.thread.stop()


class Leases:
    """A proxy that claims all of `RATE` in each round, with the rights that the document says."""

    def __init__(self, name: str, server: ValkeyServer) -> None:
        url = ServerUrl.parse(server.url_of(name))
        self.connection = Connection.open(url.servers[0], url, NO_CREDENTIALS, 3.0)
        self._server = LeaseServer(self.connection, name, None)
        self._server.records()

    def exchange(self) -> Answer:
        request = Request({RATE: CLAIM}, (), Record(1, 1, 1), {})
        return self._server.exchange(request, 0.0)

    def close(self) -> None:
        self._server.close()


@contextmanager
def fleet(url: str, number: int = 3, credentials: Credentials = NO_CREDENTIALS) -> Iterator[list[Proxy]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Proxy(f"proxy-{n}", url, credentials))) for n in range(number)]


def is_right(proxies: Sequence[Proxy], client: str = CLIENT) -> bool:
    """Whether each knows what all others have counted."""
    own = [proxy.ledger.used(client) for proxy in proxies]
    return [proxy.ledger.used_elsewhere(client) for proxy in proxies] == [sum(own) - each for each in own]


def known(proxies: Sequence[Proxy]) -> list[int]:
    return [proxy.ledger.used_elsewhere(CLIENT) for proxy in proxies]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with closing_server(ValkeyServer(tmp_path / "valkey")) as made:
        yield made


@contextmanager
def closing_server(made: ValkeyServer) -> Iterator[ValkeyServer]:
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def proxies(server: ValkeyServer) -> Iterator[list[Proxy]]:
    """Three, which know of each other what a client has used."""
    with fleet(server.url) as made:
        for number, proxy in enumerate(made):
            proxy.ledger.carry(CLIENT, 100 * 10**number)
        wait_right(made)
        yield made


def wait_right(proxies: Sequence[Proxy]) -> None:
    eventually(lambda: is_right(proxies), "all totals are right", RIGHT_SECONDS, seen=lambda: known(proxies))


def carry_on(proxies: Sequence[Proxy]) -> None:
    for proxy in proxies:
        proxy.ledger.carry(CLIENT, 7)


def test_killed_server_is_missed_by_none_and_refilled(server: ValkeyServer, proxies: list[Proxy]) -> None:
    before = known(proxies)
    server.stop()
    carry_on(proxies)
    eventually(lambda: all(proxy.problem is not None for proxy in proxies), "it is missed")
    assert known(proxies) == before
    assert all(str(server.port) in str(proxy.problem) for proxy in proxies)
    server.start()
    wait_right(proxies)
    assert [proxy.problem for proxy in proxies] == [None] * 3


def test_wiped_server_is_refilled_from_the_ledgers(server: ValkeyServer, proxies: list[Proxy]) -> None:
    before = sorted(server.cli("HGETALL", hash_of(CLIENT)).split())
    assert server.cli("FLUSHALL") == "OK"
    refilled = eventually(lambda: sorted(server.cli("HGETALL", hash_of(CLIENT)).split()) == before, "refilled")
    assert refilled < RIGHT_SECONDS
    assert is_right(proxies)


def test_server_that_takes_five_seconds_is_away(server: ValkeyServer, proxies: list[Proxy]) -> None:
    before = known(proxies)
    assert server.cli("CLIENT", "PAUSE", "10000", "ALL") == "OK"
    carry_on(proxies)
    eventually(lambda: all("does not answer" in str(proxy.problem) for proxy in proxies), "it is away", 8)
    assert known(proxies) == before
    for proxy in proxies:
        began = time.monotonic()
        proxy.ledger.used(CLIENT)
        assert time.monotonic() - began < 0.1
    eventually(lambda: server.cli("PING") == "PONG", "it answers")
    wait_right(proxies)


def test_stopped_thread_does_not_wait_for_a_server_that_hangs(server: ValkeyServer, proxies: list[Proxy]) -> None:
    with server.process.suspended():
        carry_on(proxies)
        began = time.monotonic()
        proxies[0].close()
        assert time.monotonic() - began < 1


def test_full_server_says_so_and_is_read(server: ValkeyServer, proxies: list[Proxy]) -> None:
    assert server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction") == "OK"
    assert server.cli("CONFIG", "SET", "maxmemory", "1") == "OK"
    carry_on(proxies)
    eventually(lambda: all("OOM" in str(proxy.problem) for proxy in proxies), "it is full")
    assert proxies[0].thread.state.server is not None
    assert server.cli("CONFIG", "SET", "maxmemory", "0") == "OK"
    wait_right(proxies)


def test_password_is_read_again_after_it_was_wrong(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("wrong\n")
    with closing_server(ValkeyServer(tmp_path / "valkey")) as made:
        url = made.url.replace("proxies@", "operator@")
        with fleet(url, 2, Credentials(password=str(file))) as proxies:
            eventually(lambda: all("WRONGPASS" in str(proxy.problem) for proxy in proxies), "it is refused")
            carry_on(proxies)
            file.write_text(f"{PASSWORD.replace(' ', '-')}\n")
            wait_right(proxies)


def test_lies_are_refused_in_one_line_and_harm_no_other(
    server: ValkeyServer, proxies: list[Proxy], caplog: pytest.LogCaptureFixture
) -> None:
    unknown, own = field_of("unknown", "00000000"), proxies[0].field
    for field, total in ((unknown, "-1"), (unknown, "NaN"), (unknown, "9" * 30), ("a b\r\nc", "5"), (own, str(10**15))):
        caplog.clear()
        refused = proxies[0].thread.state.refused
        server.cli("HSET", hash_of(CLIENT), field, total)
        if field != own:  # which it would write again before it reads
            proxies[0].ledger.carry(CLIENT, 1)
        eventually(lambda: proxies[0].thread.state.refused > refused, f"{field!r}: {total} is refused")  # noqa: B023
        assert all("\n" not in record.getMessage() for record in caplog.records)
        server.cli("HDEL", hash_of(CLIENT), field)
    # What the others have believed of the last one is lowered once it has stayed lower.
    eventually(lambda: is_right(proxies), "all totals are right", LOWER_SECONDS + RIGHT_SECONDS)


def test_false_total_grows_as_fast_as_a_link(server: ValkeyServer, proxies: list[Proxy]) -> None:
    false = field_of("proxy-2", "00000000")
    before, began = known(proxies)[0], time.monotonic()
    server.cli("HSET", hash_of(CLIENT), false, str(10**17))
    proxies[0].ledger.carry(CLIENT, 1, seconds=1.0)
    eventually(lambda: known(proxies)[0] > before, "the false total is read")
    # After the slack of the bound, which is for totals that come in steps.
    assert known(proxies)[0] - before <= LINK * (time.monotonic() - began + 8)


@pytest.mark.parametrize("kind", ["a string", "a list", "many fields", "a long value", "long values"])
def test_content_without_bounds_is_refused_and_harms_no_other(
    server: ValkeyServer, proxies: list[Proxy], kind: str
) -> None:
    name = hash_of(SECOND)
    scripts = {
        "a string": "redis.call('SET', KEYS[1], 'x')",
        "a list": "redis.call('RPUSH', KEYS[1], 'x')",
        "many fields": "for i = 1, 300000 do redis.call('HSET', KEYS[1], string.format('p.%08x', i), i) end",
        "a long value": "redis.call('HSET', KEYS[1], 'p.00000000', string.rep('9', 200000000))",
        "long values": "for i = 1, 100 do redis.call('HSET', KEYS[1], 'p.' .. i, string.rep('9', 1000000)) end",
    }
    server.cli("EVAL", scripts[kind], "1", name)
    proxies[0].ledger.carry(SECOND, 1)
    carry_on(proxies)
    eventually(
        lambda: name in str(proxies[0].thread.state.refusal), "it is refused", seen=lambda: proxies[0].thread.state
    )
    carry_on(proxies[1:])
    expected = sum(proxy.ledger.used(CLIENT) for proxy in proxies[1:])
    eventually(lambda: known(proxies)[0] == expected, "the other client's total is right", RIGHT_SECONDS)
    assert proxies[0].ledger.used_elsewhere(SECOND) == 0


def test_oversized_hash_of_another_user_has_the_totals_of_all_proxies(
    server: ValkeyServer, proxies: list[Proxy]
) -> None:
    words = [word for number in range(300) for word in (f"p.{number:08x}", "1")]
    server.cli("HSET", hash_of(CLIENT), *words, "p.00000000", "9" * 100_000, user="proxy-4")
    carry_on(proxies)
    wait_right(proxies)
    assert "has more in it than proxies write" in str(proxies[0].thread.state.refusal)


@pytest.mark.parametrize("field", ["unknown.00000000", "no proxy"])
def test_wrong_report_is_refused_and_hides_no_proxy(server: ValkeyServer, proxies: list[Proxy], field: str) -> None:
    names = {f"proxy-{number}" for number in range(3)}
    eventually(lambda: {*proxies[0].thread.state.proxies} == names, "all are known")
    server.cli("HSET", "mptcp-throttle:proxies", field, "1 1 <b> 1 1 1 1")
    eventually(lambda: field in str(proxies[0].thread.state.refusal), "it is refused")
    state = proxies[0].thread.state
    assert {*state.proxies} == names
    assert {known_as.presence for known_as in state.proxies.values()} == {Presence.REACHABLE}
    carry_on(proxies)
    wait_right(proxies)


def test_list_of_proxies_of_another_type_makes_no_proxy_late(server: ValkeyServer, proxies: list[Proxy]) -> None:
    names = {f"proxy-{number}" for number in range(3)}
    eventually(lambda: {*proxies[0].thread.state.proxies} == names, "all are known")
    server.cli("EVAL", "redis.call('DEL', KEYS[1]); redis.call('SET', KEYS[1], 'x')", "1", "mptcp-throttle:proxies")

    def oldest() -> float:
        return time.monotonic() - min(known.looked for known in proxies[0].thread.state.proxies.values())

    eventually(lambda: oldest() > LATE_SECONDS + 1, "they were seen long ago", 20, seen=oldest)
    state = proxies[0].thread.state
    assert (state.problem, state.list_problem) == (None, "is no hash")
    assert {known_as.presence for known_as in state.proxies.values()} == {Presence.REACHABLE}
    carry_on(proxies)
    wait_right(proxies)
    server.cli("DEL", "mptcp-throttle:proxies")
    eventually(lambda: proxies[0].thread.state.list_problem is None and oldest() < LATE_SECONDS, "it is there again")


def test_list_of_proxies_without_an_end_keeps_no_total_from_the_rest(
    server: ValkeyServer, proxies: list[Proxy]
) -> None:
    fill = "for i = 1, 100 do redis.call('HSET', KEYS[1], 'p.' .. i, string.rep('9', 1000000)) end"
    server.cli("EVAL", fill, "1", "mptcp-throttle:proxies")
    eventually(lambda: "the list of proxies" in str(proxies[0].thread.state.refusal), "it is refused")
    carry_on(proxies)
    wait_right(proxies)


def test_user_of_proxies_may_do_what_they_need_and_nothing_else(server: ValkeyServer, proxies: list[Proxy]) -> None:
    assert is_right(proxies)
    document = (Path(__file__).parents[2] / "docs/explanation/fleet.md").read_text(encoding="utf-8")
    assert acl_of("proxy-1") in document
    url = ServerUrl.parse(server.url)
    with closing(Connection.open(url.servers[0], url, NO_CREDENTIALS, 3.0)) as connection:
        forbidden = ["GET x", "HGETALL mptcp-throttle:proxies", "DEL mptcp-throttle:proxies", "KEYS *", "FLUSHALL"]
        forbidden += ["HSET mptcp-throttle:lease:proxy-1:stated record 1", "HDEL mptcp-throttle:leases proxy-1"]
        forbidden += ["EXPIRE mptcp-throttle:lease:proxy-1:stated 0", "EXPIRE mptcp-throttle:leases 0"]
        forbidden += ["HSET other a 1", "CONFIG GET *", "EVAL 1 0", "ACL LIST", "SUBSCRIBE a", "SCAN 0", "INFO"]
        for command in forbidden:
            (reply,) = connection.ask([encoded(*command.encode().split())], 10_000)
            assert isinstance(reply, ErrorReply), command
            assert reply.code == "NOPERM", reply


def test_proxy_cannot_forge_what_another_states_of_shared_rates(server: ValkeyServer) -> None:
    with closing(Leases("proxy-1", server)) as first, closing(Leases("proxy-2", server)) as second:
        first.exchange()
        read = encoded(b"HMGET", hash_of_leases("proxy-1"), RECORD, field_of_rate(RATE, None))
        (stated,) = second.connection.ask([read], 1000)
        for command in (
            (b"HSET", hash_of_leases("proxy-1"), field_of_rate(RATE, None), b"0123456789abcdef 0 0"),
            (b"HSET", hash_of_leases("proxy-1"), RECORD, b"0123456789abcdef 1 0"),
            (b"HDEL", hash_of_leases("proxy-1"), field_of_rate(RATE, None)),
            (b"EXPIRE", hash_of_leases("proxy-1"), b"0"),
            (b"HDEL", NAMES, b"proxy-1"),
        ):
            (reply,) = second.connection.ask([encoded(*command)], 1000)
            assert isinstance(reply, ErrorReply), command
            assert reply.code == "NOPERM", reply
        assert second.connection.ask([read], 1000) == [stated]
        assert second.exchange().statements[RATE]["proxy-1"] == CLAIM
    assert 0 < int(server.cli("TTL", hash_of_leases("proxy-1").decode())) <= FORGET_SECONDS


def test_hash_expires_after_its_period(server: ValkeyServer, proxies: list[Proxy]) -> None:
    assert is_right(proxies)
    assert int(server.cli("TTL", hash_of(CLIENT))) > PERIOD.end - time.time()
    assert 0 < int(server.cli("TTL", "mptcp-throttle:proxies")) <= 2 * 86400


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.made_in(tmp_path / "authority")
    made.sign("server", "IP:127.0.0.1")
    made.sign("proxy", "DNS:proxy-1")
    return made


def test_tls_proves_both_ends(tmp_path: Path, authority: Authority) -> None:
    credentials = Credentials(
        authority=str(authority.certificate("ca")),
        certificate=str(authority.certificate("proxy")),
        key=str(authority.key("proxy")),
    )
    with closing_server(ValkeyServer(tmp_path / "valkey", authority=authority)) as made:
        with fleet(made.url, 2, credentials) as proxies:
            carry_on(proxies)
            wait_right(proxies)
        stranger = Authority.made_in(tmp_path / "stranger")
        url = ServerUrl.parse(made.url)
        named = ServerUrl.parse(made.url.replace("127.0.0.1", "localhost"))
        of_stranger = Credentials(authority=str(stranger.certificate("ca")))
        without_own = Credentials(authority=str(authority.certificate("ca")))
        for wrong, refused, text in (
            (named, credentials, "its certificate is refused: Hostname mismatch"),
            (url, of_stranger, "its certificate is refused: "),
            (url, without_own, f"127.0.0.1:{made.port}: "),  # what TLS says of it differs
        ):
            with pytest.raises(ValkeyError, match=text):
                Connection.open(wrong.servers[0], wrong, refused, 3.0)


def test_failover_by_sentinel_loses_no_total(tmp_path: Path) -> None:
    sentinel_port = free_port()
    open_to_replicas = "user default on nopass ~* &* +@all\n"
    first, second = (ValkeyServer(tmp_path / name) for name in ("first", "second"))
    for each in (first, second):
        text = (each.directory / "users.acl").read_text().replace("user default off\n", open_to_replicas)
        (each.directory / "users.acl").write_text(text)
    with closing_server(first), closing_server(second), ExitStack() as stack:
        assert second.cli("REPLICAOF", "127.0.0.1", str(first.port)) == "OK"
        eventually(lambda: "master_link_status:up" in second.cli("INFO", "replication"), "the replica follows")
        config = tmp_path / "sentinel.conf"
        lines = [
            f"port {sentinel_port}",
            "bind 127.0.0.1",
            f"dir {tmp_path}",
            "sentinel down-after-milliseconds fleet 500",
        ]
        lines.insert(3, f"sentinel monitor fleet 127.0.0.1 {first.port} 1")
        config.write_text("\n".join([*lines, "sentinel failover-timeout fleet 3000"]) + "\n")
        sentinel = start_process("sentinel", (programs()[0], config, "--sentinel"), tmp_path / "sentinel.log")
        stack.callback(sentinel.kill)
        eventually(lambda: f":{second.port}" in sentinel.log_text(), "the sentinel knows the replica")
        url = f"{second.url},{first.address}:{first.port}"
        proxies = stack.enter_context(fleet(url))
        carry_on(proxies)
        wait_right(proxies)
        assert {proxy.thread.state.server for proxy in proxies} == {f"127.0.0.1:{first.port}"}
        first.stop()
        carry_on(proxies)
        eventually(lambda: "role:master" in second.cli("INFO", "replication"), "failed over")
        wait_right(proxies)
        assert {proxy.thread.state.server for proxy in proxies} == {f"127.0.0.1:{second.port}"}


def test_most_fields_of_a_hash_are_read(server: ValkeyServer) -> None:
    with fleet(server.url, 1) as (proxy,):
        for number in range(MAX_FIELDS - 1):
            server.cli("HSET", hash_of(CLIENT), field_of(f"proxy-{number + 1}", "00000000"), "2")
        proxy.ledger.carry(CLIENT, 1)
        eventually(lambda: proxy.ledger.used_elsewhere(CLIENT) == 2 * (MAX_FIELDS - 1), "all are read")
