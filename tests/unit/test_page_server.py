"""The page's server as browsers and attackers meet it: a real program, real HTTP, a daemon of canned answers."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from page_server import (
    CLIENT,
    JSON_BODY,
    PROGRAM,
    Answer,
    CannedDaemon,
    Certificate,
    PageServer,
    canned_daemon,
    page_server,
)
from polling import eventually

from mptcp_lab.free_port import free_port
from mptcp_lab.watched_page import write_config
from mptcp_throttle import logs
from mptcp_throttle.config.password_hash import PasswordHash

PASSWORD = "correct-horse"  # noqa: S105
WITH_CONTROL = {"password_hash": str(PasswordHash.of(PASSWORD)), "control": True}
RATE = {"network": "lte", "direction": "downlink", "kind": "cap", "rate": "5mbit", "seconds": 600}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def daemon(directory: Path) -> Iterator[CannedDaemon]:
    with canned_daemon(directory) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def page(directory: Path, daemon: CannedDaemon) -> Iterator[PageServer]:
    assert not daemon.changes
    with page_server(directory, WITH_CONTROL) as server:
        yield server


@pytest.fixture
def session(page: PageServer) -> Iterator[dict[str, str]]:
    """The headers after a log-in."""
    headers = session_of(page.ask("/api/log-in", {"password": PASSWORD}))
    yield headers
    page.ask("/api/log-out", {}, headers)


def session_of(log_in: Answer) -> dict[str, str]:
    """The headers with which the page goes on."""
    return {"Cookie": log_in.cookie, "X-Session-Secret": log_in.json["secret"]}


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/session", "/nothing"])
def test_every_answer_forbids_other_sources_and_frames(page: PageServer, path: str) -> None:
    headers = page.ask(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "server" not in headers


def test_page_and_its_modules_name_no_other_host(page: PageServer) -> None:
    static = Path(__file__).parents[2] / "web/mptcp_throttle_web/static"
    names = sorted(str(path.relative_to(static)) for path in static.rglob("*") if path.is_file())
    assert {"index.html", "main.js"} <= set(names)
    for name in names:
        answer = page.ask(f"/static/{name}")
        assert answer.status == 200
        assert b"//" not in answer.body.replace(b"http://www.w3.org/2000/svg", b"").replace(b"// ", b"")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9722", "127.0.0.1.evil.example", "", "[::1", "a@b"])
def test_foreign_host_names_are_refused(page: PageServer, host: str) -> None:
    answer = page.ask("/api/session", headers={"Host": host})
    assert answer.status == 421
    assert "allowed: 127.0.0.1, ::1, localhost" in answer.json["problem"]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_cannot_read_the_api(page: PageServer, site: str) -> None:
    assert page.ask("/api/session", headers={"Sec-Fetch-Site": site}).status == 403
    assert page.ask("/api/events", headers={"Sec-Fetch-Site": site}).status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Length": "4097"}, 413),
        ({"Content-Length": "9" * 15}, 413),
    ],
)
def test_posts_of_other_sites_and_large_ones_are_refused(
    page: PageServer, headers: dict[str, str], status: int
) -> None:
    assert page.ask("/api/log-in", {"password": PASSWORD}, headers).status == status


@pytest.mark.parametrize("length", ["9" * 5000, "-1"])
def test_head_that_is_no_http_is_refused_alone(page: PageServer, length: str) -> None:
    # No body: it would arrive after the connection is closed, and the RST that answers it can overtake the answer.
    headers = {**JSON_BODY, "Origin": page.origin, "Content-Length": length}
    assert page.ask("/api/log-in", headers=headers, method="POST").status == 400


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_other_methods_are_refused(page: PageServer, method: str) -> None:
    assert page.ask("/api/session", method=method).status in {400, 405}


@pytest.mark.parametrize(
    "path",
    [
        "/static/../main.py",
        "/static/..%2fmain.py",
        "/static/%2e%2e/main.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/%00",
        "/static/..\\main.py",
    ],
)
def test_files_outside_the_static_directory_are_not_served(page: PageServer, path: str) -> None:
    answer = page.ask(path)
    assert answer.status in {400, 404}
    assert b"import" not in answer.body
    assert b"root:" not in answer.body


def test_group_sees_addresses_and_strangers_of_this_host_do_not(page: PageServer) -> None:
    seen, hidden = page.first_event(unix=True), page.first_event()
    (decision,) = seen["decisions"]
    assert (decision["client"], decision["client_port"]) == (CLIENT, 40001)
    assert CLIENT not in json.dumps(hidden)
    assert CLIENT not in json.dumps(page.first_event("/api/events?hidden=true", unix=True))  # for a picture
    (decision,) = hidden["decisions"]
    name = decision["client"]
    assert name.startswith("host-")
    assert decision == {"client": name, "client_port": None, "reason": f"{name} is capped"}


def test_strangers_can_neither_search_nor_ask_for_an_address(page: PageServer) -> None:
    assert page.ask("/api/clients?search=10.1").status == 403
    assert [page.ask(f"/api/history?name={CLIENT}&seconds=600", unix=unix).status for unix in (False, True)] == [
        403,
        200,
    ]


def test_strangers_cannot_ask_for_a_device(
    page: PageServer, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "history_kind", "client")
    question = "/api/history?name=phone&seconds=600"
    assert [page.ask(question, unix=unix).status for unix in (False, True)] == [403, 200]


def test_history_of_a_hidden_name_is_that_of_its_address(page: PageServer) -> None:
    name = page.first_event()["decisions"][0]["client"]
    assert page.ask(f"/api/history?name={name}&seconds=600").json["sent"] == [1_000_000, 0]
    history = page.ask("/api/history?name=lte&seconds=600").json
    assert (history["received"], history["ip_sent_throttled"], history["held_back_ms"]) == ([0, 8], 100_000, 420)
    assert (history["throttled"], history["held"]) == ([800_000, 0], [400, 20])
    assert (history["loss"], history["rtt_ms"]) == ([0.02, None], [50.0, None])


def test_stream_has_what_each_network_has(page: PageServer, daemon: CannedDaemon) -> None:
    shown = page.first_event()
    assert shown["clients"] == 1
    assert shown["networks"] == [{"name": "lte", "sick": [], "client_count": 1}]
    assert shown["verdict"]["level"] == "problem"
    assert [finding["commands"] for finding in shown["attention"]] == [["journalctl -u mptcp-throttled"]]
    daemon.status["daemon"]["budget_problem"] = "the clock is not synchronised"
    try:
        eventually(lambda: len(page.first_event("/api/events")["attention"]) == 2, "it needs attention")
    finally:
        daemon.status["daemon"]["budget_problem"] = None


def test_clients_are_hidden_from_strangers_who_cannot_search(page: PageServer) -> None:
    (seen,) = page.ask("/api/clients", unix=True).json["clients"]
    (hidden,) = page.ask("/api/clients?order=held&number=5&from=0").json["clients"]
    assert (seen["client"], seen["device"]) == (CLIENT, "phone")
    assert (hidden["client"][:5], hidden["device"]) == ("host-", None)
    assert page.ask("/api/clients?search=10.1").status == 403
    assert page.ask("/api/clients?search=10.1", unix=True).status == 200


def test_client_is_shown_to_strangers_by_its_hidden_name_alone(page: PageServer, daemon: CannedDaemon) -> None:
    (hidden,) = page.ask("/api/clients").json["clients"]
    assert page.ask(f"/api/client?name={hidden['client']}").json == {"name": hidden["client"]}
    assert daemon.asked["client"] == (CLIENT,)
    for name in (CLIENT, "phone"):
        assert [page.ask(f"/api/client?name={name}", unix=unix).status for unix in (False, True)] == [403, 200]
    assert page.ask("/api/client?name=host-00000000").status == 403


def test_timeline_has_the_latest_events_first(page: PageServer, daemon: CannedDaemon) -> None:
    assert [event["number"] for event in page.ask("/api/timeline?instance=a&after=1").json["events"]] == [3, 2]
    assert daemon.asked["events"] == ("a", 1, 0.0)
    assert CLIENT not in page.ask("/api/timeline").body.decode()
    assert [page.ask(f"/api/{query}").status for query in ("timeline?after=x", "week?at=-1", "budgets")] == [
        400,
        400,
        200,
    ]


def test_tables_are_exported_with_a_row_for_each_item(page: PageServer) -> None:
    answer = page.ask("/api/export/clients.csv", unix=True)
    assert answer.headers["content-disposition"] == 'attachment; filename="mptcp-throttle-clients.csv"'
    assert answer.body.decode().splitlines() == [
        "client,device,network.name,network.client,network.until",
        f"{CLIENT},phone,lte,{CLIENT},",
    ]
    assert CLIENT not in page.ask("/api/export/clients.csv").body.decode()
    assert page.ask("/api/export/history.csv?name=lte&seconds=600").body.startswith(b"start,sent,received,throttled,")
    assert page.ask("/api/export/history.json?name=lte&seconds=600").json["start"] == [10, 11]
    week = "network,start,end,when,counts\r\nlte,0,9,01:00-06:00,false\r\n"
    assert page.ask("/api/export/week.csv?at=5").body.decode() == week
    assert page.ask("/api/export/networks.csv").body.decode().startswith("name,sick\r\nlte,[]\r\n")
    assert [page.ask(f"/api/export/{name}").status for name in ("nothing.csv", "clients.xml", "clients")] == [404] * 3


@pytest.mark.parametrize(
    "query",
    [
        *(f"history?name=lte&seconds={seconds}" for seconds in ("0", "5184001", "nan", "x", "")),
        *(
            f"clients?{q}"
            for q in ("number=201", "from=-1", "number=x", "number=%C2%B2", "order=up", f"rule={'x' * 101}")
        ),
    ],
)
def test_questions_and_histories_out_of_bounds_are_refused(page: PageServer, query: str) -> None:
    assert page.ask(f"/api/{query}").status == 400


def test_log_in_shows_addresses_and_log_out_hides_them(page: PageServer) -> None:
    answer = page.ask("/api/log-in", {"password": PASSWORD})
    attributes = answer.headers["set-cookie"].lower()
    assert "httponly" in attributes
    assert "samesite=strict" in attributes
    session = session_of(answer)
    assert CLIENT in json.dumps(page.first_event(headers=session))
    assert page.ask("/api/log-out", {}, session).status == 200
    assert not page.ask("/api/session", headers=session).json["logged_in"]
    assert CLIENT not in json.dumps(page.first_event(headers=session))


def test_cookie_alone_is_no_session(page: PageServer, session: dict[str, str], daemon: CannedDaemon) -> None:
    """Browsers send it to every port of this host, where other users may listen."""
    daemon.changes.clear()
    cookie = {"Cookie": session["Cookie"]}
    answer = page.ask("/api/session", headers=cookie)
    assert not answer.json["logged_in"]
    assert not answer.json["sees_addresses"]
    assert session["X-Session-Secret"] not in answer.body.decode()
    assert session["X-Session-Secret"] not in session["Cookie"]
    assert CLIENT not in json.dumps(page.first_event(headers=cookie))
    assert page.ask(f"/api/history?name={CLIENT}&seconds=600", headers=cookie).status == 403
    assert page.ask("/api/change/set_rate", RATE, cookie).status == 401
    assert page.ask("/api/log-out", {}, cookie).status == 401
    assert daemon.changes == []
    assert page.ask("/api/session", headers=session).json["logged_in"]


def test_secret_of_another_session_is_of_no_use(page: PageServer, session: dict[str, str]) -> None:
    second = session_of(page.ask("/api/log-in", {"password": PASSWORD}))
    mixed = {"Cookie": session["Cookie"], "X-Session-Secret": second["X-Session-Secret"]}
    assert not page.ask("/api/session", headers=mixed).json["logged_in"]
    assert page.ask("/api/log-out", {}, second).status == 200


def test_changes_need_a_session_and_the_page_itself(
    page: PageServer, daemon: CannedDaemon, session: dict[str, str]
) -> None:
    daemon.changes.clear()
    assert page.ask("/api/change/set_rate", RATE).status == 401
    assert page.ask("/api/change/set_rate", RATE, {**session, "X-Session-Secret": ""}).status == 401
    assert page.ask("/api/change/set_rate", RATE, {**session, "X-Session-Secret": "é"}).status == 401
    assert page.ask("/api/change/set_rate", RATE, {**session, "Origin": "http://evil.example"}).status == 403
    assert daemon.changes == []
    answer = page.ask("/api/change/set_rate", RATE, session)
    assert answer.json["did"] == "lte: cap 5mbit for 600 s"
    assert answer.json["undo"] == [{"method": "reset_rate", "body": {"network": "lte"}}]
    assert daemon.changes == [("set_rate", "lte", "downlink", "cap", "5mbit", 600.0)]


def test_each_change_is_a_line_of_the_log(page: PageServer, session: dict[str, str]) -> None:
    assert page.ask("/api/change/pause", {"seconds": 60}, session).status == 200
    assert page.ask("/api/change/set_rate", {**RATE, "network": "dsl"}, session).status == 409
    assert "pause seconds=60.0 by session " in page.log
    assert "from 127.0.0.1: done" in page.log
    assert "set_rate network=dsl direction=downlink kind=cap rate=5mbit seconds=600.0 by session " in page.log
    assert "refused: dsl: no such access network" in page.log


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("reload", {}),
        ("set_rate", {}),
        ("set_rate", [1]),
        ("set_rate", {**RATE, "more": 1}),
        ("set_rate", {**RATE, "more\nset_rate by root: done": 1}),
        ("set_rate", {**RATE, "kind": "all"}),
        ("set_rate", {**RATE, "rate": "1mbit\nset_rate by root: done"}),
        ("set_rate", {**RATE, "rate": "x" * 33}),
        ("set_rate", {**RATE, "network": "../lte"}),
        ("set_rate", {**RATE, "seconds": 1e400}),
        ("pause", {"seconds": -1}),
    ],
)
def test_malformed_changes_are_refused_in_one_line(
    page: PageServer, session: dict[str, str], daemon: CannedDaemon, method: str, body: object
) -> None:
    daemon.changes.clear()
    before = len(page.log.splitlines())
    answer = page.ask(f"/api/change/{method}", body, session)
    assert answer.status in {400, 409}
    assert len(answer.json["problem"].splitlines()) == 1
    assert daemon.changes == []
    (line,) = (line for line in page.log.splitlines()[before:] if f"'{method}' by session " in line)
    assert line.endswith(f"from 127.0.0.1: refused: {answer.json['problem']}")


def test_change_that_is_no_json_is_a_line_of_the_log(page: PageServer, session: dict[str, str]) -> None:
    headers = {**session, "Content-Type": "application/json", "Origin": page.origin, "Content-Length": "1"}
    with closing(page.connection()) as connection:
        connection.request("POST", "/api/change/resume", "{", headers)
        assert connection.getresponse().status == 400
    line = page.log.splitlines()[-1]
    assert "'resume' by session " in line
    assert line.endswith("from 127.0.0.1: refused: the request is not JSON")


def test_malformed_changes_hide_no_line_about_others(tmp_path: Path) -> None:
    with canned_daemon(tmp_path), page_server(tmp_path, WITH_CONTROL) as page:
        session = session_of(page.ask("/api/log-in", {"password": PASSWORD}))
        for _ in range(50):
            assert page.ask("/api/change/pause", {"seconds": "x"}, session).status == 409
        # Those of two intervals at most.
        assert page.log.count("refused: seconds: 'x': ") <= 2 * logs.SUBJECT_LINES
        assert page.ask("/api/change/resume", {}, session).status == 200
        assert "resume by session " in page.log


def test_attempts_to_guess_the_password_are_bounded(directory: Path, daemon: CannedDaemon) -> None:
    assert daemon is not None
    own = directory / "guessing"
    own.mkdir()
    with page_server(own, WITH_CONTROL) as page:
        answers = [page.ask("/api/log-in", {"password": f"guess {number}"}).status for number in range(7)]
        assert answers[:5] == [403] * 5
        assert answers[-1] == 429
        assert "wrong password" in page.log
        # Guesses at a listener do not block log-ins at another.
        assert page.ask("/api/log-in", {"password": PASSWORD}, unix=True).status == 200


def test_password_hash_in_the_configuration_does_not_log_in(page: PageServer) -> None:
    assert page.ask("/api/log-in", {"password": WITH_CONTROL["password_hash"]}).status in {403, 429}


def test_many_viewers_cost_the_daemon_one_question_per_second(page: PageServer, daemon: CannedDaemon) -> None:
    with ExitStack() as open_connections:
        viewers = [open_connections.enter_context(closing(page.connection(unix=True))) for _ in range(20)]
        answers = []
        for viewer in viewers:
            viewer.request("GET", "/api/events")
            answers.append(viewer.getresponse())
        assert [answer.readline()[:5] for answer in answers] == [b"data:"] * 20
        before, began = daemon.calls["status"], time.monotonic()
        for _ in range(6):  # an event is two lines
            answers[0].readline()
        assert daemon.calls["status"] - before <= (time.monotonic() - began) + 2


def test_strangers_leave_room_for_the_group(page: PageServer) -> None:
    with ExitStack() as open_connections:
        viewers = [open_connections.enter_context(closing(page.connection())) for _ in range(40)]
        os.kill(page.process.pid, signal.SIGSTOP)  # so that all requests are there at once
        for viewer in viewers:
            viewer.request("GET", "/api/events")
        os.kill(page.process.pid, signal.SIGCONT)
        statuses = [viewer.getresponse().status for viewer in viewers]
        assert set(statuses) == {200, 503}
        assert statuses.count(200) == 32
        assert page.first_event(unix=True)["problem"] is None


def test_answer_says_how_old_its_rates_are(page: PageServer, daemon: CannedDaemon) -> None:
    daemon.rates_age = 100.0
    eventually(lambda: 100 <= page.first_event()["rates_age"] < 103, "their age, by the clock of this host")
    daemon.rates_age = 0.0
    eventually(lambda: page.first_event()["rates_age"] < 3, "new ones")


def test_opening_and_closing_asks_the_daemon_no_more_often(page: PageServer, daemon: CannedDaemon) -> None:
    before, began = daemon.calls["status"], time.monotonic()
    for _ in range(50):
        assert page.first_event()["problem"] is None
    assert daemon.calls["status"] - before <= (time.monotonic() - began) + 3
    eventually(lambda: (page.first_event(unix=True)["problem"]) is None, "the group is served")


def test_stream_ends_with_its_session(page: PageServer) -> None:
    session = session_of(page.ask("/api/log-in", {"password": PASSWORD}))
    with closing(page.connection()) as viewer:
        viewer.request("GET", "/api/events", headers=session)
        answer = viewer.getresponse()
        assert answer.readline().startswith(b"data: ")
        page.ask("/api/log-out", {}, session)
        while answer.readline():
            pass


def test_viewers_see_that_the_daemon_is_away_and_back(tmp_path: Path) -> None:
    with page_server(tmp_path) as page:
        assert "no service answers" in page.first_event()["problem"]
        with closing(page.connection()) as viewer:
            viewer.request("GET", "/api/events")
            answer = viewer.getresponse()
            assert json.loads(answer.readline().removeprefix(b"data: "))["problem"] is not None
            with canned_daemon(tmp_path):

                def is_back() -> bool:
                    line = answer.readline()
                    return line != b"\n" and json.loads(line.removeprefix(b"data: "))["problem"] is None

                eventually(is_back, "the daemon is seen again")


def test_headers_of_ten_megabytes_end_their_connection_alone(page: PageServer) -> None:
    with closing(page.raw()) as attacker:
        with suppress(OSError):
            attacker.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 10_000_000)
        with suppress(OSError):
            assert attacker.recv(100)[:12] in {b"", b"HTTP/1.1 400"}
    assert page.serves()


def connect(page: PageServer, connections: ExitStack, beginning: bytes) -> list[socket.socket]:
    """A thousand connections, of which every second one sends the beginning of something."""
    idle = []
    for number in range(1000):
        connection = connections.enter_context(closing(page.raw()))
        idle.append(connection)
        if number % 2:
            connection.sendall(beginning)
    return idle


def seconds_until_closed(idle: list[socket.socket]) -> float:
    """How long it takes until the server has closed them all."""
    began = time.monotonic()
    for connection in idle:
        connection.settimeout(30)
        with suppress(ConnectionError):
            while connection.recv(4096):
                pass
    return time.monotonic() - began


def test_slow_and_idle_connections_are_closed_and_do_not_block_clients(page: PageServer) -> None:
    with ExitStack() as connections:
        idle = connect(page, connections, b"GET / HTTP/1.1\r\nHost: ")
        assert page.serves()
        assert seconds_until_closed(idle) < 25
    assert page.serves()


@pytest.fixture
def tls_page(tmp_path: Path) -> Iterator[PageServer]:
    """By HTTPS, with as many files as a service may have open by default."""
    with page_server(tmp_path, Certificate.made_in(tmp_path).settings) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        yield server


def test_handshakes_that_do_not_begin_do_not_block_clients(tls_page: PageServer) -> None:
    with ExitStack() as connections:
        idle = connect(tls_page, connections, b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        assert tls_page.serves()
        assert len(os.listdir(f"/proc/{tls_page.process.pid}/fd")) < 250
        assert seconds_until_closed(idle) < 10
    assert tls_page.serves()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x02\x01\x00", b""])
def test_handshakes_that_fail_end_their_connection_alone(tls_page: PageServer, data: bytes) -> None:
    with closing(tls_page.raw()) as failing:
        failing.sendall(data)
        failing.shutdown(socket.SHUT_WR)
        assert seconds_until_closed([failing]) < 3
    assert tls_page.serves()


def test_service_ends_in_the_middle_of_handshakes(tmp_path: Path) -> None:
    with ExitStack() as connections, page_server(tmp_path, Certificate.made_in(tmp_path).settings) as page:
        for _ in range(10):
            connections.enter_context(closing(page.raw()))
        assert page.serves()


def test_request_behind_the_handshake_is_answered(tls_page: PageServer) -> None:
    """In the segment that ends the handshake."""
    context = ssl.create_default_context(cafile=tls_page.certificate)
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, to_send, server_hostname="127.0.0.1")
    with closing(tls_page.raw()) as connection:

        def received_by(step: Callable[[], object]) -> object:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    connection.sendall(to_send.read())
                    received.write(connection.recv(65536))

        received_by(tls.do_handshake)
        tls.write(f"GET /api/session HTTP/1.1\r\nHost: 127.0.0.1:{tls_page.port}\r\n\r\n".encode())
        assert received_by(lambda: tls.read(4096)[:13]) == b"HTTP/1.1 200 "


def head_of_log_in(page: PageServer) -> bytes:
    """Of a request with a body of 100 bytes."""
    headers = f"Host: 127.0.0.1:{page.port}\r\nOrigin: {page.origin}\r\nContent-Type: application/json\r\n"
    return f"POST /api/log-in HTTP/1.1\r\n{headers}Content-Length: 100\r\n\r\n".encode()


@pytest.mark.parametrize("part", [b"", b" "], ids=["not at all", "slowly"])
def test_body_that_does_not_come_in_time_is_given_up(page: PageServer, part: bytes) -> None:
    with closing(page.raw()) as slow:
        slow.settimeout(1)
        began = time.monotonic()
        slow.sendall(head_of_log_in(page) + b"{")
        answer = b""
        while not answer:
            slow.sendall(part)
            with suppress(TimeoutError):
                answer = slow.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < 15
    assert page.serves()


def test_clients_that_leave_early_leave_no_traceback(page: PageServer) -> None:
    before = page.log
    with closing(page.raw()) as leaving:
        leaving.sendall(head_of_log_in(page) + b"{")
    assert page.serves()
    assert page.log == before


@pytest.mark.parametrize("body", [*({"password": odd} for odd in ("\ud800", 5, "x" * 4000)), [], "password", None])
def test_odd_log_ins_are_refused(page: PageServer, body: object) -> None:
    assert page.ask("/api/log-in", body, method="POST").status in {400, 403, 411, 413, 415, 429}


@pytest.mark.parametrize("unix", [True, False])
def test_viewer_that_does_not_read_delays_no_other_and_is_closed(tmp_path: Path, unix: bool) -> None:
    with canned_daemon(tmp_path) as daemon, page_server(tmp_path) as page, closing(page.connection(unix=unix)) as deaf:
        # More than the kernel holds for a client that does not read: 4 MiB with TCP (tcp_wmem, tcp(7)).
        daemon.recent = [{"client_port": 40001, "reason": "x" * 8_000_000}]
        deaf.connect()
        began = time.monotonic()
        deaf.request("GET", "/api/events")
        while time.monotonic() - began < 5:
            assert page.first_event(unix=unix)["problem"] is None
        closed = select.poll()
        closed.register(deaf.sock, select.POLLHUP)
        assert closed.poll(30_000)
        assert 15 < time.monotonic() - began < 30
        assert page.serves()


def test_new_password_and_its_hash_belong_together() -> None:
    ran = subprocess.run([PROGRAM, "--new-password"], capture_output=True, text=True, check=True)
    _, password, _, password_hash = ran.stdout.splitlines()
    assert PasswordHash.parse(password_hash.strip()).matches(password.strip())
    assert not PasswordHash.parse(password_hash.strip()).matches(password)


def run_program(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, "--config", config], capture_output=True, text=True, check=False, timeout=30)


def test_second_instance_is_refused(page: PageServer) -> None:
    second = run_program(page.directory / "mptcp-throttle.yaml")
    assert (second.returncode, second.stderr.count("\n")) == (os.EX_TEMPFAIL, 1)


def test_address_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        refused = run_program(write_config(tmp_path, {"listen": f"127.0.0.1:{listener.getsockname()[1]}"}))
    assert refused.returncode == os.EX_UNAVAILABLE
    assert refused.stderr.endswith(": cannot be used: Address already in use\n")


def test_unix_socket_alone_is_enough(tmp_path: Path) -> None:
    with canned_daemon(tmp_path), page_server(tmp_path, {"listen": None}) as page:
        assert page.first_event(unix=True)["problem"] is None
        assert page.sockets.web.stat().st_mode & 0o777 == 0o660


def test_certificate_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "certificate.pem"
    file.write_text("no certificate")
    refused = run_program(write_config(tmp_path, {"certificate": str(file), "key": str(file)}))
    assert (refused.returncode, refused.stderr.count("\n")) == (os.EX_CONFIG, 1)


def test_other_addresses_show_nothing_before_a_log_in(tmp_path: Path) -> None:
    made, port = Certificate.made_in(tmp_path), free_port()
    web = {**WITH_CONTROL, "listen": f"0.0.0.0:{port}", **made.settings}
    url = f"https://proxy.example:{port}"
    curl = ("curl", "-sS", "--cacert", made.certificate, "--resolve", f"proxy.example:{port}:127.0.0.1")

    def status(*arguments: str | Path) -> str:
        ask = [*curl, "-o", tmp_path / "answer", "-w", "%{http_code}", *arguments]
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout

    cookies = ("-c", tmp_path / "cookies", "-b", tmp_path / "cookies")
    with canned_daemon(tmp_path), page_server(tmp_path, {**web, "names": ["proxy.example"]}):
        assert status(f"{url}/") == "200"
        assert status(f"{url}/api/events") == "401"
        assert status(f"{url}/api/history?name=lte&seconds=600") == "401"
        body = json.dumps({"password": PASSWORD})
        given = ("-H", "Content-Type: application/json", "-H", f"Origin: {url}", "-d", body)
        assert status(*cookies, *given, f"{url}/api/log-in") == "200"
        secret = ("-H", f"X-Session-Secret: {json.loads((tmp_path / 'answer').read_text())['secret']}")
        assert "\tTRUE\t" in (tmp_path / "cookies").read_text().splitlines()[-1]  # for HTTPS only
        assert status(*cookies, f"{url}/api/history?name=lte&seconds=600") == "401"
        assert status(*cookies, *secret, f"{url}/api/history?name=lte&seconds=600") == "200"
