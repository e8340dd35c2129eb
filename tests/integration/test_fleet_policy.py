"""A policy of a fleet: published by one command, adopted by two daemons while clients download, undone by nothing."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from polling import eventually
from proxy_world import FREE, Hosts, ProxyWorld, attended, receive_rates, unique

from mptcp_lab.host import Host
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.valkey_server import Authority, ValkeyServer, programs
from mptcp_throttle.model import AccessNetwork, RateKind
from mptcp_throttle.policy_bundle.bundle import Bundle
from mptcp_throttle.policy_bundle.signature import PrivateKey
from mptcp_throttle.units import Rate
from mptcp_throttle.valkey.lease_names import NAMES, RECORD, hash_of

WIFI, ETHERNET = WIFI_FIRST
DOCS: Final = Path(__file__).parents[2] / "docs"
HOWTO: Final = DOCS / "howto/publish-policy.md"
SET_UP: Final = DOCS / "explanation/fleet.md"


def documented_rights() -> dict[str, str]:
    """The users of the server's ACL as the document has them."""
    return dict(re.findall(r"^user (\S+) on >PASSWORD (.*)$", HOWTO.read_text(encoding="utf-8"), re.MULTILINE))


@dataclass
class Fleet:
    """The world's proxy and a second one, their server, and a publisher with files of its own."""

    world: ProxyWorld
    second: Services
    server: ValkeyServer
    publisher: Services
    key: Path

    def publish(self, *networks: AccessNetwork) -> None:
        self.publisher.configure(networks)
        self.fleet("publish", "--key", str(self.key), "--author", "alice")

    def fleet(self, *words: str, check: bool = True) -> str:
        """What `mptcp-throttle fleet` prints to the publisher."""
        return self.publisher.cli("fleet", *words, check=check).stdout

    def status(self) -> Any:  # noqa: ANN401
        return self.publisher.cli_json("fleet", "status")

    @property
    def services(self) -> tuple[Services, Services]:
        return self.world.services, self.second

    def wait_used(self, number: int, within: float = 10.0) -> None:
        eventually(lambda: [*map(used, self.services)] == [number] * 2, f"policy {number} used", within=within)

    def problems(self) -> list[str | None]:
        """What the proxies say at the server, by their names."""
        return [proxy["problem"] for proxy in self.status()["proxies"]]


def used(services: Services) -> int | None:
    policy = services.status()["daemon"]["policy"]["in_use"]
    return None if policy is None else int(policy["number"])


def why_not_newer(services: Services) -> str:
    return str(services.status()["daemon"]["policy"]["away"])


def with_cap(rate: str) -> AccessNetwork:
    return ETHERNET.with_rates({RateKind.CAP: Rate.parse(rate)})


def server_on(origin: Host, address: str) -> ValkeyServer:
    """With TLS, and users as documented, who need no password."""
    directory = origin.directory / unique("valkey")
    authority = Authority.made_in(directory / "authority")
    authority.sign("server", f"IP:{address}")
    rights = documented_rights()
    server = ValkeyServer(
        directory, "tls-auth-clients no", host=origin, address=address, authority=authority, rights=rights
    )
    server.start()
    return server


@pytest.fixture
def fleet(hosts: Hosts) -> Iterator[Fleet]:
    origin, address = hosts.lab.origin, str(hosts.lab.origin_address(4))
    server = server_on(origin, address)
    private, key = PrivateKey.new(), server.directory / "policy.key"
    private.write(key)
    policy = {"fleet": "europe", "keys": [str(private.public)]}
    first = Services(hosts.lab.proxy, name=unique("throttle"))
    second = Services(origin, name=unique("throttle"), daemon={"pacing": False, "classifier": "nft"})
    publisher = Services(origin, name=unique("publisher"))
    password = server.directory / "password"
    password.write_text("any\n", encoding="ascii")
    for services, name in ((first, "one"), (second, "two"), (publisher, "adm")):
        services.configure_section(
            "fleet",
            url=f"valkeys://{'publisher' if services is publisher else 'proxy-1'}@{address}",
            name=name,
            password_file=str(password),
            tls={"ca": str(server.directory / "authority/ca.pem")},
            share_clients=True,
            policy=policy,
        )
    try:
        with attended(hosts, first) as world, second:
            first.start_sniffer()
            first.start_daemon()
            first.wait_ready()
            yield Fleet(world, second, server, publisher, key)
    finally:
        server.stop()


def documented_server(origin: Host) -> Path:
    """The server's file, written by the document; beside it are the users and the certificates that it names."""
    directory = origin.directory / unique("documented")
    directory.mkdir()
    shown = re.sub("/etc/valkey|/root", str(directory), SET_UP.read_text(encoding="utf-8"))
    commands = re.findall(r"^(?:openssl req|openssl x509|printf) .*$", shown, re.MULTILINE)
    subprocess.run(["bash", "-ec", "\n".join(commands)], cwd=directory, check=True, capture_output=True)
    users = re.findall(r"^user .*$", shown, re.MULTILINE)
    (directory / "users.acl").write_text("\n".join(users) + "\n", encoding="ascii")
    lines = re.search(r"^bind .*?^aclfile \S+$", shown, re.MULTILINE | re.DOTALL)
    assert lines is not None
    file = directory / "valkey.conf"
    file.write_text(f"{lines[0]}\ndir {directory}\n", encoding="ascii")
    return file


def test_server_set_up_as_documented_answers_its_users_alone(hosts: Hosts) -> None:
    origin, address = hosts.lab.origin, str(hosts.lab.origin_address(4))
    server, client = programs()
    file = documented_server(origin)
    process = origin.start("documented-server", server, file)

    def answer(*login: str, tls: bool = True) -> str:
        trust = ("--tls", "--cacert", str(file.parent / "ca.pem")) if tls else ()
        command = (client, "-h", address, *trust, *login, "--no-auth-warning", "PING")
        result = hosts.lab.proxy.run(*command, check=False)
        return (result.stdout + result.stderr).strip()

    try:
        process.wait_until(lambda: answer("--user", "proxy-1", "--pass", "PASSWORD") == "PONG", "answering", 30)
        assert answer("--user", "admin", "--pass", "ADMIN-PASSWORD") == "PONG"
        trust = ssl.create_default_context(cafile=file.parent / "ca.pem")
        trust.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 of Debian 13
        with in_namespace(hosts.lab.proxy.namespace):
            stream = socket.create_connection((address, 6379), 5)
        trust.wrap_socket(stream, server_hostname="valkey.example.net").close()
        assert answer().startswith("NOAUTH")
        assert "WRONGPASS" in answer("--user", "proxy-1", "--pass", "another")
        assert "PONG" not in answer("--user", "proxy-1", "--pass", "PASSWORD", tls=False)
    finally:
        process.stop()


def test_policy_changes_the_rate_of_running_transfers(fleet: Fleet) -> None:
    world = fleet.world
    world.begin_settled()
    assert used(world.services) is None
    assert world.capped()[0].rate == 1_000_000
    fleet.publish(WIFI, with_cap("8mbit"))
    eventually(lambda: world.capped()[0].rate == 8_000_000, "the new rate applied", within=6)
    fleet.wait_used(1)
    fleet.publish(WIFI, with_cap("4mbit"))
    fleet.wait_used(2)
    assert [proxy["number"] for proxy in fleet.status()["proxies"]] == [2, 2]
    assert fleet.problems() == [None, None]
    fleet.fleet("rollback", "--key", str(fleet.key))
    fleet.wait_used(3)
    eventually(lambda: world.capped()[0].rate == 8_000_000, "the earlier rate applied")
    status = fleet.status()
    assert [policy["number"] for policy in status["policies"]] == [3, 2, 1]
    assert status["policies"][0]["digest"] == status["policies"][2]["digest"]
    assert "policy of fleet europe: 3 (" in world.services.cli("status").stdout
    assert "those of policy 3 (" in world.services.cli("check-config").stdout


def test_publisher_forgets_a_proxy_that_is_gone_and_none_that_shares_rates(fleet: Fleet) -> None:
    for name in ("gone", "present"):
        fleet.server.cli("HSET", NAMES.decode(), name, "")
    fleet.server.cli("HSET", hash_of("present").decode(), RECORD.decode(), "0123456789abcdef 1 1")
    assert fleet.fleet("forget", "gone") == "forgotten: gone\n"
    assert fleet.fleet("forget", "present", check=False) == ""
    assert fleet.server.cli("HKEYS", NAMES.decode()) == "present"


def test_server_that_is_lost_changes_nothing(fleet: Fleet) -> None:
    fleet.publish(WIFI, with_cap("8mbit"))
    fleet.wait_used(1)
    fleet.server.stop()
    eventually(lambda: all("refused" in why_not_newer(each) for each in fleet.services), "the server is away")
    assert fleet.world.daemon.stop() == 0
    fleet.world.services.start_daemon()
    fleet.world.services.wait_ready()
    fleet.wait_used(1)
    fleet.server.start()
    eventually(lambda: len(fleet.status()["proxies"]) == 2, "both have said what they use")
    fleet.wait_used(1)
    refused = fleet.publisher.cli("fleet", "publish", "--key", str(fleet.key), check=False)
    assert "allowed: --number 2" in refused.stderr
    fleet.publisher.configure([WIFI, with_cap("3mbit")])
    fleet.fleet("publish", "--key", str(fleet.key), "--number", "2")
    fleet.wait_used(2)


def test_forged_and_older_policies_are_refused_and_shown(fleet: Fleet) -> None:
    fleet.publish(WIFI, with_cap("8mbit"))
    fleet.publish(WIFI, with_cap("4mbit"))
    fleet.wait_used(2)
    forged = PrivateKey.new().sign(Bundle("europe", 9, 1, "mallory", {"networks.d/wifi.yaml": "x"}))
    key = "mptcp-throttle:policy:europe"
    fleet.server.cli("hsetnx", key, "9", forged.decode())
    problem = "policy 9: is not signed with a key of fleet.policy.keys"
    eventually(lambda: fleet.problems() == [problem] * 2, "refused")
    fleet.server.cli("hdel", key, "9", "2")
    problem = "policy 1, the newest on the server, is older than 2; allowed: a newer one"
    eventually(lambda: fleet.problems() == [problem] * 2, "refused")
    fleet.wait_used(2)
    assert problem in fleet.world.services.cli("doctor", check=False).stdout


def test_policy_that_is_not_valid_at_one_proxy_is_used_by_the_other(fleet: Fleet) -> None:
    fleet.publish(WIFI, with_cap("8mbit"))
    fleet.wait_used(1)
    service = yaml.safe_load(fleet.second.config.read_text(encoding="utf-8"))
    proxies = {"work": service.pop("proxy")}
    for each in (fleet.second, fleet.publisher):
        section = yaml.safe_load(each.config.read_text(encoding="utf-8"))
        section.pop("proxy", None)
        each.config.write_text(yaml.safe_dump({**section, "proxies": proxies}), encoding="utf-8")
    fleet.second.stop()
    fleet.second.start_sniffer()
    fleet.second.start_daemon()
    fleet.second.wait_ready()
    networks = fleet.publisher.directory / "networks.d"
    (networks / "ethernet.yaml").write_text(
        (networks / "ethernet.yaml").read_text(encoding="utf-8").replace("proxy: null", "proxy: work"), encoding="utf-8"
    )
    fleet.fleet("publish", "--key", str(fleet.key))
    eventually(lambda: [each["number"] for each in fleet.status()["proxies"]] == [1, 2], "one has it")
    said = re.compile(r"policy 2: networks\.d/ethernet\.yaml:\d+: proxy: work: is not in proxies of .*")
    eventually(lambda: said.fullmatch(fleet.problems()[0] or "") is not None, "refused", seen=fleet.problems)


def test_proxy_cannot_write_policies(fleet: Fleet) -> None:
    fleet.publish(WIFI, with_cap("8mbit"))
    for command in ("hset", "hsetnx", "hdel"):
        words = ("mptcp-throttle:policy:europe", "1", *(["x"] if command != "hdel" else []))
        assert "NOPERM" in fleet.server.cli(command, *words, user="proxy-1")
    assert "NOPERM" in fleet.server.cli("flushall", user="proxy-1")


@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_kill_after_writing_leaves_a_whole_policy(fleet: Fleet, delay: float) -> None:
    fleet.publish(WIFI, with_cap("8mbit"))
    fleet.wait_used(1)
    current = fleet.world.services.directory / "state/policy/current"
    fleet.publish(WIFI, with_cap("4mbit"))
    eventually(lambda: current.readlink().name == "europe.2", "written", within=10)
    time.sleep(delay)
    fleet.world.daemon.kill()
    fleet.server.stop()
    fleet.world.services.start_daemon()
    fleet.world.services.wait_ready()
    assert used(fleet.world.services) == 2


def damage(fleet: Fleet, number: int) -> tuple[Path, str]:
    """What a file system may leave of a file after a power failure: its size. The file, and what it was."""
    path = fleet.world.services.directory / f"state/policy/europe.{number}/networks.d/ethernet.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_bytes(bytes(len(text)))
    return path, text


def problem_of(services: Services) -> str:
    return str(services.status()["daemon"]["policy"]["problem"])


def test_damaged_policy_is_fetched_again_after_the_start(fleet: Fleet) -> None:
    world = fleet.world
    fleet.publish(WIFI, with_cap("8mbit"))
    fleet.wait_used(1)
    world.begin_settled()
    path, text = damage(fleet, 1)
    world.daemon.kill()
    world.services.start_daemon()
    world.services.wait_ready()
    fleet.wait_used(1)
    eventually(lambda: [each.rate for each in world.capped()] == [8_000_000], "the rate of the policy applied")
    eventually(lambda: fleet.problems() == [None, None], "no problem any more")
    assert path.read_text(encoding="utf-8") == text
    lines = [line for line in world.services.log().splitlines() if "policy 1: networks.d/ethernet.yaml" in line]
    assert len(lines) == 1
    assert lines[0].endswith("; local files are used instead")


def test_client_is_free_beside_a_damaged_policy_until_it_is_mended(fleet: Fleet) -> None:
    """The local files do not have the network of his capped subflow, which an earlier instance has left."""
    world = fleet.world
    fleet.publish(WIFI, with_cap("8mbit"))
    fleet.wait_used(1)
    world.begin_settled()
    fleet.server.stop()
    world.services.configure([WIFI])
    path, text = damage(fleet, 1)
    world.daemon.kill()
    world.services.start_daemon()
    world.services.wait_ready()
    assert used(world.services) is None
    assert "policy 1: networks.d/ethernet.yaml: is not valid YAML" in problem_of(world.services)
    assert "local files are used instead" in world.services.cli("reload").stdout
    eventually(lambda: not (world.capped() or world.restrained() or world.assignments()), "the subflow is free")
    eventually(lambda: receive_rates(world.lab.client, 2)["eth0"] > FREE, "Ethernet in use")
    instance = world.daemon
    path.write_text(text, encoding="utf-8")
    world.services.cli("reload")
    assert used(world.services) == 1
    assert problem_of(world.services) == "None"
    eventually(lambda: [each.rate for each in world.capped()] == [8_000_000], "the rate of the policy applied")
    assert world.daemon is instance
