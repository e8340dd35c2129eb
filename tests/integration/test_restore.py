"""Invariant I3: however we end, the kernel is left as it was found; and I1: what is not ours is never touched."""

from __future__ import annotations

import pytest
from bench import MEGABYTE, Bench, eventually

from mptcp_lab.kernel_state import kernel_state

FOREIGN_RULES = (
    ("iptables-legacy", "-t", "mangle", "-A", "POSTROUTING", "-p", "udp", "-j", "MARK", "--set-xmark", "0x7/0xff"),
    ("iptables-legacy", "-t", "mangle", "-N", "SOMEBODY"),
    ("iptables-legacy", "-t", "mangle", "-A", "SOMEBODY", "-j", "RETURN"),
    ("ip6tables-legacy", "-t", "mangle", "-A", "OUTPUT", "-j", "ACCEPT"),
)


def with_foreign_rules(work: Bench) -> dict[str, str]:
    for rule in FOREIGN_RULES:
        work.lab.proxy.run(*rule)
    return kernel_state(work.lab.proxy)


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


def test_after_kill_9_the_next_start_takes_over_what_it_finds(work: Bench) -> None:
    before = with_foreign_rules(work)
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    assert work.services.daemon is not None
    work.services.daemon.kill()
    work.services.start_daemon()
    work.services.wait_ready()
    work.wait_capped()
    assert len(work.rules()) == 1
    work.abort(download)
    eventually(lambda: work.services.status()["daemon"]["qdisc"] == "original", "original qdisc back")
    work.services.daemon.stop()
    assert kernel_state(work.lab.proxy) == before


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


def test_a_qdisc_that_could_not_be_put_back_is_left_alone_and_the_operator_told(work: Bench) -> None:
    work.lab.proxy.tc(["qdisc replace dev eth0 root handle 9: htb default 0"])
    before = work.qdisc_kinds()
    download = work.download(3 * MEGABYTE)
    eventually(lambda: bool(work.services.status()["daemon"]["errors"]), "the error reported")
    (error,) = work.services.status()["daemon"]["errors"]
    assert error.startswith("eth0: root qdisc htb 9: cannot be put back as it is; remove it, or replace it by")
    assert (work.capped(), work.rules(), work.qdisc_kinds()) == ([], [], before)
    assert download.wait().intact


def test_what_somebody_deletes_is_put_in_place_again(work: Bench) -> None:
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    plan, rules = work.qdisc_kinds(), work.rules()
    for sabotage in (
        ("tc", "qdisc", "del", "dev", "eth0", "root"),
        ("iptables-legacy", "-t", "mangle", "-F"),
        ("tc", "filter", "del", "dev", "eth0", "parent", "4d50:"),
        ("tc", "class", "change", "dev", "eth0", "classid", "4d50:2", "htb", "rate", "9mbit"),
    ):
        work.lab.proxy.run(*sabotage)
        eventually(lambda: (work.qdisc_kinds(), work.rules()) == (plan, rules), f"healed after {sabotage}")
    work.abort(download)
