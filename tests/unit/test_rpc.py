import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mptcp_throttle.config import SocketGroup
from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import Json, RpcClient, RpcError, RpcServer


def refuse() -> None:
    raise UserError("dsl: no such access network")


def crash() -> None:
    raise RuntimeError("secret detail")


METHODS: dict[str, Callable[..., Json]] = {
    "echo": lambda value: value,
    "refuse": refuse,
    "crash": crash,
    "wait": lambda seconds: time.sleep(seconds),
}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    socket_path = tmp_path / "test.sock"
    server = RpcServer(socket_path, METHODS, group=None)
    yield socket_path
    server.close()
    assert not socket_path.exists()


@pytest.mark.parametrize("value", [None, 1, "text", [1, {"a": None}], {"nested": [1.5, True]}])
def test_values_survive_the_journey(path: Path, value: Json) -> None:
    assert RpcClient(path).call("echo", value) == value


def test_the_socket_is_for_owner_and_group_only(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_refusal_arrives_as_its_one_line(path: Path) -> None:
    with pytest.raises(RpcError, match=r"^dsl: no such access network$"):
        RpcClient(path).call("refuse")


def test_a_crash_is_answered_without_its_details(path: Path) -> None:
    with pytest.raises(RpcError) as error:
        RpcClient(path).call("crash")
    assert "secret" not in str(error.value)


def test_unknown_methods_and_wrong_parameters_are_refused(path: Path) -> None:
    for call in (("nonsense",), ("echo",), ("echo", 1, 2)):
        with pytest.raises(RpcError):
            RpcClient(path).call(*call)
    assert RpcClient(path).call("echo", 1) == 1


def test_oversized_and_malformed_requests_are_refused_and_others_still_served(path: Path) -> None:
    with pytest.raises(RpcError):
        RpcClient(path).call("echo", "x" * 100_000)
    for garbage in (b"GET / HTTP/1.0\r\n\r\n", b"\0" * 100, b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\n{{{{{"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(garbage)
            sock.settimeout(10)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    assert RpcClient(path).call("echo", 1) == 1


def test_a_waiting_call_does_not_keep_others_waiting(path: Path) -> None:
    waiting = threading.Thread(target=lambda: RpcClient(path).call("wait", 0.5))
    waiting.start()
    began = time.monotonic()
    RpcClient(path).call("echo", 1)
    assert time.monotonic() - began < 0.4
    waiting.join()


def test_a_service_that_hangs_is_given_up(path: Path) -> None:
    with pytest.raises(RpcError, match=r"no answer in 0\.1 s"):
        RpcClient(path, timeout=0.1).call("wait", 0.5)


def test_a_waiting_call_can_be_interrupted(path: Path) -> None:
    client = RpcClient(path, timeout=30)
    threading.Timer(0.1, client.interrupt).start()
    began = time.monotonic()
    with pytest.raises(RpcError):
        client.call("wait", 0.5)
    assert time.monotonic() - began < 0.45


def test_without_a_service_the_caller_is_told(tmp_path: Path) -> None:
    with pytest.raises(RpcError, match="no service answers") as error:
        RpcClient(tmp_path / "missing.sock").call("echo", 1)
    assert error.value.status == os.EX_UNAVAILABLE


def test_a_leftover_socket_file_does_not_prevent_a_start(tmp_path: Path) -> None:
    leftover = tmp_path / "test.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(leftover))
    server = RpcServer(leftover, METHODS, group=None)
    assert RpcClient(leftover).call("echo", 5) == 5
    server.close()


def test_an_unknown_group_is_a_configuration_error_and_leaves_no_socket(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^a:3: socket_group: 'no-such-group': no such group; allowed: ") as error:
        RpcServer(tmp_path / "test.sock", METHODS, SocketGroup("no-such-group", "a:3"))
    assert error.value.status == os.EX_CONFIG
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "line"),
    [("directory", "cannot be created: Is a directory"), ("x" * 108, "cannot be created: AF_UNIX path")],
)
def test_a_socket_that_cannot_be_made_is_one_line(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(UserError, match=line) as error:
        RpcServer(tmp_path / name, METHODS, group=None)
    assert error.value.status == os.EX_NOPERM
    assert (tmp_path / "directory").is_dir()


def test_many_callers_at_once_are_all_answered(path: Path) -> None:
    with ThreadPoolExecutor(100) as callers:
        assert list(callers.map(lambda value: RpcClient(path).call("echo", value), range(100))) == list(range(100))


def test_a_caller_waits_for_room_in_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "test.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(str(path))
        server.listen(0)
        first.connect(str(path))
        with pytest.raises(RpcError, match=r"no answer in 0\.2 s") as error:
            RpcClient(path, timeout=0.2).call("echo", 1)
    assert error.value.status == os.EX_UNAVAILABLE


def test_what_is_no_rpc_is_answered_with_an_error_and_logged_in_one_line(
    path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.0 501 Unsupported method ('GET')\r\n")
    assert caplog.messages == ["rpc: code 501, message Unsupported method ('GET')"]
    assert capfd.readouterr().err == ""


def test_a_caller_that_has_gone_is_logged_in_one_line(
    path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(RpcError):
        RpcClient(path, timeout=0.1).call("wait", 0.3)
    deadline = time.monotonic() + 5
    while not caplog.messages and time.monotonic() < deadline:
        time.sleep(0.02)
    assert caplog.messages == ["rpc: request given up: BrokenPipeError(32, 'Broken pipe')"]
    assert capfd.readouterr().err == ""
