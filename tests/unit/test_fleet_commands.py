"""`mptcp-throttle fleet`: what is published of the files, which number it gets, and the return to an older policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from config_files import write_config
from policy_server import PolicyServer

from mptcp_throttle.cli import fleet_commands
from mptcp_throttle.cli.main import main
from mptcp_throttle.config.fleet_section import FleetSection
from mptcp_throttle.errors import EX_FAILURE, UserError
from mptcp_throttle.policy_bundle.bundle import MAX_VERSION, Bundle
from mptcp_throttle.policy_bundle.published import Announcement, PublishedPolicies
from mptcp_throttle.policy_bundle.signature import PrivateKey
from mptcp_throttle.valkey.connection import ValkeyError
from mptcp_throttle.valkey.lease_names import NAMES, RECORD, hash_of

KEY: Final = PrivateKey.new()
LTE: Final = "name: lte\npreference: 2\nsubnets: [10.1.0.0/24]\ncap: 1mbit\n"
WIFI: Final = "name: wifi\npreference: 1\nsubnets: [10.2.0.0/24]\n"
POLICIES: Final = b"mptcp-throttle:policy:europe"
PROXIES: Final = b"mptcp-throttle:policy:europe:proxies"
Captured = pytest.CaptureFixture[str]


class Publisher:
    """A directory of files and a key, and a model of the server."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.server = PolicyServer()
        self.published = PublishedPolicies(self.server.ask, "europe")
        self._capsys = capsys
        self.config = write_config(directory, service_text(), lte=LTE, wifi=WIFI)
        KEY.write(directory / "policy.key")

        @contextmanager
        def connected(fleet: FleetSection, *, writes: bool = False) -> Iterator[PublishedPolicies]:
            if writes:
                self.published.require_writes()
            assert fleet.policy.fleet == "europe"
            try:
                yield self.published
            except ValkeyError as error:
                raise UserError(f"fleet: {error}", 69) from error

        monkeypatch.setattr(fleet_commands, "_published", connected)

    def fleet(self, *words: str) -> tuple[int, str, str]:
        """The exit status of a command, and its two outputs."""
        signs = ("--key", str(self.directory / "policy.key"), "--author", "alice")
        more = signs if words[0] in {"publish", "rollback"} else ()
        status = main(["--config", str(self.config), "fleet", *words, *more])
        output = self._capsys.readouterr()
        return status, output.out, output.err

    def ok(self, *words: str) -> str:
        status, output, errors = self.fleet(*words)
        assert (status, errors) == (0, "")
        return output

    def refusal(self, *words: str, status: int = EX_FAILURE) -> str:
        """The one line with which a command is refused."""
        ended, output, errors = self.fleet(*words)
        assert (ended, output, errors.count("\n")) == (status, "", 1)
        return errors.rstrip("\n")

    def bundle(self, number: int) -> Bundle:
        return self.published.read(number, [KEY.public])

    def change_cap(self, cap: str) -> None:
        (self.directory / "networks.d/lte.yaml").write_text(LTE.replace("1mbit", cap))


def service_text(public: str = str(KEY.public)) -> str:
    return (
        "proxy: {interface: eth0, ports: [8080]}\n"
        "fleet:\n  url: valkey://localhost\n  name: office\n  share_clients: true\n"
        f"  policy: {{fleet: europe, keys: [{public}]}}\n"
    )


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Publisher:
    return Publisher(tmp_path, monkeypatch, capsys)


def test_publish_puts_networks_devices_and_subnets_and_nothing_else(publisher: Publisher) -> None:
    directory = publisher.directory
    (directory / "clients.d").mkdir()
    (directory / "clients.d/phone.yml").write_text("name: phone\nnetworks: {lte: {addresses: [10.1.0.9]}}\n")
    (directory / "clients.d/.hidden.yaml").write_text("x")
    (directory / "networks.d/lte.yaml").write_text(f"{LTE}subnets_file: lte.txt\n")
    (directory / "networks.d/lte.txt").write_text("10.3.0.0/24\n")
    (directory / "networks.d/notes.txt").write_text("x")
    (directory / "local.txt").write_text("10.4.0.0/24\n")
    (directory / "networks.d/wifi.yaml").write_text(f"{WIFI}subnets_file: {directory}/local.txt\n")
    output = publisher.ok("publish")
    bundle = publisher.bundle(1)
    assert {*bundle.files} == {
        *("networks.d/lte.yaml", "networks.d/wifi.yaml", "networks.d/lte.txt", "clients.d/phone.yml")
    }
    assert bundle.author == "alice"
    assert output == (
        "clients.d/phone.yml: new\nnetworks.d/lte.txt: new\nnetworks.d/lte.yaml: new\nnetworks.d/wifi.yaml: new\n"
        f"published: policy 1 ({bundle.described.digest[:12]}); `mptcp-throttle fleet status` says who uses it\n"
    )


def test_publish_refuses_files_that_are_not_valid(publisher: Publisher) -> None:
    publisher.change_cap("fast")
    assert "networks.d/lte.yaml:4: cap: 'fast': is not a rate" in publisher.refusal("publish", status=78)
    assert publisher.published.numbers() == []


@pytest.mark.parametrize("name", ["../lte.txt", "subnets/lte.txt"])
def test_publish_refuses_subnets_that_no_proxy_would_have(publisher: Publisher, name: str) -> None:
    (publisher.directory / "networks.d/subnets").mkdir()
    (publisher.directory / "networks.d" / name).write_text("10.3.0.0/24\n")
    (publisher.directory / "networks.d/lte.yaml").write_text(f"{LTE}subnets_file: {name}\n")
    assert publisher.refusal("publish", status=78).endswith(
        f"networks.d/lte.yaml:5: subnets_file: {name}: allowed in a policy: a file beside this one, or the absolute"
        " path of a file that each proxy has"
    )


def test_publish_refuses_a_file_whose_name_is_none_in_a_policy(publisher: Publisher) -> None:
    (publisher.directory / "networks.d/lte.yaml").rename(publisher.directory / "networks.d/my lte.yaml")
    assert "networks.d/my lte.yaml: 'networks.d/my lte.yaml': is no name for a file" in publisher.refusal(
        "publish", status=78
    )


def test_publish_of_what_is_published_changes_nothing(publisher: Publisher) -> None:
    publisher.ok("publish")
    assert publisher.ok("publish").startswith("nothing was published: policy 1 (")
    assert publisher.published.numbers() == [1]


def test_dry_run_shows_the_changes_and_publishes_nothing(publisher: Publisher) -> None:
    publisher.ok("publish")
    publisher.change_cap("2mbit")
    assert publisher.ok("publish", "--dry-run") == "networks.d/lte.yaml: changed\nnothing was published\n"
    assert publisher.published.numbers() == [1]


def test_numbers_grow_and_the_newest_ten_policies_stay(publisher: Publisher) -> None:
    for number in range(1, 14):
        publisher.change_cap(f"{number}mbit")
        publisher.ok("publish")
    assert publisher.published.numbers() == [*range(13, 3, -1)]


def test_new_policy_stays_whatever_forged_numbers_are_on_the_server(publisher: Publisher) -> None:
    for number in range(100, 112):
        publisher.published.add(number, b"forged")
    assert "published: policy 1 (" in publisher.ok("publish")
    assert publisher.bundle(1).version == 1


def test_server_that_is_lost_after_a_policy_was_published_is_no_failure(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> None:
        raise ValkeyError("does not answer")

    monkeypatch.setattr(PublishedPolicies, "remove", lose)
    assert "published: policy 1 (" in publisher.ok("publish")


def test_highest_number_has_none_after_it(publisher: Publisher) -> None:
    publisher.ok("publish", "--number", str(MAX_VERSION))
    publisher.change_cap("2mbit")
    assert publisher.refusal("publish") == (
        f"policy {MAX_VERSION}: none has a higher number; allowed: another name in fleet.policy.fleet"
    )


def test_rollback_publishes_older_files_as_a_new_policy(publisher: Publisher) -> None:
    for cap in ("1mbit", "2mbit", "3mbit"):
        publisher.change_cap(cap)
        publisher.ok("publish")
    assert publisher.ok("rollback").startswith("networks.d/lte.yaml: changed\npublished: policy 4 (")
    assert publisher.bundle(4).files == publisher.bundle(2).files
    publisher.ok("rollback", "1")
    assert publisher.bundle(5).files == publisher.bundle(1).files
    assert publisher.refusal("rollback", "9") == "no such policy to return to; allowed: 4, 3, 2, 1"


def test_rollback_needs_no_valid_files_of_the_publisher(publisher: Publisher) -> None:
    for cap in ("1mbit", "2mbit"):
        publisher.change_cap(cap)
        publisher.ok("publish")
    publisher.change_cap("fast")
    publisher.ok("rollback")
    publisher.ok("status")
    assert publisher.bundle(3).files == publisher.bundle(1).files


def test_rollback_without_an_older_policy_is_one_line(publisher: Publisher) -> None:
    expected = "no such policy to return to; allowed: none: the server has no older one"
    assert publisher.refusal("rollback") == expected
    publisher.ok("publish")
    assert publisher.refusal("rollback") == expected


def test_forged_policies_on_the_server_are_named_and_passed_over(publisher: Publisher) -> None:
    publisher.ok("publish")
    for number in (2, 3, 500):
        publisher.published.add(number, PrivateKey.new().sign(publisher.bundle(1)))
    publisher.change_cap("2mbit")
    output = publisher.ok("publish")
    assert "published: policy 4 (" in output
    for number in (2, 3, 500):
        note = f"note: policy {number} on the server is not signed with a key of fleet.policy.keys"
        assert note in output


def test_wiped_server_needs_a_number_that_proxies_do_not_take_for_older(publisher: Publisher) -> None:
    said = Announcement(7, "ab12", 1.0, None, 2.0)
    publisher.published.announce("proxy-2", said)
    assert publisher.refusal("publish") == (
        "proxy-2 says that it uses policy 7, and the server has no policy after 0: it has lost some, or the proxy is"
        " mistaken; allowed: --number 8"
    )
    publisher.ok("publish", "--number", "8")
    assert publisher.published.numbers() == [8]
    publisher.change_cap("2mbit")
    assert publisher.refusal("publish", "--number", "8").startswith(
        "--number 8: is not above 8, the latest; allowed: 9"
    )
    publisher.ok("publish")
    assert publisher.published.numbers() == [9, 8]


def test_second_publisher_in_the_same_moment_replaces_nothing(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PublishedPolicies, "add", lambda *_: False)
    assert publisher.refusal("publish") == (
        "policy 1 was published in this moment; allowed: again, if yours is still needed"
    )


class Answering:
    """A connection to a model of a server."""

    def __init__(self, server: PolicyServer) -> None:
        self.ask = server.ask
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("takes_writes", [0, 1, None])
def test_publish_finds_the_server_that_takes_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, takes_writes: int | None
) -> None:
    KEY.write(tmp_path / "policy.key")
    text = service_text().replace("valkey://localhost", "valkey://127.0.0.1,localhost")
    config = write_config(tmp_path, text, wifi=WIFI)
    refusal = "READONLY You can't write"
    servers = [PolicyServer() if each == takes_writes else PolicyServer({PROXIES: refusal}) for each in range(2)]
    connections: list[Answering] = []

    def connect(*_: object) -> Answering:
        connections.append(Answering(servers[len(connections)]))
        return connections[-1]

    monkeypatch.setattr(fleet_commands, "connect", connect)
    status = main(["--config", str(config), "fleet", "publish", "--key", str(tmp_path / "policy.key")])
    output = capsys.readouterr()
    if takes_writes is None:
        assert (status, output.err) == (69, f"fleet: the server refuses: {refusal}\n")
    else:
        assert (status, output.err) == (0, "")
        assert servers[takes_writes].hashes[POLICIES]
    assert all(connection.is_closed for connection in connections)


def test_key_that_no_proxy_knows_is_refused(publisher: Publisher) -> None:
    other = PrivateKey.new()
    publisher.config.write_text(service_text(str(other.public)))
    assert f"its public key {KEY.public} is not in fleet.policy.keys" in publisher.refusal("publish")


@pytest.mark.parametrize("words", [("publish",), ("rollback",), ("status",), ("forget", "proxy-1")])
def test_fleet_without_its_section_is_one_line(tmp_path: Path, words: tuple[str, ...], capsys: Captured) -> None:
    KEY.write(tmp_path / "policy.key")
    config = write_config(tmp_path, wifi=WIFI)
    more = ("--key", str(tmp_path / "policy.key")) if words[0] in {"publish", "rollback"} else ()
    assert main(["--config", str(config), "fleet", *words, *more]) == 78
    assert capsys.readouterr().err == (
        "fleet.policy.fleet: is required; allowed: the name of the fleet, and fleet.policy.keys\n"
    )


def test_fleet_whose_server_does_not_answer_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    text = service_text().replace("localhost", "127.0.0.1:1")
    config = write_config(tmp_path, text, wifi=WIFI)
    assert main(["--config", str(config), "fleet", "status"]) == 69
    assert capsys.readouterr().err == "fleet: 127.0.0.1:1: Connection refused\n"


def test_status_says_who_uses_what_since_when(publisher: Publisher) -> None:
    assert publisher.ok("status") == "the server has no policy of europe\nno proxy has said which it uses\n"
    publisher.ok("publish")
    publisher.published.announce("proxy-1", Announcement(1, publisher.bundle(1).described.digest, 1.7e9, None, 1.7e9))
    publisher.published.announce("proxy-2", Announcement(None, None, None, "policy 1: networks.d/lte.yaml:5: x", 1.7e9))
    output = publisher.ok("status")
    assert publisher.bundle(1).described.digest[:12] in output
    assert "own files" in output
    assert "policy 1: networks.d/lte.yaml:5: x" in output
    data = json.loads(publisher.ok("status", "--json"))
    assert [proxy["number"] for proxy in data["proxies"]] == [1, None]
    assert data["policies"][0]["files"] == 2


def test_forgotten_proxy_is_no_longer_shown(publisher: Publisher) -> None:
    publisher.published.announce("proxy-1", Announcement(1, "a", 1.7e9, None, 1.7e9))
    assert publisher.refusal("forget", "proxy-2") == "proxy-2: no such proxy; allowed: proxy-1"
    publisher.ok("forget", "proxy-1")
    assert publisher.published.announcements() == {}


def test_forgotten_proxy_is_no_longer_among_those_that_share_rates(publisher: Publisher) -> None:
    publisher.server.hashes[NAMES] = {b"proxy-1": b"", b"proxy-2": b""}
    publisher.published.announce("proxy-1", Announcement(1, "a", 1.7e9, None, 1.7e9))
    for name in ("proxy-1", "proxy-2"):  # of which only the first has said which policy it uses
        publisher.ok("forget", name)
    assert publisher.server.hashes[NAMES] == {}
    assert publisher.refusal("forget", "proxy-2").startswith("proxy-2: no such proxy; ")


def test_proxy_that_shares_rates_is_not_forgotten(publisher: Publisher) -> None:
    publisher.server.hashes[NAMES] = {b"proxy-1": b""}
    publisher.server.hashes[hash_of("proxy-1")] = {RECORD: b"0123456789abcdef 1 1"}
    publisher.published.announce("proxy-1", Announcement(1, "a", 1.7e9, None, 1.7e9))
    assert publisher.refusal("forget", "proxy-1") == (
        "proxy-1: shares rates, or did so within the last 10 min; allowed: a proxy that is gone"
    )
    assert publisher.server.hashes[NAMES] == {b"proxy-1": b""}
    assert {*publisher.published.announcements()} == {"proxy-1"}


def test_proxy_with_a_record_that_is_too_long_is_refused_in_words(publisher: Publisher) -> None:
    """The connection is closed then: nothing else can be asked."""
    publisher.server.hashes[NAMES] = {b"proxy-1": b""}
    publisher.server.hashes[hash_of("proxy-1")] = {RECORD: b"x" * 10_000}
    publisher.published.announce("proxy-1", Announcement(1, "a", 1.7e9, None, 1.7e9))
    assert publisher.refusal("forget", "proxy-1") == (
        "proxy-1: what it states of shared rates is too long; allowed: a proxy that is gone"
    )


def test_publisher_without_the_right_to_forget_a_name_is_told(publisher: Publisher) -> None:
    publisher.server.hashes[NAMES] = "NOPERM No permissions to access a key"
    publisher.published.announce("proxy-1", Announcement(1, "a", 1.7e9, None, 1.7e9))
    assert publisher.ok("forget", "proxy-1") == (
        "forgotten: proxy-1\n"
        "note: its name stays among those that share rates: the server refuses: NOPERM No permissions to access a key\n"
    )
    assert publisher.published.announcements() == {}


def test_new_key_prints_the_public_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new.key"
    assert main(["--config", "none", "fleet", "new-key", str(path)]) == 0
    assert str(PrivateKey.read(path).public) in capsys.readouterr().out
    assert main(["fleet", "new-key", str(path)]) == 77
    assert capsys.readouterr().err == f"{path}: cannot be written: File exists\n"
