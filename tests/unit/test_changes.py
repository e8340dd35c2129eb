from pathlib import Path

import pytest
from config_files import write_config

from mptcp_throttle.config.changes import changes
from mptcp_throttle.config.load import load_config
from mptcp_throttle.config.schema import Config

SERVICE = """\
proxy: {interface: eth0, ports: [8080]}
sniffer: {trust: handshake}
daemon: {linger: 5s}
socket_group: root
"""
LTE = "name: lte\nsubnets: [10.1.0.0/24]\npreference: 2\ncap: 1mbit\n"
WIFI = "name: wifi\nsubnets: [10.2.0.0/24]\npreference: 1\n"


def config(directory: Path, service: str = SERVICE, lte: str = LTE) -> Config:
    return load_config(write_config(directory, service, lte=lte, wifi=WIFI))


BOTH = ": needs a restart of mptcp-sniffer and mptcp-throttled"
ALL = ": needs a restart of mptcp-sniffer, mptcp-throttled and mptcp-throttle-web"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("linger: 5s", "linger: 1500ms", "daemon.linger 5s -> 1.5s"),
        ("linger: 5s", "reconcile_interval: 3s", "daemon.reconcile_interval 1s -> 3s"),
        ("linger: 5s", "other_traffic: 50mbit", "daemon.other_traffic null -> 50mbit"),
        (
            "linger: 5s",
            "mark_mask: 0xff00",
            "daemon.mark_mask 0xffff0000 -> 0x0000ff00: needs a restart of mptcp-throttled",
        ),
        ("linger: 5s", "control_group: 1%", "daemon.control_group null -> 1%: needs a restart of mptcp-throttled"),
        ("proxy", "log_level: debug\nproxy", "log_level info -> debug"),
        ("eth0", "eth1", f"proxy.interfaces eth0 -> eth1{BOTH}"),
        ("[8080]", "[8080, 3128]", f"proxy.ports 8080 -> 3128, 8080{BOTH}"),
        ("trust: handshake", "trust: token", f"sniffer.trust handshake -> token{BOTH}"),
        ("trust: handshake", "kernel_view: false", f"sniffer.kernel_view true -> false{BOTH}"),
        ("trust: handshake", "idle_expiry: 3650d", f"sniffer.idle_expiry 86400s -> 315360000s{BOTH}"),
        ("socket_group: root", "socket_group: null", f"socket_group root -> null{ALL}"),
        ("proxy", "run_directory: /run/x\nproxy", f"run_directory /run/mptcp-throttle -> /run/x{ALL}"),
        (
            "proxy",
            "fleet: {link: 1gbit}\nproxy",
            "fleet.link 10gbit -> 1gbit: needs a restart of mptcp-throttled",
        ),
        (
            "proxy",
            "state_directory: /x\nproxy",
            "state_directory /var/lib/mptcp-throttle -> /x: needs a restart of mptcp-throttled",
        ),
    ],
)
def test_changed_setting_is_one_line_with_the_restart_it_needs(tmp_path: Path, old: str, new: str, line: str) -> None:
    before = config(tmp_path)
    after = config(tmp_path, SERVICE.replace(old, new, 1))
    assert [str(change) for change in changes(before, after)] == [line]


def test_proxies_are_one_change_whatever_changes_of_them(tmp_path: Path) -> None:
    several = "proxies: {work: {interface: eth0, ports: [8080]}, guests: {interface: wg0, ports: [20000-20099, 8443]}}"
    one = SERVICE.replace("proxy: {interface: eth0, ports: [8080]}", several)
    assert one != SERVICE
    moved = one.replace("[8080]", "[8080, 8443]").replace(", 8443]}}", "]}}")
    single, before, after = config(tmp_path), config(tmp_path, one), config(tmp_path, moved)
    present = "guests: 8443, 20000-20099 on wg0; work: 8080 on eth0"
    assert before.proxy.ports == after.proxy.ports
    assert [str(change) for change in changes(before, after)] == [
        f"proxies {present} -> guests: 20000-20099 on wg0; work: 8080, 8443 on eth0{BOTH}"
    ]
    assert [str(change) for change in changes(single, before)] == [
        f"proxy.interfaces eth0 -> null{BOTH}",
        f"proxy.ports 8080 -> null{BOTH}",
        f"proxies null -> {present}{BOTH}",
    ]


@pytest.mark.parametrize(
    ("lte", "lines"),
    [
        (LTE.replace("1mbit", "5mbit"), ["network lte: cap 1mbit -> 5mbit"]),
        (
            LTE.replace("cap: 1mbit", "limit: 5mbit"),
            ["network lte: cap 1mbit -> null", "network lte: limit null -> 5mbit"],
        ),
        (LTE.replace("2\n", "3\n"), ["network lte: preference 2 -> 3"]),
        (LTE + "client_prefix: {ipv6: 56}\n", ["network lte: client_prefix ipv4 32, ipv6 64 -> ipv4 32, ipv6 56"]),
        (LTE + "uplink: {cap: 250kbit}\n", ["network lte: uplink.cap null -> 250kbit"]),
        (LTE + "uplink: {limit: 4mbit}\n", ["network lte: uplink.limit null -> 4mbit"]),
        (
            LTE + "healthy: {rtt: 400ms, loss: 5%}\n",
            ["network lte: healthy rtt null, loss null, rate null -> rtt 400ms, loss 5%, rate null"],
        ),
        (LTE + "per: network\n", ["network lte: per client -> network"]),
        (
            LTE.replace("10.1.0.0/24", "10.1.1.0/24"),
            ["network lte: subnet 10.1.0.0/24 removed", "network lte: subnet 10.1.1.0/24 added"],
        ),
        (LTE.replace("lte", "dsl"), ["network lte removed", "network dsl added"]),
    ],
)
def test_changed_key_of_a_network_needs_no_restart(tmp_path: Path, lte: str, lines: list[str]) -> None:
    differences = changes(config(tmp_path), config(tmp_path, lte=lte))
    assert [str(change) for change in differences] == lines
    assert not any(change.restart for change in differences)


def test_comments_order_and_file_names_are_no_change(tmp_path: Path) -> None:
    before = config(tmp_path)
    lte = "# relieved\n" + LTE.replace("1mbit", "1000kbit")
    service = "\n\n" + SERVICE + "networks_directory: networks.d\n"
    after = load_config(write_config(tmp_path, service, a=WIFI, b=lte))
    assert changes(before, after) == ()
