"""Under a real systemd: in a restart, throttled subflows stay as they are; any other end restores everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest
from booted import CLEAN_UP, DAEMON, Booted
from polling import eventually
from proxy_world import Hosts, ProxyWorld, attended, unique

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.sampler import PathMeter
from mptcp_lab.squid import PORT
from mptcp_lab.topology import WIFI

CAP_MBPS: Final = 1.0


@pytest.fixture
def services(request: pytest.FixtureRequest, hosts: Hosts) -> Booted:
    """An indirect parameter is the daemon's section of the configuration."""
    return Booted(hosts.lab.proxy, unique("booted"), getattr(request, "param", {"classifier": "socket"}))


@pytest.fixture
def world(hosts: Hosts, services: Booted) -> Iterator[ProxyWorld]:
    with attended(hosts, services) as running:
        services.systemctl("start", "mptcp-sniffer", DAEMON)
        assert services.shown("SubState") == "running", services.systemctl("status", DAEMON, "mptcp-sniffer")
        yield running


def wait_restarted(services: Booted, end: Callable[[Booted], None]) -> None:
    """Let `end` act, and wait until another daemon serves."""
    before = services.shown("MainPID")
    end(services)
    eventually(lambda: services.runs_again(before), "started again")


def restart(services: Booted) -> None:
    services.systemctl("restart", DAEMON)


def restart_both(services: Booted) -> None:
    services.systemctl("restart", "mptcp-sniffer", DAEMON)


def kill(services: Booted) -> None:
    services.systemctl("kill", "--signal=KILL", DAEMON)


def kill_for_good(services: Booted) -> None:
    """Kill the daemon, whose next start is far away."""
    services.configure_unit(DAEMON, "RestartSec=1h")
    kill(services)
    eventually(lambda: services.shown("SubState") == "auto-restart", "killed")


@pytest.mark.parametrize(
    ("services", "end"),
    [
        ({"classifier": "socket"}, restart),
        ({"classifier": "socket"}, restart_both),
        ({"classifier": "socket"}, kill),
        ({"classifier": "rules"}, restart),
        ({"classifier": "nft"}, restart),
    ],
    indirect=["services"],
    ids=["daemon", "both", "kill -9", "rules", "nftables"],
)
def test_restart_lets_nothing_pass_above_the_cap(
    world: ProxyWorld, services: Booted, end: Callable[[Booted], None]
) -> None:
    world.begin_settled()
    with PathMeter(world.lab.client, ("eth0", "wlan0")) as meter:
        began = time.monotonic()
        eventually(lambda: meter.interfaces[-1].at > began + 1, "a second before")
        wait_restarted(services, end)
        world.wait_capped()
        ready = time.monotonic()
        eventually(lambda: meter.interfaces[-1].at > ready + 2, "two seconds after")
        ended = time.monotonic()
        capped, free = (meter.received(interface) for interface in ("eth0", "wlan0"))
    seconds = [began + 0.1 * step for step in range(int((ended - began - 1) * 10))]
    # Of the 83 packets of a second, samples and queues move some to the next. Free, it would have 9.5 Mb/s.
    assert max(capped.mbps(at, at + 1) for at in seconds) < 1.25 * CAP_MBPS
    assert free.mbps(began, ended) > 10 * CAP_MBPS
    assert "1 throttled subflows adopted, 0 added" in services.log_of(DAEMON)
    assert services.kept_links == 1


def test_kernel_program_decides_while_no_daemon_runs(world: ProxyWorld, services: Booted) -> None:
    wifi = str(world.lab.client.address(WIFI, 4))
    world.begin_settled()
    kill_for_good(services)
    world.download()
    world.wait_restrained(2)
    world.proxy.run("ss", "-K", "-t", "dst", wifi)
    eventually(lambda: (world.restrained(), world.assignments()) == (set(), []), "freed by the kernel", within=2)
    restart(services)
    eventually(lambda: services.answers(services.sockets.daemon), "started again")


def stop(services: Booted) -> None:
    services.systemctl("stop", DAEMON)


def stop_clean_up(services: Booted) -> None:
    services.systemctl("stop", CLEAN_UP)


def remove_and_stop(services: Booted) -> None:
    services.remove_units()
    services.systemctl("stop", DAEMON, CLEAN_UP)


@pytest.mark.parametrize("end", [stop, stop_clean_up, remove_and_stop])
def test_stop_has_restored_everything_when_it_returns(
    world: ProxyWorld, services: Booted, end: Callable[[Booted], None]
) -> None:
    world.begin_settled()
    end(services)
    assert kernel_state(world.proxy) == world.original
    assert (world.restrained(), world.assignments()) == (set(), [])
    eventually(lambda: services.kept_links == 0, "no program kept")
    assert services.systemctl("is-active", DAEMON) == "inactive"
    if end is stop:
        services.systemctl("start", DAEMON)
        world.wait_settled()


def kill_and_stop(services: Booted) -> None:
    kill_for_good(services)
    stop(services)


def give_up(services: Booted) -> None:
    services.configure_unit(DAEMON, "ExecStartPre=/bin/false")
    kill(services)


def invalidate(services: Booted) -> None:
    services.config.write_text(services.config.read_text() + "no_such_key: 1\n")
    restart(services)


def kill_and_invalidate(services: Booted) -> None:
    services.config.write_text(services.config.read_text() + "no_such_key: 1\n")
    kill(services)


@pytest.mark.parametrize("end", [kill_and_stop, give_up, invalidate, kill_and_invalidate])
def test_everything_is_restored_if_no_start_succeeds(
    world: ProxyWorld, services: Booted, end: Callable[[Booted], None]
) -> None:
    world.begin_settled()
    end(services)
    eventually(lambda: services.systemctl("is-active", CLEAN_UP) in {"inactive", "failed"}, "cleaned up")
    assert kernel_state(world.proxy) == world.original
    assert (world.restrained(), world.assignments()) == (set(), [])
    assert services.kept_links == 0
    assert services.systemctl("is-active", DAEMON) == ("inactive" if end is kill_and_stop else "failed")


@pytest.mark.parametrize("end", [restart, kill])
@pytest.mark.parametrize("settings", [{"classifier": "rules"}, {"classifier": "rules", "pacing": False}])
def test_restart_with_other_settings_leaves_nothing_of_the_earlier(
    world: ProxyWorld, services: Booted, settings: Mapping[str, object], end: Callable[[Booted], None]
) -> None:
    world.begin_settled()
    services.configure_daemon(**settings)
    wait_restarted(services, end)
    eventually(lambda: [each.mask for each in world.assignments()] == [0xFFFF_0000], "marked by packet alone")
    world.wait_restrained(0 if "pacing" in settings else 1)
    assert services.kept_links == (0 if "pacing" in settings else 1)
    freed = "all subflows are freed until the next start: daemon.classifier"
    assert (freed in services.log_of(DAEMON)) == (end is restart)


def kill_and_restart_both(services: Booted) -> None:
    kill_for_good(services)
    restart_both(services)


@pytest.mark.parametrize("end", [restart_both, kill_and_restart_both])
def test_restart_with_another_port_frees_the_sockets_of_the_old_one(
    world: ProxyWorld, services: Booted, end: Callable[[Booted], None]
) -> None:
    world.begin_settled()
    services.config.write_text(services.config.read_text().replace(f"- {PORT}\n", "- 9999\n"))
    wait_restarted(services, end)
    assert (world.restrained(), world.assignments(), services.kept_links) == (set(), [], 0)
