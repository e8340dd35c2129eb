import json
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import mutated_bytes
import pytest
from jsonrpclib.SimpleJSONRPCServer import SimpleJSONRPCServer
from polling import eventually
from rpc_requests import post, request

from mptcp_throttle.config.schema import SocketGroup
from mptcp_throttle.errors import NotYetAppliedError, UserError
from mptcp_throttle.rpc import ChangeNotYetAppliedError, Json, RpcClient, RpcError, RpcServer


def refuse() -> None:
    raise UserError("dsl: no such access network")


def change_later() -> None:
    raise NotYetAppliedError("saved, but not applied after 5 s")


def crash() -> None:
    raise RuntimeError("secret detail")


class Gate:
    """`hold` is a method whose calls do not return before `release`."""

    def __init__(self) -> None:
        self.held = 0
        self._released = threading.Event()

    def hold(self) -> None:
        self.held += 1
        assert self._released.wait(30)

    def release(self) -> None:
        self._released.set()


METHODS: dict[str, Callable[..., Json]] = {
    "echo": lambda value: value,
    "refuse": refuse,
    "change_later": change_later,
    "crash": crash,
    "sleep": time.sleep,
    "thread": threading.get_ident,
    "big": lambda: "x" * 10**6,
}


def connect(path: Path, data: bytes = b"") -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    sock.connect(str(path))
    sock.sendall(data)
    return sock


def rest(sock: socket.socket) -> bytes:
    """Everything up to the end of the connection, which is then closed here too."""
    received = b""
    with sock:
        try:
            while data := sock.recv(65536):
                received += data
        except ConnectionResetError:
            pass
    return received


def answer(path: Path, data: bytes) -> bytes:
    """The body of the answer to these bytes and the end of the stream."""
    sock = connect(path, data)
    sock.shutdown(socket.SHUT_WR)
    head, _, body = rest(sock).rpartition(b"\r\n\r\n")
    assert (b"Content-length: %d" % len(body) in head) or not head
    return body


def seconds_to_echo(path: Path) -> float:
    began = time.monotonic()
    assert RpcClient(path).call("echo", 1) == 1
    return time.monotonic() - began


def connection_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def wait_for_threads(number: int) -> None:
    eventually(lambda: connection_threads() == number, f"{number} connections")


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.release()


@pytest.fixture
def path(tmp_path: Path, gate: Gate) -> Iterator[Path]:
    socket_path = tmp_path / "test.sock"
    server = RpcServer(socket_path, {**METHODS, "hold": gate.hold}, group=None)
    yield socket_path
    gate.release()
    server.close()
    assert not socket_path.exists()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One server for all tests that leave it as it was."""
    socket_path = tmp_path_factory.mktemp("rpc") / "test.sock"
    server = RpcServer(socket_path, METHODS, group=None)
    yield socket_path
    server.close()


@pytest.mark.parametrize("value", [None, 1, "text", [1, {"a": None}], {"nested": [1.5, True]}])
def test_call_returns_values_unchanged(shared: Path, value: Json) -> None:
    assert RpcClient(shared).call("echo", value) == value


def test_socket_is_for_owner_and_group_only(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another group")
def test_socket_that_is_replaced_by_a_link_changes_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, victim = tmp_path / "test.sock", tmp_path / "victim"
    victim.touch(mode=0o600)
    bind = SimpleJSONRPCServer.server_bind

    def bind_and_replace(server: SimpleJSONRPCServer) -> None:
        bind(server)
        path.unlink()
        path.symlink_to(victim)

    monkeypatch.setattr(SimpleJSONRPCServer, "server_bind", bind_and_replace)
    before = victim.stat()
    umask = os.umask(0)
    RpcServer(path, METHODS, SocketGroup("mail", "a:3")).close()
    assert os.umask(umask) == 0
    after = victim.stat()
    assert (after.st_mode, after.st_gid) == (before.st_mode, before.st_gid)


def test_change_that_is_applied_later_has_an_error_of_its_own(shared: Path) -> None:
    with closing(RpcClient(shared)) as client:
        with pytest.raises(ChangeNotYetAppliedError, match=r"^saved, but not applied after 5 s$"):
            client.call("change_later")
        with pytest.raises(RpcError) as refused:
            client.call("refuse")
    assert not isinstance(refused.value, ChangeNotYetAppliedError)


@pytest.mark.parametrize("call", [("refuse",), ("crash",), ("nonsense",), ("echo",), ("echo", 1, 2)])
def test_call_that_fails_is_an_error_without_details(shared: Path, call: tuple[str, *tuple[int, ...]]) -> None:
    with pytest.raises(RpcError) as error:
        RpcClient(shared).call(*call)
    assert "secret" not in str(error.value)
    assert (str(error.value) == "dsl: no such access network") == (call == ("refuse",))
    assert RpcClient(shared).call("echo", 1) == 1


DEEP = b"[" * 30_000 + b"]" * 30_000
ENDLESS_HEADER = b"POST / HTTP/1.0\r\nA: " + b"b" * 50_000 + b"\r\nC: " + b"d" * 50_000 + b"\r\n"
INVALID, UNKNOWN, PARAMETERS, INTERNAL, UNREADABLE = -32600, -32601, -32602, -32603, -32700


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"GET / HTTP/1.0\r\n\r\n", INVALID, id="GET"),
        pytest.param(b"GET /\r\n", INVALID, id="HTTP 0.9"),
        pytest.param(b"POST / HTTP/7.0\r\n\r\n", INVALID, id="HTTP 7"),
        pytest.param(b"\0" * 100, INVALID, id="no HTTP"),
        pytest.param(b"x" * 70_000 + b"\r\n\r\n", INVALID, id="endless line"),
        pytest.param(ENDLESS_HEADER, INVALID, id="endless header"),
        pytest.param(b"POST / HTTP/1.0\r\n" + b"A: b\r\n" * 200 + b"\r\n", INVALID, id="200 headers"),
        pytest.param(request("echo", 1).replace(b"/", b"/other", 1), INVALID, id="other path"),
        pytest.param(b"POST / HTTP/1.0\r\n\r\n{}", INVALID, id="no length"),
        pytest.param(post(b"{}", -2), INVALID, id="negative length"),
        pytest.param(post(b"{}", "two"), INVALID, id="length no number"),
        pytest.param(post(b"{}", "9" * 5000), INVALID, id="length of 5000 digits"),
        pytest.param(post(b"{}", 65537), INVALID, id="length above the limit"),
        pytest.param(request("echo", "x" * 70_000), INVALID, id="too long"),
        pytest.param(post(b'{"jsonrpc": "2.0", "method": "crash", "id": 1}', 1000), INVALID, id="shorter than it says"),
        pytest.param(post(b""), INVALID, id="empty"),
        pytest.param(post(b"{{{{{"), UNREADABLE, id="no JSON"),
        pytest.param(post(b'"\xff"'), INTERNAL, id="no UTF-8"),
        pytest.param(post(DEEP), UNREADABLE, id="nested deeply"),
        pytest.param(post(b"1" * 50_000), UNREADABLE, id="number of 50000 digits"),
        pytest.param(post(b"1e999"), INVALID, id="a number"),
        pytest.param(post(b"null"), INVALID, id="null"),
        pytest.param(post(b"[]"), INVALID, id="empty batch"),
        pytest.param(post(b"[" + b"1," * 30_000 + b"1]"), INVALID, id="batch"),
        pytest.param(post(b'{"method": "echo"}'), INVALID, id="no version"),
        pytest.param(request("echo", params="text"), INVALID, id="params text"),
        pytest.param(post(b'{"jsonrpc": "2.0", "method": 1, "id": 1}'), INVALID, id="method a number"),
        pytest.param(request("\ud800\n"), UNKNOWN, id="unknown method"),
        pytest.param(request("__init__"), UNKNOWN, id="internal method"),
        pytest.param(request("echo", 1, 2), PARAMETERS, id="a parameter too many"),
        pytest.param(request("echo", params={"valeu": 1}), PARAMETERS, id="unknown parameter"),
    ],
)
def test_malformed_request_is_answered_with_an_error(
    shared: Path, data: bytes, code: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    body = answer(shared, data)
    assert json.loads(body)["error"]["code"] == code
    assert len(body) < 1000
    assert b"Traceback" not in body
    assert seconds_to_echo(shared) < 3
    assert len(caplog.messages) <= 1
    assert all(len(line) < 300 and line.isprintable() for line in caplog.messages)
    assert capfd.readouterr().err == ""


def test_request_nested_at_the_limit_is_answered_with_an_error(shared: Path) -> None:
    # At one of these depths the request can be parsed, but formatting it for the error message fails.
    answers = [json.loads(answer(shared, post(b'{"x": %b1%b}' % (b"[" * n, b"]" * n)))) for n in range(900, 1000)]
    assert {error["error"]["code"] for error in answers} == {INVALID, INTERNAL, UNREADABLE}


def test_json_rpc_1_and_notifications_are_served(shared: Path) -> None:
    said = answer(shared, post(b'{"method": "echo", "params": [7], "id": 3}'))
    assert json.loads(said) == {"result": 7, "id": 3, "error": None}
    notification = rest(connect(shared, post(b'{"jsonrpc": "2.0", "method": "echo", "params": [7]}')))
    assert notification.startswith(b"HTTP/1.1 200 OK\r\n")
    assert notification.endswith(b"Content-length: 0\r\n\r\n")


def test_request_of_the_maximum_length_is_served(shared: Path) -> None:
    value = "x" * (65536 - len(request("echo", "").partition(b"\r\n\r\n")[2]))
    data = request("echo", value)
    assert b"Content-Length: 65536\r\n" in data
    assert json.loads(answer(shared, data))["result"] == value


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_throttle.bounded_server._CLIENT_SECONDS", 0.25)


def is_dropped(sock: socket.socket) -> bool:
    """Whether the connection has ended; if it has not, it carries one more byte."""
    try:
        sock.sendall(b"x")
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


@pytest.mark.usefixtures("short_timeout")
def test_client_that_sends_slowly_is_dropped(path: Path) -> None:
    slow = [connect(path, begin) for begin in (b"", b"POST / HT", b"POST / HTTP/1.0\r\nA", post(b"", 1000))]
    began = time.monotonic()
    eventually(lambda: [is_dropped(sock) for sock in slow] == [True] * 4, "all dropped")
    assert 0.2 < time.monotonic() - began < 3
    for sock in slow:
        sock.close()


@pytest.mark.usefixtures("short_timeout")
def test_client_that_does_not_read_the_answer_is_dropped(path: Path) -> None:
    silent = connect(path, request("big"))
    wait_for_threads(1)
    assert seconds_to_echo(path) < 3
    wait_for_threads(0)
    assert 0 < len(rest(silent)) < 10**6


def test_client_with_keep_makes_all_calls_on_one_connection(path: Path) -> None:
    longest = "x" * 65_000  # two of them are more than one request may have
    with closing(RpcClient(path, keep=True)) as client:
        assert [client.call("echo", value) for value in (1, longest, longest, 2)] == [1, longest, longest, 2]
        with pytest.raises(RpcError, match="dsl"):
            client.call("refuse")
        assert client.call("thread") == client.call("thread")
        assert connection_threads() == 1


@pytest.mark.usefixtures("short_timeout")
def test_client_with_keep_reconnects_after_an_idle_time(path: Path) -> None:
    with closing(RpcClient(path, keep=True)) as client:
        assert client.call("echo", 1) == 1
        wait_for_threads(0)
        assert client.call("echo", 2) == 2


def test_connection_ends_after_a_malformed_request(path: Path) -> None:
    kept = request("echo", 1).replace(b"HTTP/1.0", b"HTTP/1.1")
    said = rest(connect(path, kept + b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n" + kept))
    assert said.count(b"HTTP/1.1 200") == said.count(b"HTTP/1.1 400") == said.count(b"Connection: close") == 1
    assert said.count(b"HTTP/1.1") == 2


@pytest.mark.usefixtures("short_timeout")
def test_method_may_take_longer_than_a_client_may(path: Path) -> None:
    assert RpcClient(path).call("sleep", 0.4) is None


def test_silent_connections_do_not_delay_other_clients(path: Path, gate: Gate) -> None:
    calls = [connect(path, request("hold")) for _ in range(10)]
    eventually(lambda: gate.held == 10, "ten calls")
    silent = []
    for _ in range(300):
        silent.append(connect(path))
        if len(silent) % 30 == 0:
            assert seconds_to_echo(path) < 3
    eventually(lambda: connection_threads() <= 64, "no more than 64 connections")
    # The latest connection has not been dropped.
    silent[-1].sendall(request("echo", 2))
    assert b'"result": 2' in rest(silent.pop())
    gate.release()
    assert [rest(call).count(b'"result": null') for call in calls] == [1] * 10
    for sock in silent:
        sock.close()


def test_connection_is_refused_at_once_when_all_are_being_answered(
    path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mptcp_throttle.bounded_server._MAX_CONNECTIONS", 2)
    calls = [connect(path, request("hold")) for _ in range(2)]
    eventually(lambda: gate.held == 2, "two calls")
    with pytest.raises(RpcError, match="no service answers"):
        RpcClient(path).call("echo", 1)
    gate.release()
    assert [rest(call).count(b'"result": null') for call in calls] == [1, 1]


def test_close_completes_running_calls_and_drops_other_clients(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mptcp_throttle.bounded_server._CLOSE_SECONDS", 30)
    path = tmp_path / "test.sock"
    server = RpcServer(path, {**METHODS, "hold": gate.hold}, group=None)
    call = connect(path, request("hold"))
    eventually(lambda: gate.held == 1, "a call")
    visitors = [connect(path, data) for data in (b"", b"POST / HT", post(b"", 10), request("big"))]
    wait_for_threads(5)
    closing_server = threading.Thread(target=server.close)
    closing_server.start()
    for sock in visitors:
        rest(sock)
    assert closing_server.is_alive()
    gate.release()
    closing_server.join()
    call.setblocking(False)
    assert b'"result": null' in rest(call)


def test_close_does_not_wait_for_a_method_that_hangs(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mptcp_throttle.bounded_server._CLOSE_SECONDS", 0.1)
    server = RpcServer(tmp_path / "test.sock", {"hold": gate.hold}, group=None)
    with connect(tmp_path / "test.sock", request("hold")):
        eventually(lambda: gate.held == 1, "a call")
        server.close()
    gate.release()
    wait_for_threads(0)


def test_call_beyond_the_maximum_length_is_refused_with_the_reason(shared: Path) -> None:
    with pytest.raises(RpcError, match=r": HTTP status 413: 'Request Entity Too Large'$"):
        RpcClient(shared).call("echo", "x" * 10**6)


def receive_request(sock: socket.socket) -> None:
    data = b" "
    while data and not data.endswith(b"}"):
        data = sock.recv(4096)


@contextmanager
def broken_service(path: Path, pieces: Sequence[bytes], *, hangs: bool = False) -> Iterator[None]:
    """Answers every connection with `pieces`, 0.1 s apart, and then `hangs` or closes it."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            sock, _ = listener.accept()
            with sock, suppress(OSError):
                receive_request(sock)
                for piece in pieces:
                    sock.sendall(piece)
                    over.wait(0.1 if len(pieces) > 1 else 0)
                if hangs:
                    over.wait()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            over.set()
            connect(path).close()
            thread.join()


def response(body: bytes, status: str = "200 OK", length: int | None = None) -> list[bytes]:
    return [f"HTTP/1.0 {status}\r\nContent-Length: {length or len(body)}\r\n\r\n".encode() + body]


@pytest.mark.parametrize(
    ("pieces", "hangs", "line"),
    [
        pytest.param([b""], True, "no answer in 0.2 s", id="nothing"),
        pytest.param([b"HTTP/1.0 200 OK\r\nContent-Le"], True, "no answer in 0.2 s", id="half a header"),
        pytest.param(response(b"{", length=9), True, "no answer in 0.2 s", id="half a body"),
        pytest.param([b"HTTP/1.0 200 OK\r\n"] + [b"A"] * 50, True, "no answer in 0.2 s", id="a byte now and then"),
        pytest.param([b""], False, "no service answers (Remote end closed connection", id="the end"),
        pytest.param([b"\x1b[2J\r\n\r\n" * 500], False, "the answer is not JSON-RPC: ", id="garbage"),
        pytest.param([b"x" * 70_000], False, "the answer is not JSON-RPC: ", id="a long line"),
        pytest.param(response(b"{}", length=9), False, "the answer is not JSON-RPC: ", id="shorter than it says"),
        pytest.param(response(b"hello\nworld"), False, "the answer is not JSON-RPC: ", id="no JSON"),
        pytest.param(response(b"\xff"), False, "the answer is not JSON-RPC: ", id="no UTF-8"),
        pytest.param(response(DEEP), False, "the answer is not JSON-RPC: ", id="nested deeply"),
        pytest.param(response(b"1" * 5000), False, "the answer is not JSON-RPC: ", id="number of 5000 digits"),
        pytest.param(response(b""), False, "the answer is not JSON-RPC: ", id="empty"),
        pytest.param(response(b"[1]"), False, "the answer is not JSON-RPC: ", id="a list"),
        pytest.param(response(b"{}"), False, "the answer is not JSON-RPC: ", id="neither result nor error"),
        pytest.param(response(b'{"error": 5}'), False, "the answer is not JSON-RPC: ", id="error a number"),
        pytest.param(response(b'{"error": null}'), False, "the answer is not JSON-RPC: ", id="no error and no result"),
        pytest.param(response(b'{"jsonrpc": "x"}'), False, "the answer is not JSON-RPC: ", id="version no number"),
        pytest.param(response(b"x" * 400_000), False, "the answer is longer than 300000 bytes", id="too long"),
        pytest.param(response(b"", length=10**15), True, "the answer is longer than 300", id="length"),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 400_000], True, "the answer is longer than", id="endless"),
        pytest.param(response(b"x" * 400_000, "500 Oh"), True, "the answer is longer than", id="endless error"),
        pytest.param(response(b"<html>", "500 Oh"), False, "HTTP status 500: 'Oh'", id="another service"),
    ],
)
def test_call_to_a_broken_service_is_one_line_within_the_timeout(
    tmp_path: Path, pieces: Sequence[bytes], hangs: bool, line: str
) -> None:
    path = tmp_path / "broken.sock"
    with broken_service(path, pieces, hangs=hangs):
        began = time.monotonic()
        with pytest.raises(RpcError) as error:
            RpcClient(path, timeout=0.2, max_bytes=300_000).call("echo", 1)
        assert time.monotonic() - began < 3
    assert str(error.value).startswith(f"{path}: {line}")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < len(str(path)) + 100
    assert error.value.status == os.EX_UNAVAILABLE


def test_error_message_of_several_lines_becomes_one_line(tmp_path: Path) -> None:
    said = {"error": {"code": 1, "message": "first\nsecond"}}
    path = tmp_path / "test.sock"
    with broken_service(path, response(json.dumps(said).encode())), pytest.raises(RpcError, match=r"^first second$"):
        RpcClient(path).call("echo", 1)


def test_call_is_repeated_once_when_its_connection_was_dropped(tmp_path: Path) -> None:
    path = tmp_path / "test.sock"
    answers = [b"", *response(b'{"result": 5}')]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            for answer in answers:
                sock, _ = listener.accept()
                with sock:
                    receive_request(sock)
                    sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert RpcClient(path).call("echo", 5) == 5
        thread.join()


@pytest.mark.parametrize("pieces", [[b""], response(b"{", length=9)], ids=["no answer yet", "half an answer"])
def test_call_can_be_interrupted_from_another_thread(tmp_path: Path, pieces: Sequence[bytes]) -> None:
    client = RpcClient(tmp_path / "test.sock", timeout=30)
    with broken_service(tmp_path / "test.sock", pieces, hangs=True):
        threading.Timer(0.1, client.interrupt).start()
        began = time.monotonic()
        with pytest.raises(RpcError):
            client.call("echo", 1)
        with pytest.raises(RpcError):
            client.call("echo", 1)
        assert time.monotonic() - began < 10


def test_call_without_a_service_says_so(tmp_path: Path) -> None:
    with pytest.raises(RpcError, match="no service answers") as error:
        RpcClient(tmp_path / "missing.sock").call("echo", 1)
    assert error.value.status == os.EX_UNAVAILABLE


def test_server_replaces_a_leftover_socket_file(tmp_path: Path) -> None:
    leftover = tmp_path / "test.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(leftover))
    server = RpcServer(leftover, METHODS, group=None)
    assert RpcClient(leftover).call("echo", 5) == 5
    server.close()


def test_unknown_socket_group_is_a_config_error_and_leaves_no_socket(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^a:3: socket_group: 'no-such-group': no such group; allowed: ") as error:
        RpcServer(tmp_path / "test.sock", METHODS, SocketGroup("no-such-group", "a:3"))
    assert error.value.status == os.EX_CONFIG
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "line"),
    [("directory", "cannot be created: Is a directory"), ("x" * 108, "cannot be created: AF_UNIX path")],
)
def test_socket_that_cannot_be_made_is_one_line(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(UserError, match=line) as error:
        RpcServer(tmp_path / name, METHODS, group=None)
    assert error.value.status == os.EX_NOPERM
    assert (tmp_path / "directory").is_dir()


def test_hundred_concurrent_calls_are_all_answered(path: Path) -> None:
    with ThreadPoolExecutor(100) as callers:
        assert list(callers.map(lambda value: RpcClient(path).call("echo", value), range(100))) == list(range(100))


def test_call_waits_for_room_in_the_listen_queue(tmp_path: Path) -> None:
    path = tmp_path / "test.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(str(path))
        server.listen(0)
        first.connect(str(path))
        with pytest.raises(RpcError, match=r"no answer in 0\.2 s") as error:
            RpcClient(path, timeout=0.2).call("echo", 1)
    assert error.value.status == os.EX_UNAVAILABLE


@pytest.mark.parametrize(
    ("data", "begins", "refusal"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 501 ", "501 Unsupported method ('GET')"),
        (b"POST / HT", b"{", "400 Bad request version ('HT')"),
        (post(b"{", 2), b"HTTP/1.1 400 ", "400 Incomplete request"),
    ],
    ids=["malformed", "incomplete line", "incomplete body"],
)
@pytest.mark.usefixtures("short_timeout")
def test_refused_request_is_logged_in_one_line(
    path: Path,
    data: bytes,
    begins: bytes,
    refusal: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)
    sock = connect(path, data)
    sock.shutdown(socket.SHUT_WR)
    assert rest(sock).startswith(begins)
    wait_for_threads(0)
    assert caplog.messages == [f"rpc: request refused: {refusal}"]
    assert capfd.readouterr().err == ""


def test_client_that_leaves_before_the_answer_is_not_logged(
    path: Path, gate: Gate, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with connect(path, request("hold")):
        eventually(lambda: gate.held == 1, "a call")
    gate.release()
    eventually(lambda: caplog.record_tuples != [], "a debug line")
    assert caplog.record_tuples == [
        ("mptcp-throttle", logging.DEBUG, "rpc: connection ended: BrokenPipeError(32, 'Broken pipe')")
    ]
    assert capfd.readouterr().err == ""


def test_server_answers_after_requests_that_are_nearly_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "rpc.sock"
    with closing(RpcServer(path, {"echo": METHODS["echo"]}, None)), closing(RpcClient(path, 5.0)) as client:

        def use(data: bytes) -> None:
            with connect(path, data) as sock, suppress(ConnectionError):
                sock.shutdown(socket.SHUT_WR)
                rest(sock)
            assert client.call("echo", "still there") == "still there"

        pieces = (
            b"\r\n",
            b"\r\n\r\n",
            b"Content-Length: -1\r\n",
            b"99999999",
            b"HTTP/1.1",
            b"[" * 5000,
            b"null",
            b'"id"',
        )
        mutated_bytes.check(use, [request("echo", "value")], pieces)
    assert caplog.records == []
