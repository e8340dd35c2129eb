"""Invariant I5: the two services start, stop and crash in any order. And every refusal is one clear line."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import EXECUTABLES, Bench, eventually
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.origin import start_origin
from mptcp_lab.services import Services
from mptcp_lab.squid import start_squid
from mptcp_lab.topology import Lab, Topology, build
from mptcp_throttle.rpc import RpcClient


@pytest.fixture
def lab() -> Iterator[Lab]:
    with build(Topology()) as built:
        yield built


@pytest.mark.parametrize("first", ["sniffer", "daemon"])
def test_either_service_may_start_first(lab: Lab, first: str) -> None:
    services = Services(lab.proxy)
    starts = [services.start_sniffer, services.start_daemon]
    for start in starts if first == "sniffer" else reversed(starts):
        start()
        time.sleep(2)
    services.wait_ready()
    assert services.status()["sniffer"]["connected"]
    services.__exit__(None, None, None)


def test_each_service_survives_the_others_restart(work: Bench) -> None:
    services = work.services
    assert services.sniffer is not None
    assert services.daemon is not None
    download = work.download()
    before = work.wait_capped()

    services.sniffer.kill()
    eventually(lambda: not work.marks(), "caps lifted without a sniffer", within=1.5)
    services.start_sniffer()
    services.wait_ready()
    (again,) = work.wait_capped()
    assert (again.token, again.client_port) == (before[0].token, before[0].client_port)

    services.daemon.kill()
    services.start_daemon()
    services.wait_ready()
    eventually(lambda: len(work.capped()) == 1, "the table is pulled again and its caps are in force", within=2)
    download.stop()


def test_a_sniffer_that_stops_in_order_lifts_all_caps_too(lab: Lab) -> None:
    start_squid(lab.proxy)
    services = Services(lab.proxy)
    # The daemon first: it meets the same missing socket before the sniffer has started and after it has stopped.
    services.start_daemon()
    time.sleep(2)
    sniffer = services.start_sniffer()
    services.wait_ready()
    work = Bench(lab, start_origin(lab.origin), services)
    download = work.download()
    work.wait_capped()
    sniffer.stop()
    eventually(lambda: not work.marks(), "caps lifted without a sniffer", within=1.5)
    download.stop()
    services.__exit__(None, None, None)


def test_a_daemon_that_lags_behind_the_history_resynchronises(work: Bench) -> None:
    sniffer = RpcClient(work.services.directory / "run" / "sniffer.sock")
    assert sniffer.call("changes", "an earlier epoch", 0, 5) == {"resync": True}


def run_service(lab: Lab, name: str, config: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    result = lab.proxy.run(*prefix, EXECUTABLES / name, "--config", config, *arguments, check=False)
    assert "Traceback" not in result.stderr
    return result.returncode, result.stderr.strip()


@pytest.mark.parametrize("name", ["mptcp-sniffer", "mptcp-throttled"])
def test_a_second_instance_is_refused_and_the_first_not_disturbed(work: Bench, name: str) -> None:
    status, line = run_service(work.lab, name, work.services.config)
    assert status == os.EX_TEMPFAIL
    assert line.endswith(f"{name}.lock: {name} is running already")
    assert work.services.status()["sniffer"]["connected"]


def test_cleanup_is_refused_while_the_daemon_runs(work: Bench) -> None:
    status, line = run_service(work.lab, "mptcp-throttled", work.services.config, "--cleanup")
    assert (status, line.endswith("mptcp-throttled is running already")) == (os.EX_TEMPFAIL, True)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mptcp-sniffer", "nosuch0: cannot be captured: "),
        ("mptcp-throttled", "interface nosuch0 does not exist"),
    ],
)
def test_a_missing_interface_is_one_line(lab: Lab, name: str, line: str) -> None:
    config = Services(lab.proxy).config
    config.write_text(config.read_text().replace("eth0", "nosuch0"))
    status, error = run_service(lab, name, config)
    assert status == os.EX_UNAVAILABLE
    assert error.splitlines()[-1].startswith(line)
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "capability"), [("mptcp-sniffer", "CAP_NET_RAW"), ("mptcp-throttled", "CAP_NET_ADMIN, CAP_NET_RAW")]
)
def test_a_missing_capability_is_one_line(lab: Lab, name: str, capability: str) -> None:
    without = ("setpriv", "--bounding-set", "-net_admin,-net_raw", "--inh-caps", "-all")
    status, error = run_service(lab, name, Services(lab.proxy).config, prefix=without)
    assert status == os.EX_NOPERM
    assert error == f"missing capability: {capability}; run as root or grant it in the unit"


def test_without_the_kernels_list_the_sniffer_says_so_and_goes_on(lab: Lab) -> None:
    services = Services(lab.proxy)
    without = ("setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-all")
    sniffer = lab.proxy.start("limited", *without, EXECUTABLES / "mptcp-sniffer", "--config", services.config)
    socket = services.directory / "run" / "sniffer.sock"
    sniffer.wait_until(socket.exists, "answering")
    status = RpcClient(socket).call("status")
    assert (status["capturing"], status["kernel_view"]["problem"]) == (
        True,
        "the kernel's list of subflows cannot be read (needs CAP_NET_ADMIN)",
    )
    assert "needs CAP_NET_ADMIN" in sniffer.log.read_text(encoding="utf-8")


def test_a_kernel_feature_is_looked_for_without_changing_anything(lab: Lab) -> None:
    probe = (
        "from mptcp_throttled.kernel.tc import TrafficControl\n"
        "tc = TrafficControl()\n"
        "eth0 = next(interface for interface in tc.interfaces() if interface.name == 'eth0')\n"
        "print([tc.knows_qdisc(eth0, kind) for kind in ('htb', 'no_such_kind')])"
    )
    before = kernel_state(lab.proxy)
    assert lab.proxy.run(EXECUTABLES / "python", "-c", probe).stdout == "[True, False]\n"
    assert kernel_state(lab.proxy) == before


@pytest.mark.parametrize("name", ["mptcp-sniffer", "mptcp-throttled"])
def test_a_bad_configuration_is_refused_by_both_services_and_nothing_is_applied(lab: Lab, name: str) -> None:
    before = lab.proxy.run("tc", "qdisc", "show").stdout
    config = Services(lab.proxy).config
    (config.parent / "networks.d" / "wifi.yaml").write_text("name: wifi\nsubnets: [10.1.0.0/16]\npreference: 1\n")
    status, error = run_service(lab, name, config)
    assert status == os.EX_CONFIG
    assert [line.split(": ")[1] for line in error.splitlines()] == ["subnets[0]"]
    assert lab.proxy.run("tc", "qdisc", "show").stdout == before


def test_the_cli_shows_and_refuses(work: Bench) -> None:
    download = work.download()
    work.wait_capped()
    cli = work.services.cli
    assert "4d50:2" in cli("connections").stdout
    status = cli("status").stdout
    assert " 1 classes, marks by ipset, 1 subflows capped" in status
    assert re.search(r"^capture: 0 frames dropped, 0 segments refused; \d subflows in the kernel's list$", status, re.M)
    plan = work.services.cli_json("plan")
    assert plan["in_force"]
    assert [operation["operation"] for operation in plan["operations"]] == ["InstallHtb", "AddClass", "MakeChain"]
    assert cli("plan").stdout.endswith("# applied\n")
    for arguments, line in (
        (("set-rate", "dsl", "1mbit"), "dsl: no such access network; allowed: wifi, ethernet"),
        (
            ("set-rate", "wifi", "1mbit"),
            "wifi: is a most preferred network, where a cap never applies; allowed: --limit",
        ),
        (("reset-rate", "dsl"), "dsl: no such access network; allowed: wifi, ethernet"),
    ):
        refused = cli(*arguments, check=False)
        assert (refused.returncode, refused.stderr.strip()) == (1, line)
    download.stop()


def test_a_limit_set_by_hand_holds_a_lone_path(work: Bench) -> None:
    plain_path = work.download(200 * 10**6)
    work.wait_capped()
    work.services.cli("set-rate", "wifi", "3mbit", "--limit")
    eventually(lambda: any(s.rule == "limit" and s.rate == 3_000_000 for s in work.services.subflows()), "limited")
    work.services.cli("reset-rate", "wifi")
    eventually(lambda: all(s.rule != "limit" for s in work.services.subflows()), "free again")
    plain_path.stop()


def test_garbage_on_the_proxy_port_is_counted_and_ignored(work: Bench) -> None:
    sniffer = RpcClient(work.services.directory / "run" / "sniffer.sock")
    soups = [
        bytes([30, 0]) + bytes(38),
        bytes([30, 40]) + bytes(38),
        bytes(range(1, 41)),
        b"\x1e\x0c\x10" * 13 + b"\x1e",
    ]
    script = work.lab.directory / "soup.py"
    script.write_text(
        "from scapy.all import Ether, sendp\nimport json, sys\n"
        "sendp([Ether(bytes.fromhex(frame)) for frame in json.load(open(sys.argv[1]))], iface='proxy', verbose=False)\n"
    )
    frames = work.lab.directory / "soup.json"
    frames.write_text(json.dumps([soup_frame(soup, port).hex() for port, soup in enumerate(soups, 1000)]))
    work.lab.router.run(EXECUTABLES / "python", script, frames)
    eventually(lambda: sniffer.call("status")["counters"].get("malformed", 0) >= 3, "malformed counted")
    assert work.services.subflows() == ()
    download = work.download()
    work.wait_capped()
    assert work.services.sniffer is not None
    assert "Traceback" not in work.services.sniffer.log_text()
    download.stop()


def soup_frame(options: bytes, port: int) -> bytes:
    """A SYN to the proxy whose 40 bytes of options are as given; a broadcast frame, from the router, needs no ARP."""
    bare = bytes(
        Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff")
        / IP(src="10.1.0.2", dst="10.3.0.2", len=80)
        / TCP(sport=port, dport=8080, flags="S", dataofs=15)
    )
    return bare + options
