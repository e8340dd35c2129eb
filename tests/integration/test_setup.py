"""`mptcp-throttle setup` on a real host: what it finds, writes and refuses; and `setup networks` with a real client."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Final

import proxy_world
import pytest
from polling import eventually
from proxy_world import EXECUTABLES, Hosts, unique

from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Topology, build
from mptcp_throttle.config.load import load_config
from mptcp_throttle.errors import EX_COMMAND_LINE, EX_FAILURE
from mptcp_throttle.model import RateKind
from mptcp_throttle.setup.kept_files import MAIN_FILE, NETWORK_FILES, SQUID_SERVICE, SQUID_UPLOADS, shipped

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from mptcp_lab.host import Host
    from mptcp_throttle.rpc import Json

TOPOLOGY: Final = Topology(clients=(ClientSpec(wifi="backup"),))
PLAIN_PORT: Final = 3129
UNKNOWN_PORT: Final = 9100

# As a program in Go does that knows nothing of MPTCP.
LISTEN: Final = """
import socket, sys, time
with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 262) as listener:
    listener.bind(("::", int(sys.argv[1])))
    listener.listen()
    time.sleep(3600)
"""


def start_plain_server(proxy: Host) -> None:
    """A program that listens with plain TCP."""
    plain = proxy.start("plain", "python3", "-m", "http.server", str(PLAIN_PORT))
    plain.wait_until(lambda: proxy.listens(PLAIN_PORT), "listening")


@pytest.fixture(scope="module")
def proxy(hosts: Hosts) -> Host:
    """Squid listens with MPTCP, another program with plain TCP."""
    start_plain_server(hosts.lab.proxy)
    return hosts.lab.proxy


@pytest.fixture
def config(proxy: Host) -> Path:
    """The configuration as the package installs it."""
    return installed(proxy)


def installed(proxy: Host) -> Path:
    directory = proxy.directory / unique("setup")
    (directory / "networks.d").mkdir(parents=True)
    for name in NETWORK_FILES:
        (directory / "networks.d" / name).write_text(shipped(name))
    (directory / MAIN_FILE).write_text(shipped(MAIN_FILE))
    return directory / MAIN_FILE


def texts(config: Path) -> dict[str, str]:
    """All files below the directory of a configuration."""
    return {
        str(path.relative_to(config.parent)): path.read_text() for path in config.parent.rglob("*") if path.is_file()
    }


def cli(proxy: Host, config: Path, *arguments: str, user: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return proxy.run(*user, EXECUTABLES / "mptcp-throttle", "--config", config, *arguments, check=False)


def test_setup_proposes_what_the_loader_accepts_and_dry_run_writes_nothing(proxy: Host, config: Path) -> None:
    before = texts(config)
    shown = cli(proxy, config, "setup", "--dry-run")
    assert (shown.returncode, shown.stderr, texts(config)) == (0, "", before)
    assert f"squid listens on {PORT} with MPTCP" in shown.stdout
    shown = cli(proxy, config, "setup", "--dry-run", "--port", str(PLAIN_PORT))
    assert shown.returncode == 0
    assert f"listens on {PLAIN_PORT}, with plain TCP until it is started with MPTCP" in shown.stdout
    done = cli(proxy, config, "setup", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, [file["outcome"] for file in answer["files"]]) == (0, ["write"])
    proposed = {value["key"]: value["value"] for value in answer["values"]}
    assert (proposed["proxy.interface"], proposed["proxy.ports"]) == ("eth0", f"[{PORT}]")
    assert answer["next"][-1] == "mptcp-throttle doctor"
    assert {name for name, text in texts(config).items() if text != before[name]} == {MAIN_FILE}
    checked = cli(proxy, config, "check-config")
    assert f"valid: interface eth0, ports [{PORT}]" in checked.stdout
    again = cli(proxy, config, "setup")
    assert (again.returncode, f"{config}: needs no change" in again.stdout) == (0, True)


def test_setup_keeps_an_edited_file_unless_it_is_forced(proxy: Host, config: Path) -> None:
    edited = f"proxy: # mine\n  interface: eth7\n  ports: [{PORT}]\nsocket_group: root\nlog_level: debug\n"
    config.write_text(edited)
    kept = cli(proxy, config, "setup")
    assert (kept.returncode, config.read_text()) == (EX_FAILURE, edited)
    assert kept.stderr == f"setup: kept, since they have been edited: {config}; allowed: --force, which backs them up\n"
    assert "-  interface: eth7\n" in kept.stdout
    assert "+  interface: eth0\n" in kept.stdout
    forced = cli(proxy, config, "setup", "--force")
    assert forced.returncode == 0
    assert config.with_name(f"{MAIN_FILE}.before-setup").read_text() == edited
    loaded = load_config(config)
    assert (loaded.proxy.interfaces, loaded.log_level) == (("eth0",), "debug")


def test_setup_writes_nothing_where_a_file_of_a_network_cannot_be_read(proxy: Host, config: Path) -> None:
    network = config.parent / "networks.d/lte.yaml"
    network.write_bytes(b"name: \xff\n")
    done = cli(proxy, config, "setup")
    assert (done.returncode, done.stdout) == (os.EX_NOPERM, "")
    assert done.stderr == f"{network}: cannot be read: it is not UTF-8 text\n"
    assert config.read_text() == shipped(MAIN_FILE)


def test_setup_finds_the_interface_of_connected_clients(hosts: Hosts, proxy: Host, config: Path) -> None:
    with proxy_world.configured(hosts) as world:
        world.download()

        def clients() -> int:
            shown = proxy.run("ss", "-Htn", "state", "established", f"sport = :{PORT}").stdout
            return len(shown.splitlines())

        eventually(lambda: clients() == 2, "two subflows")
        shown = cli(proxy, config, "setup", "--dry-run")
    assert "used by the 2 clients that are connected now" in shown.stdout


def test_setup_refuses_a_host_where_it_cannot_work() -> None:
    with build(Topology()) as lab:
        proxy, config = lab.proxy, installed(lab.proxy)
        start_plain_server(proxy)
        done = cli(proxy, config, "setup")
        assert done.returncode == os.EX_UNAVAILABLE
        assert f"no program listens with MPTCP for other hosts (plain TCP: {PLAIN_PORT} by python3)" in done.stderr
        proxy.ip(["link add eth1 type veth peer name eth2", "link set eth1 up", "route add ::/0 dev eth1 metric 1"])
        done = cli(proxy, config, "setup", "--port", str(PLAIN_PORT))
        assert done.returncode == EX_COMMAND_LINE
        assert done.stderr.startswith("setup: clients may come through eth0, eth1 (the default route")
        proxy.sysctl({"net/mptcp/enabled": "0"})
        done = cli(proxy, config, "setup")
        assert (done.returncode, done.stderr.count("\n")) == (os.EX_OSERR, 1)
        assert done.stderr.startswith("setup: MPTCP is off; allowed: ")
        assert texts(config)[MAIN_FILE] == shipped(MAIN_FILE)


def test_setup_asks_for_ports_of_programs_that_it_does_not_know() -> None:
    with build(Topology()) as lab:
        proxy, config = lab.proxy, installed(lab.proxy)
        unknown = proxy.start("unknown", "python3", "-c", LISTEN, str(UNKNOWN_PORT))
        unknown.wait_until(lambda: proxy.listens(UNKNOWN_PORT, mptcp=True), "listening")
        done = cli(proxy, config, "setup")
        assert (done.returncode, texts(config)[MAIN_FILE]) == (EX_COMMAND_LINE, shipped(MAIN_FILE))
        assert done.stderr == (
            f"setup: no known proxy accepts MPTCP, but other programs do ({UNKNOWN_PORT} by python3); allowed: --port,"
            " once for each port of the proxy, as setup does not know these programs\n"
        )
        done = cli(proxy, config, "setup", "--port", str(UNKNOWN_PORT))
        assert (done.returncode, f"ports: [{UNKNOWN_PORT}]" in config.read_text()) == (0, True)


NFT_DNAT: Final = f"""\
table ip lab {{
    chain pre {{
        type nat hook prerouting priority -100;
        tcp dport vmap {{ 22 : accept, {PORT} : goto lead }}
    }}
    chain lead {{
        ip protocol tcp dnat to 172.17.0.2:3128
    }}
}}
"""
NFT_REDIRECT: Final = f"""\
table inet lab {{
    map ports {{
        type inet_service : inet_service; flags interval; elements = {{ 80 : {PORT}, 8000-8010 : {PORT}, 22 : 23 }}
    }}
    chain pre {{
        type nat hook prerouting priority -100;
        meta l4proto tcp fib daddr type local redirect to :tcp dport map @ports
    }}
}}
"""
LED_AWAY: Final = "they do not end at the proposed port, and are not throttled"


@pytest.mark.parametrize(
    ("rules", "notes"),
    [
        (NFT_DNAT, [f"port {PORT} are sent to 172.17.0.2, port 3128 (chain lead of table ip lab): {LED_AWAY}"]),
        (
            NFT_REDIRECT,
            [
                f"port {source} are sent to this host, port {PORT} (chain pre of table inet lab): their uploads are not"
                " throttled"
                for source in ("80", "8000-8010")
            ],
        ),
    ],
)
def test_setup_says_where_nftables_sends_connections(proxy: Host, config: Path, rules: str, notes: list[str]) -> None:
    assert "are sent to" not in cli(proxy, config, "setup", "--dry-run").stdout
    file = config.with_name("rules.nft")
    file.write_text(rules)
    proxy.run("nft", "-f", file)
    try:
        shown = cli(proxy, config, "setup", "--dry-run")
    finally:
        proxy.run("nft", "flush", "ruleset")
    assert sent(shown.stdout) == notes


def sent(shown: str) -> list[str]:
    """The notes about address translation, by port."""
    begin = "note: connections to "
    return sorted(line.removeprefix(begin) for line in shown.splitlines() if line.startswith(begin))


@pytest.mark.parametrize("tool", ["iptables-legacy", "iptables-nft", "ip6tables-legacy", "ip6tables-nft"])
def test_setup_says_where_iptables_sends_connections(proxy: Host, config: Path, tool: str) -> None:
    container = "[fd00:17::2]" if tool.startswith("ip6") else "172.17.0.2"
    nat = (tool, "-t", "nat")
    # As Docker does.
    proxy.run(*nat, "-N", "DOCKER")
    proxy.run(*nat, "-A", "PREROUTING", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "DOCKER")
    target = ("DNAT", "--to-destination", f"{container}:3128")
    proxy.run(*nat, "-A", "DOCKER", "!", "-i", "docker0", "-p", "tcp", "--dport", str(PORT), "-j", *target)
    proxy.run(*nat, "-A", "DOCKER", "-p", "udp", "--dport", str(PORT), "-j", "REDIRECT", "--to-ports", "53")
    redirect = ("REDIRECT", "--to-ports", str(PORT))
    proxy.run(*nat, "-A", "PREROUTING", "-p", "tcp", "-m", "multiport", "--dports", "80,443", "-j", *redirect)
    try:
        shown = cli(proxy, config, "setup", "--dry-run")
    finally:
        proxy.run(*nat, "-F")
        proxy.run(*nat, "-X")
    address = container.strip("[]")
    assert sent(shown.stdout) == [
        f"port 80, 443 are sent to this host, port {PORT} (chain PREROUTING of table nat ({tool})): their uploads are"
        " not throttled",
        f"port {PORT} are sent to {address}, port 3128 (chain DOCKER of table nat ({tool})): {LED_AWAY}",
    ]
    assert sent(cli(proxy, config, "setup", "--dry-run").stdout) == []


@pytest.fixture
def world(hosts: Hosts) -> Iterator[proxy_world.ProxyWorld]:
    """The sniffer runs, and the client downloads on both of its networks."""
    with proxy_world.configured(hosts) as running:
        running.services.start_sniffer()
        eventually(running.services.captures, "capturing")
        running.download()

        def subflows() -> int:
            return sum(len(item["subflows"]) for item in running.services.ask_sniffer("snapshot")["connections"])

        eventually(lambda: subflows() == 2, "both subflows known")
        yield running


def beside(world: proxy_world.ProxyWorld, config: Path) -> Path:
    """That configuration, with the sockets of the running sniffer."""
    run = world.services.sockets.sniffer.parents[1]
    config.write_text(config.read_text().replace("run_directory: /run/mptcp-throttle", f"run_directory: {run}"))
    return config


def subnets(answer: Json) -> list[tuple[int, list[str]]]:
    return [(item["preference"], [subnet["subnet"] for subnet in item["subnets"]]) for item in answer["networks"]]


def test_setup_networks_proposes_what_the_sniffer_sees(
    world: proxy_world.ProxyWorld, proxy: Host, config: Path
) -> None:
    beside(world, config)
    before = texts(config)
    done = cli(proxy, config, "setup", "networks", "--for", "1s", "--json")
    assert done.returncode == 0, done.stderr
    assert subnets(json.loads(done.stdout)) == [(1, [str(ETHERNET.v4)]), (2, [str(WIFI.v4)])]
    cli(proxy, config, "setup", "--dry-run", "networks", "--for", "500ms", "--write")
    assert texts(config) == before
    written = cli(proxy, config, "setup", "networks", "--for", "1s", "--write", "--cap", "3mbit")
    assert written.returncode == 0, written.stderr
    assert "clients use it as a backup, so it is expensive" in written.stdout
    networks = load_config(config).networks
    assert [(item.preference, item.subnets, str(item.rates.get(RateKind.CAP))) for item in networks] == [
        (1, (ETHERNET.v4,), "None"),
        (2, (WIFI.v4,), "3mbit"),
    ]
    aside = {name for name in texts(config) if name.endswith(".before-setup")}
    assert aside == {f"networks.d/{name}.before-setup" for name in NETWORK_FILES}
    assert cli(proxy, config, "check-config").returncode == 0
    (config.parent / "networks.d/network-1.yaml").write_text("name: mine\nsubnets: [192.0.2.0/24]\npreference: 1\n")
    edited = texts(config)
    kept = cli(proxy, config, "setup", "networks", "--for", "500ms", "--write", "--cap", "5mbit")
    assert (kept.returncode, texts(config)) == (EX_FAILURE, edited)
    assert f"kept, since they have been edited: {config.parent}/networks.d/network-1.yaml" in kept.stderr


def test_setup_networks_writes_nothing_that_is_invalid_together(world: proxy_world.ProxyWorld, proxy: Host) -> None:
    config = world.services.config
    before = texts(config)
    done = cli(proxy, config, "setup", "networks", "--for", "1s", "--write")
    assert done.returncode == os.EX_CONFIG
    assert f"{config.parent}/networks.d/network-1.yaml:" in done.stderr
    assert "is a subnet of network" in done.stderr
    assert texts(config) == before


def test_setup_networks_ends_early_with_what_it_has(world: proxy_world.ProxyWorld, proxy: Host, config: Path) -> None:
    beside(world, config)
    program = (EXECUTABLES / "mptcp-throttle", "--config", config, "setup", "networks", "--for", "1h", "--json")
    output = config.with_name("answer.json")
    # Tests that run in the background have SIGINT ignored, and so would this program, which at a terminal has not.
    running = proxy.start("setup-networks", "env", "--default-signal=INT", *program, output=output)
    running.wait_until(lambda: "Ctrl-C ends it earlier" in running.log_text(), "looking")
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(10) == 0, running.log_text()
    assert len(json.loads(output.read_text())["networks"]) == 2


def test_setup_networks_without_connections_is_one_line(hosts: Hosts, proxy: Host, config: Path) -> None:
    with proxy_world.configured(hosts) as world:
        beside(world, config)
        world.services.start_sniffer()
        eventually(world.services.captures, "capturing")
        done = cli(proxy, config, "setup", "networks", "--for", "500ms")
    assert (done.returncode, done.stdout) == (os.EX_UNAVAILABLE, "")
    assert done.stderr.splitlines()[-1].startswith("setup networks: no MPTCP connection has been seen; allowed: ")


# Nothing is written to the machine's own directories.
ELSEWHERE: Final = 'mount --bind "$1" /etc/systemd/system; mount --bind "$2" /etc/squid/conf.d; shift 2; exec "$@"'


def test_setup_writes_the_drop_in_of_a_service_and_how_to_undo_it(proxy: Host, config: Path) -> None:
    units, squid = config.with_name("units"), config.with_name("squid")
    units.mkdir()
    squid.mkdir()
    user = ("unshare", "--mount", "sh", "-ec", ELSEWHERE, "sh", str(units), str(squid))
    arguments = ("setup", "--server-drop-in", "squid", "--json")
    shown = cli(proxy, config, *arguments, "--dry-run", user=user)
    assert (shown.returncode, [*units.iterdir(), *squid.iterdir()]) == (0, []), shown.stderr
    answer = json.loads(cli(proxy, config, *arguments, user=user).stdout)
    assert (units / "squid.service.d/zz-mptcp-throttle.conf").read_text() == shipped(SQUID_SERVICE)
    assert (squid / "mptcp-throttle.conf").read_text() == shipped(SQUID_UPLOADS)
    assert "systemctl restart squid.service" in answer["next"]
    assert answer["undo"][0].startswith("rm /etc/systemd/system/squid.service.d/zz-mptcp-throttle.conf ")
    again = json.loads(cli(proxy, config, *arguments, user=user).stdout)
    assert [file["outcome"] for file in again["files"]] == ["unchanged"] * 3
    (squid / "mptcp-throttle.conf").write_text("# mine\n")
    kept = cli(proxy, config, *arguments, user=user)
    assert (kept.returncode, (squid / "mptcp-throttle.conf").read_text()) == (EX_FAILURE, "# mine\n")
