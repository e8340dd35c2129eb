"""Uploads: the capped path carries its cap, the preferred path the rest, and no subflow is left throttled."""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import proxy_world
import pytest
from deaf_client import ignore_priorities
from passing_program import passing_program, programs_at
from polling import eventually
from proxy_world import FREE, LONG, MEGABYTE, Hosts, ProxyWorld, ethernet_with, send_rates, serving
from second_interface import send_small_pulses

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.services import WIFI_FIRST, SubflowStatus
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Topology
from mptcp_throttle.linux import tcx
from mptcp_throttle.linux.libbpf import AttachType
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.interfaces import find_interface

EGRESS: Final = AttachType.TCX_EGRESS
CAP: Final = Rate.parse("1mbit")
NETWORKS: Final = ethernet_with({RateKind.CAP: None, RateKind.UPLINK_CAP: CAP})


@pytest.fixture(scope="module")
def hosts(hosts: Hosts) -> Hosts:
    send_small_pulses(hosts.lab.client)
    return hosts


def capped(world: ProxyWorld) -> list[SubflowStatus]:
    """The subflows whose uplinks are capped."""
    return [subflow for subflow in world.services.subflows() if subflow.uplink_kind == "cap"]


def wait_capped(world: ProxyWorld) -> None:
    """Wait until the Ethernet of a client is capped, and has paid for what the client had queued there before."""
    eventually(lambda: bool(capped(world)), "an uplink capped")
    eventually(lambda: send_rates(world.lab.client, 1)["eth0"] < 1.5e6, "what was queued is sent")


def has_backup(world: ProxyWorld) -> bool:
    """Whether a subflow is a backup to the client, by what the proxy has told it last."""
    # ss(8): B is MPTCP_SUBFLOW_FLAG_BKUP_REM.
    flags = re.findall(r" flags:(\w+)", world.lab.client.run("ss", "-tiH", "dport", "=", f":{PORT}").stdout)
    assert flags
    return any("B" in flag for flag in flags)


def wait_backup(world: ProxyWorld) -> None:
    """Wait until the client's Ethernet is a backup, and will stay it for a while."""
    wait_capped(world)
    eventually(lambda: has_backup(world), "the share in debt")


def received_rates(world: ProxyWorld, seconds: float) -> dict[str, float]:
    """What the proxy acknowledges in the next `seconds`, in bits per second, by the client's interface."""
    before, began = acknowledged(world), time.monotonic()
    time.sleep(seconds)
    after, elapsed = acknowledged(world), time.monotonic() - began
    return {interface: (after[interface] - before[interface]) * 8 / elapsed for interface in after}


def acknowledged(world: ProxyWorld) -> Counter[str]:
    """Bytes of the client that the proxy has acknowledged, by the client's interface."""
    return by_interface(world, r"bytes_acked:(\d+)")


def windows(world: ProxyWorld) -> Counter[str]:
    """The windows that the proxy has announced to the client, in bytes, by the client's interface."""
    return by_interface(world, r"snd_wnd:(\d+)")


def by_interface(world: ProxyWorld, pattern: str) -> Counter[str]:
    """The sum of what ss(8) shows of the subflows, by the client's interface."""
    shown = world.lab.client.run("ss", "-tinHO", "dport", "=", f":{PORT}").stdout
    interfaces = {str(world.lab.client.address(link, 4)): link.interface for link in (ETHERNET, WIFI)}
    sums: Counter[str] = Counter()
    for address, shown_number in re.findall(rf"(10\.\d+\.\d+\.\d+)\S*:\d+ .*\b{pattern}", shown):
        sums[interfaces[address]] += int(shown_number)
    return sums


def own_programs(world: ProxyWorld) -> set[int]:
    """The ids of our programs for uplinks that see what leaves the proxy."""
    files = world.services.sockets.daemon.parent.glob("tcx-*")
    return {int(text) for file in files for text in file.read_text().split()} & {*programs_at(world.proxy, EGRESS)}


def test_capped_uplink_carries_its_cap_and_wifi_the_rest(world: ProxyWorld, before: dict[str, str]) -> None:
    world.upload(LONG)
    wait_capped(world)
    windows = [send_rates(world.lab.client, 4) for _ in range(3)]
    # A window has two or three pulses of 64 KiB or more.
    assert max(rates["eth0"] for rates in windows) < 2e6
    assert 0.5e6 < statistics.mean(rates["eth0"] for rates in windows) < 1.3e6
    assert statistics.median(rates["wlan0"] for rates in windows) > 10e6
    world.abort()
    eventually(lambda: not own_programs(world), "the program detached")
    assert kernel_state(world.proxy) == before


def test_window_of_a_capped_uplink_is_small_and_that_of_others_is_not(world: ProxyWorld) -> None:
    world.upload(LONG)
    wait_capped(world)
    small = 64 * 1024
    eventually(lambda: 0 < windows(world)["eth0"] <= small < windows(world)["wlan0"], "small on Ethernet alone")
    world.services.cli("set-rate", "--uplink", "ethernet", "unlimited")
    eventually(lambda: windows(world)["eth0"] > small, "as the kernel has it")


def test_document_arrives_intact_while_its_path_is_capped(world: ProxyWorld) -> None:
    result = world.upload(20 * MEGABYTE).wait()
    assert (result.exit_status, result.intact) == (0, True)
    assert "network=ethernet direction=uplink rate=" in world.daemon.log_text()
    assert result.seconds < 20 * MEGABYTE / ETHERNET.rate.bytes_per_second, "faster than Ethernet alone"


def test_uplink_is_free_within_a_second_of_wifi_loss(own_world: ProxyWorld) -> None:
    own_world.upload(LONG)
    wait_capped(own_world)
    document = own_world.upload(8 * MEGABYTE)
    eventually(lambda: len(capped(own_world)) == 2, "both uplinks capped")
    own_world.lab.client.leave(WIFI)
    eventually(lambda: not capped(own_world), "the caps lifted", within=1)
    eventually(lambda: send_rates(own_world.lab.client, 0.5)["eth0"] > FREE, "Ethernet in use", within=3)
    result = document.wait()
    assert (result.exit_status, result.intact) == (0, True)


def test_clients_that_were_told_nothing_keep_no_program(own_world: ProxyWorld) -> None:
    """In a download the proxy sends data only, which cannot carry MP_PRIO."""
    for _ in range(5):
        own_world.download()
    eventually(lambda: len(capped(own_world)) == 5, "all uplinks capped")
    own_world.lab.client.leave(WIFI)
    eventually(lambda: not capped(own_world), "the caps lifted")
    own_world.abort()
    eventually(lambda: not own_programs(own_world), "the program detached")


def test_own_mp_prio_is_no_backup_to_the_policy(hosts: Hosts) -> None:
    with serving(hosts, ethernet_with({RateKind.UPLINK_CAP: CAP})) as world:
        world.upload(LONG)
        wait_capped(world)
        for _ in range(40):
            ethernet = next(s for s in world.services.subflows() if s.network == "ethernet")
            assert (ethernet.backup, ethernet.kind, ethernet.uplink_kind) == (False, "cap", "cap")


def test_uplink_rate_set_by_hand_reaches_a_running_upload(world: ProxyWorld) -> None:
    world.upload(LONG)
    wait_capped(world)
    changed = world.services.cli_json("set-rate", "--uplink", "ethernet", "4mbit")
    cap = changed["rates"]["uplink"]["cap"]
    assert (cap["rate"], cap["configured"]) == ("4mbit", "1mbit")
    assert changed["rates"]["downlink"]["cap"]["rate"] is None
    eventually(lambda: 3.2e6 < send_rates(world.lab.client, 3)["eth0"] < 4.8e6, "4 Mb/s for 3 s")
    world.services.cli("pause")
    eventually(lambda: send_rates(world.lab.client, 1)["eth0"] > 6e6, "Ethernet free")


@pytest.mark.parametrize("end", ["stop", "clean_up", "start_daemon"])
def test_daemon_that_ends_leaves_no_subflow_a_backup(world: ProxyWorld, end: str) -> None:
    world.upload(LONG)
    wait_backup(world)
    if end == "stop":
        world.daemon.stop()
        assert not own_programs(world)
    else:
        world.daemon.kill()
        assert own_programs(world)
        world.services.configure(WIFI_FIRST)
        getattr(world.services, end)()
    eventually(lambda: not own_programs(world), "the program detached")
    eventually(lambda: not has_backup(world), "no subflow a backup", within=1)
    eventually(lambda: send_rates(world.lab.client, 1)["eth0"] > FREE, "Ethernet in use")


def test_cap_is_obeyed_although_the_client_ignores_mp_prio(own_world: ProxyWorld) -> None:
    ignore_priorities(own_world.lab.client)
    own_world.upload(LONG)
    eventually(lambda: any(s.uplink_policed for s in own_world.services.subflows()), "the uplink policed")
    assert " policed client=" in own_world.daemon.log_text()
    assert not has_backup(own_world)
    # After a pause of TCP the share has credit for a moment.
    eventually(lambda: 0.5e6 < received_rates(own_world, 5)["eth0"] < 1.05e6, "at most 1.05 Mb/s for 5 s")
    assert "rate not enforced" not in own_world.daemon.log_text()


def test_limit_of_an_only_path_is_obeyed() -> None:
    networks = ethernet_with({RateKind.CAP: None, RateKind.UPLINK_LIMIT: Rate.parse("4mbit")})
    with proxy_world.proxy_world(Topology(clients=(ClientSpec(wifi=None),)), networks) as world:
        world.upload(LONG)
        eventually(lambda: any(s.uplink_policed for s in world.services.subflows()), "the uplink policed")
        eventually(lambda: 2e6 < received_rates(world, 5)["eth0"] < 4.2e6, "4 Mb/s for 5 s")
        assert "rate not enforced" not in world.daemon.log_text()


def test_detached_program_is_attached_again(world: ProxyWorld) -> None:
    world.upload(LONG)
    wait_capped(world)
    with in_namespace(world.proxy.namespace):
        tcx.detach(own_programs(world), find_interface("eth0").index, EGRESS)
    assert not own_programs(world)
    eventually(lambda: bool(own_programs(world)), "the program is back", within=2)
    assert send_rates(world.lab.client, 4)["eth0"] < 2e6


@pytest.mark.parametrize("first", [True, False])
def test_program_of_others_at_the_egress_hides_no_uplink(world: ProxyWorld, tmp_path: Path, *, first: bool) -> None:
    passing = passing_program(world.proxy, EGRESS, tmp_path)
    with ExitStack() as stack:
        if first:
            stack.enter_context(passing)
        world.upload(LONG)
        wait_capped(world)
        if not first:
            stack.enter_context(passing)
            (ours,) = own_programs(world)
            eventually(lambda: programs_at(world.proxy, EGRESS)[0] == ours, "ours is first again", within=2)
        assert send_rates(world.lab.client, 4)["eth0"] < 2e6
    assert "rate not enforced" not in world.daemon.log_text()


def test_program_of_others_at_the_ingress_hides_no_excess(own_world: ProxyWorld, tmp_path: Path) -> None:
    ignore_priorities(own_world.lab.client)
    with passing_program(own_world.proxy, AttachType.TCX_INGRESS, tmp_path):
        own_world.upload(LONG)
        eventually(lambda: any(s.uplink_policed for s in own_world.services.subflows()), "the uplink policed")
        eventually(lambda: 0.5e6 < received_rates(own_world, 5)["eth0"] < 1.05e6, "at most 1.05 Mb/s for 5 s")
