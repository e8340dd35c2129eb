"""The client of Valkey: addresses of servers, replies, and what it reads at most, of a server that means harm."""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from mutated_bytes import check

from mptcp_throttle.valkey.connect import connect
from mptcp_throttle.valkey.connection import Connection, RefusedReply, ValkeyError, read_secret
from mptcp_throttle.valkey.resp import ErrorReply, MalformedReply, Place, bulk, encoded, longest_value, replies
from mptcp_throttle.valkey.server import Credentials, Server, ServerUrl

SCANNED = b"*2\r\n$1\r\n0\r\n*4\r\n$3\r\none\r\n$2\r\n17\r\n$3\r\ntwo\r\n$1\r\n5\r\n"
ANSWER = b"+PONG\r\n:1\r\n" + SCANNED + b"-OOM command not allowed\r\n$-1\r\n*-1\r\n"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("valkeys://a.example", ServerUrl((Server("a.example", 6379),), None, True)),
        ("valkeys://u@a:1,[2001:db8::1]:2", ServerUrl((Server("a", 1), Server("2001:db8::1", 2)), "u", True)),
        (
            "valkey://127.0.0.1,localhost",
            ServerUrl((Server("127.0.0.1", 6379), Server("localhost", 6379)), None, False),
        ),
    ],
)
def test_url_has_servers_and_a_user(text: str, url: ServerUrl) -> None:
    assert ServerUrl.parse(text) == url
    assert ServerUrl.parse(str(url)) == url


@pytest.mark.parametrize(
    "text", ["", "a:1", "valkeys://", "valkeys://a/0", "valkeys://[::x]", "valkeys://a:0", "valkeys://a b"]
)
def test_url_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: valkeys://HOST"):
        ServerUrl.parse(text)


def test_command_is_its_words_with_their_lengths() -> None:
    assert encoded(b"HSET", b"key", b"a\r\nb") == b"*3\r\n$4\r\nHSET\r\n$3\r\nkey\r\n$4\r\na\r\nb\r\n"


def test_replies_of_each_kind_are_read() -> None:
    scanned = (b"0", (b"one", b"17", b"two", b"5"))
    assert replies(ANSWER, 6) == ["PONG", 1, scanned, ErrorReply("OOM command not allowed"), None, None]


VALUES: Final = tuple(b"value %d" % number for number in range(20))


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"", 0),
        (b":1\r\n:x\r\n", 1),
        (b":1\r\n:99999999999999999999\r\n", 1),
        (b"$5\r\nabc\r\n", 0),
        (b"$-2\r\n\r\n", 0),
        (b"$1_0\r\n0123456789\r\n", 0),
        (b"*1000000000\r\n:1\r\n", 0),
        (b"*1\r\n" * 1000 + b":1\r\n", 0),
        (b"%1\r\n:1\r\n:2\r\n", 0),
        (b":1\r\n:1\r\n:1\r\n", 2),
    ],
)
def test_reply_that_is_none_is_refused(data: bytes, number: int) -> None:
    with pytest.raises(MalformedReply) as refused:
        replies(data, 2)
    assert refused.value.number == number


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"", Place(0)),
        (b"$1\r\na\r\n$9\r\nb", Place(1)),
        (b"*3\r\n$1\r\na\r\n$9\r\nb", Place(0, 1)),
        (b"*3\r\n$-1\r\n*-1\r\n$3\r\nabc\r\n*2\r\n$2\r\nab\r\n$1", Place(0, 2)),
        (b"*2\r\n$1\r\n0\r\n*2\r\n$2\r\nab\r\n$3\r\nabc\r\n:12\r\n", Place(0, 1)),
        (b":1\r\n*0\r\n*1\r\n*1\r\n$9\r\nb", Place(2, 0)),
        (b"-ERR no\r\n+OK\r\n$2\r\nab\r\n", Place(0)),
        (b"$9\r\nabcdefghi\r\n+" + b"x" * 20, Place(1)),
        (b"$9\r\nabcdefghi\r\n*1\r\n%1\r\n", Place(1, 0)),
        (b"$9\r\nabcdefghi\r\n$9" + b"9" * 5000 + b"\r\n", Place(1)),
        (b"*1\r\n" * 1000, Place(0, 0)),
        (b"x" * 100, Place(0)),
    ],
)
def test_longest_value_of_an_answer_is_found_however_it_ends(data: bytes, place: Place) -> None:
    assert longest_value(data) == place


def test_damaged_replies_are_read_or_refused() -> None:
    def read(data: bytes) -> None:
        assert longest_value(data).number <= len(data)
        with suppress(MalformedReply):
            assert len(replies(data, 6)) == 6

    check(read, [ANSWER], [b"*2\r\n", b"$-1\r\n", b"\r\n", b"99999999999999999999"], least=2000)


@pytest.mark.parametrize("value", [None, b"", b"x" * 63, b"x" * 64, b"a\r\nb", b"\r\n", b"$1\r\na"])
def test_many_values_are_read_whatever_one_of_them_is(value: bytes | None) -> None:
    values = (*VALUES[:7], value, *VALUES[7:])
    data = b"*%d\r\n" % len(values) + b"".join(b"$-1\r\n" if each is None else bulk(each) for each in values)
    assert replies(2 * data, 2) == [values, values]


def test_damaged_values_are_read_together_as_they_are_alone() -> None:
    def read(data: bytes) -> None:
        try:
            alone = replies(data, len(VALUES))
        except MalformedReply:
            with pytest.raises(MalformedReply):
                replies(b"*%d\r\n" % len(VALUES) + data, 1)
        else:
            assert replies(b"*%d\r\n" % len(VALUES) + data, 1) == [tuple(alone)]

    check(read, [b"".join(map(bulk, VALUES))], [b"$-1\r\n", b"$0\r\n\r\n", b"\r\n", b"$5\r\n"], least=2000)


def test_text_of_an_error_is_one_short_line() -> None:
    (reply,) = replies(b"-ERR \x1b[2J\n" + b"x" * 10**6 + b"\r\n", 1)
    assert isinstance(reply, ErrorReply)
    assert reply.text.isprintable()
    assert len(reply.text) <= 120


@contextmanager
def answering(serve: Callable[[socket.socket], None]) -> Iterator[Server]:
    """A server that gives its first connection to `serve`, after it has answered PING."""

    def run() -> None:
        with suppress(OSError):
            stream, _ = listener.accept()
            with stream:
                stream.recv(4096)
                stream.sendall(b"+PONG\r\n")
                stream.recv(4096)
                serve(stream)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield Server(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def opened(server: Server, seconds: float = 5.0) -> Connection:
    return Connection.open(server, ServerUrl((server,), None, is_encrypted=False), Credentials(), seconds)


def forever(text: bytes) -> Callable[[socket.socket], None]:
    def serve(stream: socket.socket) -> None:
        while True:
            stream.sendall(text)

    return serve


@pytest.mark.parametrize("text", [b"x" * 4096, b"$1\r\nx\r\n" * 512, b"*1000000\r\n" * 100])
def test_answer_without_an_end_is_refused_after_what_is_allowed(text: bytes) -> None:
    with answering(forever(text)) as server:
        connection = opened(server)
        with pytest.raises(RefusedReply):
            connection.ask([encoded(b"HSCAN", b"key", b"0")], 10_000)


def test_value_that_is_announced_too_long_names_its_command() -> None:
    with answering(forever(b":0\r\n$536870912\r\n" + b"x" * 4096)) as server:
        connection = opened(server)
        with pytest.raises(RefusedReply) as refused:
            connection.ask([encoded(b"HSCAN", b"key", b"0")] * 3, 10_000)
    assert refused.value.place == Place(1)


@pytest.mark.parametrize("pause", [0.01, 0.0001])
def test_answer_by_single_bytes_ends_in_time(pause: float) -> None:
    def serve(stream: socket.socket) -> None:
        while True:
            stream.sendall(b"x")
            time.sleep(pause)

    with answering(serve) as server:
        connection, began = opened(server, 0.3), time.monotonic()
        with pytest.raises(ValkeyError, match="does not answer"):
            connection.ask([encoded(b"PING")], 10_000_000)
        assert time.monotonic() - began < 2


def test_what_a_server_has_not_taken_in_time_never_arrives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    with accepted:
        with pytest.raises(ValkeyError, match="does not answer"):
            Connection(stream, Server("127.0.0.1", 1), 0.3).ask([bytes(16 << 20)], 100)
        with pytest.raises(ConnectionResetError):
            deque(iter(lambda: accepted.recv(1 << 20), b""), maxlen=0)


def test_connection_that_closes_says_so() -> None:
    with answering(lambda _: None) as server:
        connection = opened(server)
        with pytest.raises(ValkeyError, match=f"{server}: the server has closed the connection"):
            connection.ask([encoded(b"PING")], 10_000)


def test_server_that_does_not_listen_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(*listener.getsockname())
    with pytest.raises(ValkeyError, match=f"^{server}: Connection refused$"):
        opened(server)


def test_problem_of_several_servers_is_the_same_in_each_attempt() -> None:
    """Else the log would have it again and again."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        first, second = (Server(*listener.getsockname()) for listener in (one, two))
    url = ServerUrl.parse(f"valkey://{first},{second}")
    for attempt in range(3):
        with pytest.raises(ValkeyError, match=f"^{first}: Connection refused$"):
            connect(url, Credentials(), 1.0, attempt)


def test_server_whose_name_no_host_can_have_is_named() -> None:
    with pytest.raises(ValkeyError, match=r"^a\.\.b:6379: "):
        opened(Server("a..b", 6379))


@pytest.mark.parametrize(("content", "problem"), [(b"\n\n", "its first line is empty"), (b"\xff", "is not UTF-8 text")])
def test_secret_that_is_none_is_refused_with_its_file(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "secret"
    with pytest.raises(ValkeyError, match=f"{file}: cannot be read: No such file"):
        read_secret(str(file))
    file.write_bytes(content)
    with pytest.raises(ValkeyError, match=f"{file}: {problem}"):
        read_secret(str(file))
    file.write_bytes(b" word \nmore")
    assert read_secret(str(file)) == "word"
