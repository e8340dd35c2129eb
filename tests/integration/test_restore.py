"""Invariant I3: however the daemon ends, the kernel is restored; and I1: what is not ours is never touched."""

from __future__ import annotations

import os
import time
from pathlib import Path

import proxy_world
import pytest
from polling import eventually
from proxy_world import ALL_CLASSIFIERS, MEGABYTE, PACKET_CLASSIFIERS, Hosts, ProxyWorld

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import Process
from mptcp_lab.topology import ClientSpec, Topology

FOREIGN_RULES = (
    ("iptables-legacy", "-t", "mangle", "-A", "POSTROUTING", "-p", "udp", "-j", "MARK", "--set-xmark", "0x7/0xff"),
    ("iptables-legacy", "-t", "mangle", "-N", "FOREIGN"),
    ("iptables-legacy", "-t", "mangle", "-A", "FOREIGN", "-j", "RETURN"),
    ("ip6tables-legacy", "-t", "mangle", "-A", "OUTPUT", "-j", "ACCEPT"),
)


@pytest.fixture(scope="module")
def hosts(hosts: Hosts) -> Hosts:
    """The proxy has iptables rules that are not ours."""
    for rule in FOREIGN_RULES:
        hosts.lab.proxy.run(*rule)
    return hosts


@pytest.mark.parametrize("end", ["SIGTERM", "kill -9 and clean-up"])
@pytest.mark.parametrize("world", ALL_CLASSIFIERS, indirect=True)
def test_end_in_mid_transfer_restores_everything(world: ProxyWorld, before: dict[str, str], end: str) -> None:
    download = world.download(40 * MEGABYTE)
    world.wait_capped()
    world.wait_restrained()
    assert kernel_state(world.proxy) != before
    if end == "SIGTERM":
        assert world.daemon.stop() == 0
    else:
        world.daemon.kill()
        assert kernel_state(world.proxy) != before
        world.wait_restrained()
        world.services.clean_up()
        assert (kernel_state(world.proxy), world.restrained()) == (world.original, set())
        world.services.clean_up()
    assert (kernel_state(world.proxy), world.restrained()) == (world.original, set())
    result = download.wait()
    assert (result.exit_status, result.intact) == (0, True)


@pytest.mark.parametrize("invalid", ["the cgroup", "the configuration"])
def test_cleanup_works_although_what_is_configured_is_invalid(world: ProxyWorld, invalid: str) -> None:
    world.begin_capped()
    world.wait_restrained()
    world.daemon.kill()
    if invalid == "the cgroup":
        world.services.configure_daemon(cgroup="/sys/fs/cgroup/gone")
    else:
        world.services.config.write_text(world.services.config.read_text(encoding="utf-8") + "no_such_key: 1\n")
    world.wait_restrained()
    world.services.clean_up()
    assert (kernel_state(world.proxy), world.restrained()) == (world.original, set())


@pytest.mark.parametrize("next_one", ["cleanup", "start"])
def test_record_that_was_being_written_at_a_kill_is_removed(world: ProxyWorld, next_one: str) -> None:
    world.daemon.kill()
    record = world.services.sockets.daemon.parent / "tcx-2.new"
    record.write_text("17")
    if next_one == "cleanup":
        world.services.clean_up()
    else:
        world.services.start_daemon()
        world.services.wait_ready()
    assert not record.exists()


@pytest.mark.parametrize("end", ["cleanup", "start"])
def test_open_vswitch_that_is_absent_keeps_no_subflow_throttled(world: ProxyWorld, tmp_path: Path, end: str) -> None:
    """A daemon with tc has been killed, and its configuration then changed to a back end that this host lacks."""
    world.begin_capped()
    world.daemon.kill()
    world.services.configure_daemon(backend="ovs", openvswitch_directory=str(tmp_path))
    if end == "cleanup":
        with pytest.raises(LabError, match=r"db\.sock"):
            world.services.clean_up()
    else:
        assert world.services.start_daemon().wait(10) == os.EX_OSERR
    assert kernel_state(world.proxy) == world.original
    world.services.configure_daemon(backend="tc")


@pytest.mark.parametrize(
    ("world", "after"),
    [
        *(("nft", "nft"), ("nft", "rules"), ("rules", "nft"), ("rules", "rules"), ("rules", "auto")),
        *(("socket", "nft"), ("socket", "rules")),
    ],
    indirect=["world"],
)
def test_start_after_kill_9_adopts_what_it_finds(world: ProxyWorld, after: str) -> None:
    world.begin_settled()
    world.daemon.kill()
    world.services.configure_daemon(classifier=after)
    world.start_daemon()
    world.wait_capped()
    masks = [0xFFFF_0000 if after == "rules" else 0]

    def is_classed_as_configured() -> bool:
        chain = world.chain()
        by_packet = ("meta priority set" in chain, "--set-xmark" in chain)
        return [each.mask for each in world.assignments()] == masks and by_packet == (after == "nft", after == "rules")

    eventually(is_classed_as_configured, "one subflow in a class, by this classifier alone", seen=world.chain)
    assert world.services.status()["daemon"]["classifier"] == after.replace("auto", "socket")
    world.abort()
    world.wait_restored()
    world.daemon.stop()
    assert kernel_state(world.proxy) == world.original


def test_restart_after_kill_9_leaves_throttled_subflows_untouched() -> None:
    names = ("first", "second", "third")
    with proxy_world.proxy_world(Topology(clients=tuple(ClientSpec(name) for name in names))) as world:
        for client in world.lab.clients.values():
            world.download(client=client)
        world.wait_settled(3)
        assignments, sent = world.assignments(), world.class_counters()
        assert len(sent) == 3
        world.daemon.kill()
        assert world.assignments() == assignments
        watcher = world.proxy.start("monitor", "tc", "monitor")
        eventually(lambda: is_watching(world, watcher), "watching tc")
        world.start_daemon()
        world.wait_capped(3)
        assert "3 throttled subflows adopted, 0 added" in world.daemon.log_text()
        assert "class" not in watcher.log_text()
        assert world.assignments() == assignments
        counters = world.class_counters
        eventually(lambda: all(now.bytes > sent[name].bytes for name, now in counters().items()), "every class sends")
        assert counters().keys() == sent.keys()


def is_watching(world: ProxyWorld, watcher: Process) -> bool:
    """Make a change that `tc monitor` shows once it listens; whether it has shown one."""
    world.proxy.tc(["qdisc replace dev lo root pfifo", "qdisc del dev lo root"])
    return "dev lo" in watcher.log_text()


@pytest.mark.parametrize("world", ["rules"], indirect=True)
def test_foreign_rules_neither_hide_ours_nor_are_lost(world: ProxyWorld) -> None:
    accept = ("POSTROUTING", "-p", "tcp", "-j", "ACCEPT")
    mangle = ("iptables-legacy", "-t", "mangle")
    untouched = kernel_state(world.proxy)
    world.proxy.run(*mangle, "-I", *accept)
    before = kernel_state(world.proxy)
    world.begin_capped()
    assert tcp_rules(world) == ["-A POSTROUTING -p tcp -j MPTCP-THROTTLE", "-A POSTROUTING -p tcp -j ACCEPT"]
    world.proxy.run(*mangle, "-I", *accept)
    eventually(lambda: tcp_rules(world)[0].endswith("MPTCP-THROTTLE"), "our jump is the first again")
    world.proxy.run(*mangle, "-D", *accept)
    world.abort()
    eventually(lambda: kernel_state(world.proxy) == before, "everything restored")
    world.proxy.run(*mangle, "-D", *accept)
    assert kernel_state(world.proxy) == untouched


def tcp_rules(world: ProxyWorld) -> list[str]:
    rules = world.proxy.run("iptables-legacy", "-t", "mangle", "-S", "POSTROUTING").stdout
    return [line for line in rules.splitlines() if line.startswith("-A POSTROUTING -p tcp ")]


@pytest.mark.parametrize("world", PACKET_CLASSIFIERS, indirect=True)
def test_foreign_marks_under_our_mask_classify_nothing(world: ProxyWorld) -> None:
    (world.proxy.directory / "file").write_bytes(bytes(MEGABYTE))
    server = world.proxy.start("other", "python3", "-m", "http.server", "9999", "--directory", world.proxy.directory)
    server.wait_until(lambda: world.proxy.listens(9999), "listening")
    output = ("OUTPUT", "-p", "tcp", "--sport", "9999", "-j", "MARK", "--set-xmark", "0x20000/0xff0000")
    world.proxy.run("iptables-legacy", "-t", "mangle", "-A", *output)
    world.begin_capped()
    began = time.monotonic()
    world.lab.client.run("curl", "-so", "/dev/null", f"http://{world.lab.proxy_address(4)}:9999/file")
    assert time.monotonic() - began < 6  # 8 s at 1 Mb/s, and 1 s at 10 Mb/s
    world.proxy.run("iptables-legacy", "-t", "mangle", "-D", *output)
    server.stop()


def test_stop_removes_the_chains_when_the_interface_is_gone() -> None:
    with proxy_world.proxy_world(daemon={"classifier": "rules"}) as world:
        world.begin_settled()
        assert world.chain() != ""
        world.lab.router.ip(["link delete proxy"])
        assert world.daemon.stop() == 0
        assert world.chain() == ""
        world.end_unreachable()
