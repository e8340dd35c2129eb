"""Totals at a server of Valkey: what is sent, and what is made of answers that mean harm."""

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from mutated_bytes import check

from mptcp_throttle.valkey.connection import Connection
from mptcp_throttle.valkey.resp import bulk, encoded
from mptcp_throttle.valkey.server import Server
from mptcp_throttled.fleet.exchange import ExchangeError, ReadReports, Totals, WriteRefused
from mptcp_throttled.fleet.keys import MAX_FIELDS, PROXIES
from mptcp_throttled.fleet.reports import Report
from mptcp_throttled.fleet.totals_server import ValkeyExchange
from mptcp_throttled.vocabulary.fleet import Load

ONE, TWO = "proxy-1.0000000a", "proxy-2.0000000b"
NAMES = [b"mptcp-throttle:used:0:a", b"mptcp-throttle:used:0:b"]


def hash_of(*words: str) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(bulk(word.encode()) for word in words))


def scanned(*words: str, cursor: str = "0") -> bytes:
    return b"*2\r\n%b%b" % (bulk(cursor.encode()), hash_of(*words))


class Stream:
    """In place of a socket: it has these answers, and says their end in the server's place."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = [*answers]
        self.sent = b""
        self._word = b""

    def settimeout(self, _: float) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.sent += data
        self._word = data[-18:-2]

    def recv(self, _: int) -> bytes:
        return self.answers.pop(0) + bulk(self._word)

    def setsockopt(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def exchange_with(*answers: bytes) -> tuple[ValkeyExchange, Stream]:
    stream = Stream(*answers)
    connection = Connection(stream, Server("a", 1), 1.0)  # type: ignore[arg-type]
    return ValkeyExchange(connection, ONE), stream


def read(*replies: bytes) -> list[Totals]:
    exchange, _ = exchange_with(b"".join(replies))
    return [exchange.totals(content) for content in exchange.read(NAMES[: len(replies)])]


def test_totals_are_written_each_to_its_hash() -> None:
    exchange, stream = exchange_with(b":0\r\n:0\r\n", b":1\r\n")
    assert exchange.publish([(NAMES[0], 17), (NAMES[1], 1234)], {NAMES[1]: 60}) == set()
    writes = [encoded(b"HSET", NAMES[0], ONE.encode(), b"17"), encoded(b"HSET", NAMES[1], ONE.encode(), b"1234")]
    assert stream.sent.startswith(b"".join(writes))
    assert encoded(b"EXPIRE", NAMES[1], b"60") in stream.sent


def test_hash_without_a_total_of_this_proxy_is_named() -> None:
    exchange, _ = exchange_with(b":0\r\n:1\r\n")
    assert exchange.publish([(name, 1) for name in NAMES], {}) == {NAMES[1]}


def test_hash_of_another_type_does_not_keep_totals_from_the_rest() -> None:
    exchange, _ = exchange_with(b"-WRONGTYPE Operation against a key\r\n:0\r\n")
    assert exchange.publish([(name, 1) for name in NAMES], {}) == set()


@pytest.mark.parametrize(
    ("code", "kind"), [("OOM", WriteRefused), ("NOPERM", WriteRefused), ("READONLY", ExchangeError)]
)
def test_refused_write_says_what_the_server_says(code: str, kind: type[ExchangeError]) -> None:
    exchange, _ = exchange_with(f":0\r\n-{code} for a reason\r\n".encode())
    with pytest.raises(ExchangeError, match=f"^a:1: {code} for a reason$") as refused:
        exchange.publish([(name, 1) for name in NAMES], {})
    assert type(refused.value) is kind


def test_totals_of_all_proxies_are_read() -> None:
    assert read(scanned(ONE, "17", TWO, "5"), scanned()) == [Totals({ONE: 17, TWO: 5}), Totals({})]


@pytest.mark.parametrize(
    ("reply", "refused"),
    [
        (scanned(TWO, "-1"), f"has '-1' as the total of {TWO}"),
        (scanned(TWO, "NaN"), f"has 'NaN' as the total of {TWO}"),
        (scanned(TWO, "1e9"), f"has '1e9' as the total of {TWO}"),
        (scanned(TWO, "9" * 19), f"has '{'9' * 19}' as the total of {TWO}"),
        (scanned(TWO, "\u0661"), f"has '\\xd9\\xa1' as the total of {TWO}"),
        (scanned(TWO, ""), f"has '' as the total of {TWO}"),
        (scanned(TWO, "5\r\n"), f"has '5\\r\\n' as the total of {TWO}"),
        (scanned("proxy-2", "5"), "has the field 'proxy-2', which no proxy has"),
        (scanned("\x1b[2J.0000000b", "5"), "has the field '\\x1b[2J.0000000b', which no proxy has"),
        (scanned("x" * 5000, "5"), f"has the field '{'x' * 40}', which no proxy has"),
        (b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", "is no hash"),
    ],
)
def test_value_that_is_no_total_is_refused_and_harms_no_other(reply: bytes, refused: str) -> None:
    bad, good = read(reply, scanned(TWO, "5"))
    assert bad == Totals({}, [refused])
    assert good == Totals({TWO: 5})


def test_good_totals_beside_bad_ones_are_read() -> None:
    (totals,) = read(scanned(ONE, "17", TWO, "many"))
    assert totals == Totals({ONE: 17}, [f"has 'many' as the total of {TWO}"])


@pytest.mark.parametrize("total", ["5", "many"])
def test_hash_is_read_without_the_total_of_this_proxy(total: str) -> None:
    exchange, _ = exchange_with(scanned(ONE, "17", TWO, total) + scanned(TWO, total))
    whole, without = exchange.read(NAMES)
    assert exchange.without_own_totals([whole, whole, without], [17, 1, 17]) == [without, None, None]


@pytest.mark.parametrize(
    "reply",
    [
        scanned(TWO, "5", cursor="96"),
        scanned(*(word for n in range(MAX_FIELDS + 1) for word in (f"p.{n:08x}", "1"))),
        scanned(TWO, "9" * 10_000),
        b":1\r\n",
    ],
    ids=["not all of it", "short fields", "a long value", "no scan"],
)
def test_hash_with_more_than_proxies_write_is_oversized(reply: bytes) -> None:
    exchange, _ = exchange_with(reply + scanned(*(word for n in range(MAX_FIELDS) for word in (f"p.{n:08x}", "1"))))
    assert exchange.oversized(NAMES, exchange.read(NAMES)) == NAMES[:1]


def test_fields_of_known_proxies_are_read_by_one_command_for_each_hash() -> None:
    exchange, stream = exchange_with(hash_of("17", "5") + b"*2\r\n$1\r\n7\r\n$-1\r\n")
    contents = exchange.read_fields([(name, (ONE, TWO)) for name in NAMES])
    assert stream.sent.startswith(b"".join(encoded(b"HMGET", name, ONE.encode(), TWO.encode()) for name in NAMES))
    assert [exchange.totals(content) for content in contents] == [Totals({ONE: 17, TWO: 5}), Totals({ONE: 7})]
    # As in a hash that is read as a whole.
    assert exchange.without_own_totals(contents[:1], [17]) == [hash_of(TWO, "5")]


@pytest.mark.parametrize("value", ["9" * 19, "9" * 1000, "x" * 1000])
def test_field_that_is_no_total_hides_no_other_field(value: str) -> None:
    exchange, _ = exchange_with(hash_of("17", value))
    (content,) = exchange.read_fields([(NAMES[0], (ONE, TWO))])
    assert exchange.totals(content) == Totals({ONE: 17}, [f"has '{value[:20]}' as the total of {TWO}"])


def test_fields_of_what_is_no_hash_are_refused() -> None:
    exchange, _ = exchange_with(b"-WRONGTYPE Operation against a key\r\n" + hash_of("5"))
    contents = exchange.read_fields([(name, (TWO,)) for name in NAMES])
    assert [exchange.totals(content) for content in contents] == [Totals({}, ["is no hash"]), Totals({TWO: 5})]


def test_value_that_looks_like_an_answer_is_that_of_its_own_hash() -> None:
    forged = scanned(TWO, "5").decode()
    first, second = read(scanned(forged, forged), scanned(TWO, "6"))
    assert first.by_field == {}
    assert second == Totals({TWO: 6})


@pytest.mark.parametrize(
    "head", ["x" * 5000, f"{'x' * 5000}\r\n", f"*{'9' * 5000}\r\n{ONE}"], ids=["line", "lines", "digits"]
)
def test_value_like_an_answer_beside_no_hash_is_refused(head: str) -> None:
    """Together, they make as many parts as there are hashes."""
    exchange, _ = exchange_with(scanned(TWO, f"*2\r\n$1\r\n0\r\n{head}") + b"-WRONGTYPE Operation against a key\r\n")
    for content in exchange.read(NAMES):
        assert exchange.oversized(NAMES[:1], [content]) or exchange.without_own_totals([content], [17]) == [None]
        assert exchange.totals(content).by_field == {}


def test_damaged_answers_are_totals_or_refused() -> None:
    answer = scanned(ONE, "17", TWO, "5") + scanned(TWO, "1", ONE, "99999")

    def use(data: bytes) -> None:
        exchange, _ = exchange_with(data)
        with suppress(ExchangeError):
            for content in exchange.read(NAMES):
                assert exchange.oversized(NAMES[:1], [content]) in ([], NAMES[:1])
                exchange.without_own_totals([content], [17])
                totals = exchange.totals(content)
                assert all(0 <= total < 10**18 for total in totals.by_field.values())
                assert all(text.isprintable() and len(text) < 250 for text in totals.refused)

    check(use, [answer], [b"*2\r\n$1\r\n0\r\n", b"$-1\r\n", b"\r\n", ONE.encode(), b"-1"], least=3000)


REPORT = Report(7, 1_700_000_000, "1.0.0", Load(8_000_000, 0, 12, 3))


def reports(reply: bytes) -> ReadReports:
    exchange, _ = exchange_with(reply)
    return exchange.reports()


def test_report_is_written_and_kept() -> None:
    exchange, stream = exchange_with(b":0\r\n:1\r\n")
    assert exchange.report(REPORT, 60) is False
    write = encoded(b"HSET", PROXIES, ONE.encode(), str(REPORT).encode())
    assert stream.sent.startswith(write + encoded(b"EXPIRE", PROXIES, b"60"))
    exchange, _ = exchange_with(b":1\r\n:1\r\n")
    assert exchange.report(REPORT, 60) is True


def test_reports_of_all_proxies_are_read_and_old_ones_deleted() -> None:
    read_of = reports(scanned(*(word for n in range(MAX_FIELDS) for word in (f"proxy-{n}.{n:08x}", str(REPORT)))))
    assert len(read_of.by_field) == MAX_FIELDS
    assert read_of.by_field["proxy-5.00000005"] == REPORT
    exchange, stream = exchange_with(b":1\r\n")
    exchange.forget([TWO])
    assert encoded(b"HDEL", PROXIES, TWO.encode()) in stream.sent


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [
        (TWO, "5", f"has '5' as the report of {TWO}"),
        (TWO, "x" * 500, f"has '{'x' * 40}' as the report of {TWO}"),
        (TWO, "\x1b[2J", f"has '\\x1b[2J' as the report of {TWO}"),
        (TWO, "\u0661", f"has '\\xd9\\xa1' as the report of {TWO}"),
        ("proxy-2", str(REPORT), "has the field 'proxy-2', which no proxy has"),
    ],
)
def test_value_that_is_no_report_is_refused_and_harms_no_other(field: str, value: str, refused: str) -> None:
    unreadable = {field} if field == TWO else set()
    assert reports(scanned(field, value, ONE, str(REPORT))) == ReadReports({ONE: REPORT}, [refused], unreadable)


@pytest.mark.parametrize(
    ("reply", "refused"),
    [
        (scanned(TWO, "5", cursor="96"), "has too many fields"),
        (scanned(*("p.00000000", "x") * (MAX_FIELDS + 1)), "has too many fields, or too long ones"),
        (b"-WRONGTYPE Operation\r\n", "is no hash"),
        (b"-NOPERM No permissions to access a key\r\n", "cannot be read: a:1: NOPERM No permissions to access a key"),
    ],
)
def test_list_of_proxies_that_is_none_is_refused(reply: bytes, refused: str) -> None:
    assert reports(reply) == ReadReports({}, problem=refused)
    exchange, _ = exchange_with(reply)
    if reply.startswith(b"-"):
        assert exchange.reports_of((ONE, TWO)) == ReadReports({}, problem=refused)


def test_list_of_proxies_of_a_replica_that_loads_is_not_refused_alone() -> None:
    exchange, _ = exchange_with(b"-LOADING the dataset in memory\r\n")
    with pytest.raises(ExchangeError, match="LOADING"):
        exchange.reports()


def test_reports_of_known_proxies_are_read_by_one_command() -> None:
    exchange, stream = exchange_with(b"*2\r\n%b%b" % (bulk(str(REPORT).encode()), bulk(b"x" * 5000)))
    assert exchange.reports_of((ONE, TWO)) == ReadReports(
        {ONE: REPORT}, [f"has '{'x' * 40}' as the report of {TWO}"], {TWO}
    )
    assert stream.sent.startswith(encoded(b"HMGET", PROXIES, ONE.encode(), TWO.encode()))


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    yield pair
    for each in pair:
        each.close()


def test_hash_whose_answer_has_no_end_is_named(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, server = sockets
    server.sendall(scanned(TWO, "5") + b"*2\r\n$1\r\n0\r\n*2\r\n$99999999\r\n" + b"x" * 200_000)
    exchange = ValkeyExchange(Connection(ours, Server("a", 1), 1.0), ONE)
    with pytest.raises(ExchangeError) as refused:
        exchange.read(NAMES)
    assert refused.value.name == NAMES[1]


def test_field_whose_value_has_no_end_is_named(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, server = sockets
    server.sendall(hash_of("17", "5") + b"*2\r\n$1\r\n7\r\n$99999999\r\n" + b"x" * 200_000)
    exchange = ValkeyExchange(Connection(ours, Server("a", 1), 1.0), ONE)
    with pytest.raises(ExchangeError) as refused:
        exchange.read_fields([(name, (ONE, TWO)) for name in NAMES])
    assert (refused.value.name, refused.value.field) == (NAMES[1], TWO)


def test_long_value_is_named_wherever_the_answer_is_cut_off(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, server = sockets
    server.sendall(hash_of("17", "9" * 140_000) + b"*2\r\n$2\r\n1")
    exchange = ValkeyExchange(Connection(ours, Server("a", 1), 1.0), ONE)
    with pytest.raises(ExchangeError) as refused:
        exchange.read_fields([(name, (ONE, TWO)) for name in NAMES])
    assert (refused.value.name, refused.value.field) == (NAMES[0], TWO)
