"""LIA and OLIA in the kernel: who has them and for how long, and how fast a window grows."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually

from mptcp_lab.congestion.coupled import COUPLED, registered
from mptcp_lab.port import Port
from mptcp_lab.scenario.plan import make_plan
from mptcp_lab.scenario.quantities import Queue
from mptcp_lab.scenario.scenario_schema import EndpointFlag, HostSection, LinkSection, Network
from mptcp_lab.scenario.world import build
from mptcp_lab.traffic import program, start_pour
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.host import Host

ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
SERVER: Final = "10.3.0.1"
PORT, OTHER_PORT = 5001, 5002
ACKNOWLEDGED: Final = 1500
"""Packets of each subflow after which its window is looked at."""

SUBFLOW: Final = re.compile(r"cwnd:(?P<window>\d+) .*bytes_acked:(?P<acked>\d+) ")
SIZE: Final = re.compile(r" mss:(\d+) ")
HOLDER: Final = """
from mptcp_lab.congestion.coupled import registered
with registered(["olia"]):
    print("registered", flush=True)
    input()
"""


def allowed() -> set[str]:
    return set(ALLOWED.read_text(encoding="ascii").split())


def hold() -> subprocess.Popen[str]:
    """A lab that registers OLIA, and ends after a line of input."""
    command = [sys.executable, "-c", HOLDER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_control_of_a_killed_lab_is_not_left_behind() -> None:
    with hold() as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "registered\n"
        assert "olia" in allowed()
        holder.send_signal(signal.SIGKILL)
    eventually(lambda: "olia" not in allowed(), "unregistered")


def test_second_lab_waits_for_the_control_of_the_first() -> None:
    with registered(["olia"]):
        second = hold()
        waiting = re.compile(rf"-> FLOCK +ADVISORY +WRITE {second.pid} ")
        eventually(lambda: waiting.search(Path("/proc/locks").read_text()) is not None, "waiting for the lock")
    with second:
        assert second.stdout is not None
        assert second.stdout.readline() == "registered\n"
        assert "olia" in allowed()
        second.communicate("\n")
    assert second.returncode == 0
    assert "olia" not in allowed()


@contextmanager
def sending(control: str) -> Iterator[tuple[Host, Host]]:
    """A server and a client with two paths of 20 Mb/s, whose queues hold more than is ever sent ahead.

    The server remembers a slow-start threshold of 2 packets for both: its windows begin with 10, after slow start.
    """
    sysctls = {
        "net.ipv4.tcp_congestion_control": control,
        "net.ipv4.tcp_no_metrics_save": "0",
        "net.ipv4.tcp_no_ssthresh_metrics_save": "0",
    }
    network = Network.model_construct(
        hosts={
            "client": HostSection.model_construct(endpoints={"eth1": (EndpointFlag.SUBFLOW,)}),
            "router": HostSection.model_construct(forward=True),
            "server": HostSection.model_construct(sysctls=sysctls),
        },
        links={
            "one": path(Port("client", "eth0"), Port("router", "eth0")),
            "two": path(Port("client", "eth1"), Port("router", "eth1")),
            "server": LinkSection.model_construct(ends=(Port("server", "eth0"), Port("router", "eth2")), families=(4,)),
        },
        in_order=True,
    )
    with registered([control]), build(make_plan(network)) as world:
        server, client = world.hosts["server"], world.hosts["client"]
        (route,) = server.run("ip", "route", "show", "default", "table", "1").stdout.splitlines()
        server.ip([f"route replace {route} table 1 ssthresh lock 2"])
        # A route's threshold is used once a connection has left metrics of its peer (net/ipv4/tcp_metrics.c).
        server.start("iperf3", "iperf3", "--server", "--port", str(OTHER_PORT))
        eventually(lambda: server.listens(OTHER_PORT, mptcp=False), "listening")
        for address in ("10.1.0.1", "10.2.0.1"):
            client.run("iperf3", "--client", SERVER, "--port", str(OTHER_PORT), "--bind", address, "--bytes", "20K")
        eventually(lambda: server.run("ip", "tcp_metrics").stdout.count("ssthresh 2") == 2, "remembered")
        yield server, client


def path(*ends: Port) -> LinkSection:
    return LinkSection.model_construct(ends=ends, rate=Rate(20_000_000), queue=Queue(None, 4_000_000), families=(4,))


def growth(server: Host, count: int) -> list[float]:
    """How much of Reno's growth each of `count` subflows had: Reno adds a packet for each window acknowledged.

    The window w that began with 10 packets is then sqrt(100 + 2 * acknowledged packets).
    """
    shown: list[tuple[int, float]] = []

    def enough() -> bool:
        shown[:] = [packets(line) for line in subflows(server)]
        return len(shown) == count and all(acked > ACKNOWLEDGED for _, acked in shown)

    eventually(enough, f"{ACKNOWLEDGED} packets acknowledged by each")
    return [(window**2 - 100) / (2 * acked) for window, acked in shown]


def subflows(server: Host) -> list[str]:
    """What ss(8) shows of each."""
    return server.run("ss", "-tinH", "state", "established", "sport", "=", f":{PORT}").stdout.splitlines()[1::2]


def packets(line: str) -> tuple[int, float]:
    """A subflow's window and what has been acknowledged, in packets."""
    shown, size = SUBFLOW.search(line), SIZE.search(line)
    if shown is None or size is None:
        return 0, 0.0
    return int(shown["window"]), int(shown["acked"]) / int(size[1])


@pytest.mark.parametrize("control", COUPLED)
def test_windows_of_two_equal_subflows_grow_four_times_as_slowly_as_tcps(control: str) -> None:
    """(sum of w / rtt)^2 / (w / rtt^2) is 4 w for two equal subflows, and w for one."""
    with sending(control) as (server, client):
        start_pour(server, PORT)
        both = client.start("both", *program("drain", PORT, 60, SERVER))
        assert all(0.15 < shown < 0.4 for shown in growth(server, 2))
        both.stop()
        eventually(lambda: not subflows(server), "ended")
        client.ip(["mptcp limits set subflow 0"])
        client.start("one", *program("drain", PORT, 60, SERVER))
        assert 0.7 < growth(server, 1)[0] < 1.4
