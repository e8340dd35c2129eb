"""Invariant I3: however we end, the kernel is left as it was found; and I1: what is not ours is never touched."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from bench import BACK_ENDS, MEGABYTE, Bench, bench, eventually

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.process import Process
from mptcp_lab.topology import ClientSpec, Topology

FOREIGN_RULES = (
    ("iptables-legacy", "-t", "mangle", "-A", "POSTROUTING", "-p", "udp", "-j", "MARK", "--set-xmark", "0x7/0xff"),
    ("iptables-legacy", "-t", "mangle", "-N", "SOMEBODY"),
    ("iptables-legacy", "-t", "mangle", "-A", "SOMEBODY", "-j", "RETURN"),
    ("ip6tables-legacy", "-t", "mangle", "-A", "OUTPUT", "-j", "ACCEPT"),
    ("ipset", "create", "mptcp-throttle-somebody", "hash:ip,port,ip", "skbinfo"),
    ("ipset", "add", "mptcp-throttle-somebody", "10.1.0.2,8080,10.3.0.2", "skbmark", "0x7/0xff"),
)


def with_foreign_rules(work: Bench) -> dict[str, str]:
    for rule in FOREIGN_RULES:
        work.lab.proxy.run(*rule)
    return kernel_state(work.lab.proxy)


@pytest.mark.parametrize("work", BACK_ENDS, indirect=True)
def test_sigterm_in_mid_transfer_leaves_everything_as_it_was_and_the_download_unharmed(work: Bench) -> None:
    before = with_foreign_rules(work)
    download = work.download(10 * MEGABYTE)
    work.wait_capped()
    assert kernel_state(work.lab.proxy) != before
    assert work.services.daemon is not None
    assert work.services.daemon.stop() == 0
    assert kernel_state(work.lab.proxy) == before
    result = download.wait()
    assert (result.exit_status, result.intact) == (0, True)


@pytest.mark.parametrize("work", BACK_ENDS, indirect=True)
def test_after_kill_9_cleanup_puts_everything_back(work: Bench) -> None:
    before = with_foreign_rules(work)
    download = work.download()
    work.wait_capped()
    assert work.services.daemon is not None
    work.services.daemon.kill()
    assert kernel_state(work.lab.proxy) != before
    work.clean_up()
    assert kernel_state(work.lab.proxy) == before
    work.clean_up()
    assert kernel_state(work.lab.proxy) == before
    download.stop()


def test_after_kill_9_an_invalid_configuration_does_not_keep_anybody_capped(work: Bench) -> None:
    before = with_foreign_rules(work)
    download = work.download()
    work.wait_capped()
    assert work.services.daemon is not None
    work.services.daemon.kill()
    with work.services.config.open("a", encoding="utf-8") as config:
        config.write("no_such_key: 1\n")
    work.clean_up()
    assert kernel_state(work.lab.proxy) == before
    download.stop()


@pytest.mark.parametrize(
    ("work", "after"), [("ipset", "ipset"), ("ipset", "rules"), ("rules", "auto")], indirect=["work"]
)
def test_after_kill_9_the_next_start_takes_over_what_it_finds(work: Bench, after: str) -> None:
    before = with_foreign_rules(work)
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    assert work.services.daemon is not None
    work.services.daemon.kill()
    work.services.configure_daemon(marks=after)
    work.services.start_daemon()
    work.services.wait_ready()
    work.wait_capped()
    assert len(work.marks()) == 1
    assert work.services.status()["daemon"]["marks"] == after.replace("auto", "ipset")
    assert ("--set-xmark" in work.chain()) == (after == "rules")
    assert ("--map-set" in work.chain()) == ("create mptcp-throttle-4-8080" in work.chain()) == (after != "rules")
    work.abort(download)
    eventually(lambda: work.services.status()["daemon"]["qdisc"] == "original", "original qdisc back")
    work.services.daemon.stop()
    assert kernel_state(work.lab.proxy) == before


def test_after_kill_9_a_restart_disturbs_nobody_who_is_held() -> None:
    names = ("first", "second", "third")
    with bench(Topology(clients=tuple(ClientSpec(name) for name in names))) as work:
        downloads = {client: work.download(200 * MEGABYTE, client) for client in work.lab.clients.values()}
        work.wait_settled(3)
        marks, sent = work.marks(), sent_by_class(work)
        assert len(sent) == 3
        assert work.services.daemon is not None
        work.services.daemon.kill()
        watcher = work.lab.proxy.start("monitor", "tc", "monitor")
        eventually(lambda: is_watching(work, watcher), "watching tc")
        daemon = work.services.start_daemon()
        work.services.wait_ready()
        work.wait_capped(3)
        assert "3 subflows are held as they were found, 0 anew" in daemon.log_text()
        assert "class" not in watcher.log_text()
        assert work.marks() == marks
        eventually(lambda: all(now > sent[name] for name, now in sent_by_class(work).items()), "counted on")
        assert sent_by_class(work).keys() == sent.keys()
        for client, download in downloads.items():
            work.abort(download, client)


def sent_by_class(work: Bench) -> dict[str, int]:
    shown = work.lab.proxy.run("tc", "-s", "class", "show", "dev", "eth0").stdout
    return {name: int(count) for name, count in re.findall(r"class htb (\S+) .*\n Sent (\d+)", shown)}


def is_watching(work: Bench, watcher: Process) -> bool:
    """Make a change that `tc monitor` shows from the moment it listens; whether it has shown one."""
    work.lab.proxy.tc(["qdisc replace dev lo root pfifo", "qdisc del dev lo root"])
    return "dev lo" in watcher.log_text()


@pytest.mark.parametrize("qdisc", ["pfifo limit 77", "handle 7: bfifo limit 123456", None])
def test_the_qdisc_that_was_there_comes_back_with_its_parameters(work: Bench, qdisc: str | None) -> None:
    work.lab.proxy.tc(["qdisc del dev eth0 root"])
    if qdisc is not None:
        work.lab.proxy.tc([f"qdisc add dev eth0 root {qdisc}"])
    before = kernel_state(work.lab.proxy)
    download = work.download()
    work.wait_capped()
    assert "htb 4d50:" in work.qdisc()
    work.abort(download)
    eventually(lambda: work.services.status()["daemon"]["qdisc"] == "original", "original qdisc back")
    assert kernel_state(work.lab.proxy) == before


@pytest.mark.parametrize(
    ("qdisc", "what"),
    [
        ("htb default 0", "htb 9: is of a kind that"),
        ("stab overhead 20 linklayer ethernet pfifo limit 100", "pfifo 9: has a size table that"),
    ],
)
def test_a_qdisc_that_could_not_be_put_back_is_left_alone_and_the_operator_told(
    work: Bench, qdisc: str, what: str
) -> None:
    work.lab.proxy.tc([f"qdisc replace dev eth0 root handle 9: {qdisc}"])
    before = work.qdisc_kinds()
    download = work.download(3 * MEGABYTE)
    eventually(lambda: bool(work.services.status()["daemon"]["errors"]), "the error reported")
    (error,) = work.services.status()["daemon"]["errors"]
    assert error.startswith(f"eth0: root qdisc {what} cannot be put back as it is; remove it, replace it by")
    assert (work.capped(), work.marks(), work.qdisc_kinds()) == ([], [], before)
    assert download.wait().intact


def test_rules_of_others_neither_hide_ours_nor_are_lost(work: Bench) -> None:
    accept = ("-t", "mangle", "-I", "POSTROUTING", "-p", "tcp", "-j", "ACCEPT")
    work.lab.proxy.run("iptables-legacy", *accept)
    before = kernel_state(work.lab.proxy)
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    assert hooked(work) == ["-A POSTROUTING -p tcp -j MPTCP-THROTTLE", "-A POSTROUTING -p tcp -j ACCEPT"]
    work.lab.proxy.run("iptables-legacy", *accept)
    eventually(lambda: hooked(work)[0].endswith("MPTCP-THROTTLE"), "ours is reached again")
    work.lab.proxy.run("iptables-legacy", "-t", "mangle", "-D", *accept[3:])
    work.abort(download)
    eventually(lambda: kernel_state(work.lab.proxy) == before, "as it was")


def hooked(work: Bench) -> list[str]:
    rules = work.lab.proxy.run("iptables-legacy", "-t", "mangle", "-S", "POSTROUTING").stdout
    return [line for line in rules.splitlines() if line.startswith("-A")]


def test_marks_that_others_set_under_our_mask_classify_nothing(work: Bench) -> None:
    proxy = work.lab.proxy
    (proxy.directory / "file").write_bytes(bytes(MEGABYTE))
    server = proxy.start("other", "python3", "-m", "http.server", "9999", "--directory", proxy.directory)
    server.wait_until(lambda: proxy.listens(9999), "listening")
    proxy.run(
        *("iptables-legacy", "-t", "mangle", "-A", "OUTPUT", "-p", "tcp", "--sport", "9999"),
        *("-j", "MARK", "--set-xmark", "0x20000/0xff0000"),
    )
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    began = time.monotonic()
    work.lab.client.run("curl", "-so", "/dev/null", f"http://{work.lab.proxy_address(4)}:9999/file")
    assert time.monotonic() - began < 6  # 8 s at 1 Mb/s, and 1 s at 10 Mb/s
    work.abort(download)


def test_with_the_interface_gone_the_chains_are_removed_all_the_same(work: Bench) -> None:
    work.download(200 * MEGABYTE)
    work.wait_capped()
    work.lab.router.ip(["link delete proxy"])
    assert work.services.daemon is not None
    assert work.services.daemon.stop() == 0
    assert "MPTCP-THROTTLE" not in work.lab.proxy.run("iptables-legacy", "-t", "mangle", "-S").stdout


def test_a_hang_up_is_no_end(work: Bench) -> None:
    before = kernel_state(work.lab.proxy)
    work.download(200 * MEGABYTE)
    work.wait_settled()
    capping, marks = work.qdisc_kinds(), work.marks()
    daemon = work.services.daemon
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: "reloaded: nothing changed" in daemon.log_text(), "the configuration loaded again")
    assert (work.qdisc_kinds(), work.marks(), len(work.capped())) == (capping, marks, 1)
    assert daemon.stop() == 0
    assert kernel_state(work.lab.proxy) == before
