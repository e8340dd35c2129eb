"""Whatever others do to the interface, its qdiscs and the rules: healed, or nobody capped and the reason in one line.

Everybody else acts from outside, with the commands an operator or a network manager has. Changes of tc and of the
interface are told by netlink; those of rules, which nobody tells, are found by the audit: here once a second.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest
from bench import EXECUTABLES, MEGABYTE, Bench, eventually

from mptcp_lab.benchmarks.measure import cpu_seconds
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.origin import start_origin
from mptcp_lab.services import Services
from mptcp_lab.squid import start_squid
from mptcp_lab.topology import Topology, build

if TYPE_CHECKING:
    from mptcp_lab.process import Process

WITHIN: Final = 2.0
COMEBACK: Final = 15.0  # the sniffer opens its capture again, the kernel lists what is open, TCP's own timers run out
FIGHT_SECONDS: Final = 5.0

OWN_QDISC: Final = "handle 7: pfifo limit 77"
UP_AGAIN: Final = (
    "link set eth0 up",
    "address replace 10.3.0.2/24 dev eth0",
    "address replace fd00:3::2/64 dev eth0 nodad",
    "route replace default via 10.3.0.1 dev eth0",
    "route replace default via fd00:3::1 dev eth0",
)

BY_HAND: Final = (
    "tc qdisc del dev eth0 root",
    "tc class del dev eth0 classid 4d50:2",
    "tc qdisc del dev eth0 parent 4d50:2",
    "tc qdisc replace dev eth0 parent 4d50:2 pfifo limit 1",
    "tc qdisc replace dev eth0 parent 4d50:2 bfifo limit 3000",
    "tc class change dev eth0 classid 4d50:2 htb rate 9mbit",
    "tc class change dev eth0 classid 4d50:2 htb rate 1mbit ceil 9mbit",
    "tc class add dev eth0 parent 4d50: classid 4d50:99 htb rate 9mbit",
    "tc filter del dev eth0 parent 4d50:",
)

RULES_BY_HAND: Final = (
    "iptables-legacy -t mangle -F",
    "iptables-legacy -t mangle -F MPTCP-THROTTLE",
    "iptables-legacy -t mangle -D MPTCP-THROTTLE 1",
    "iptables-legacy -t mangle -A MPTCP-THROTTLE -j RETURN",
    "iptables-legacy -t mangle -A MPTCP-THROTTLE -p tcp --dport 5",
    "iptables-legacy -t mangle -I OUTPUT -j MPTCP-THROTTLE",
    "iptables-legacy -t mangle -D POSTROUTING -p tcp -j MPTCP-THROTTLE",
    "iptables-legacy -t mangle -F; iptables-legacy -t mangle -X",
    "ip6tables-legacy -t mangle -N MPTCP-THROTTLE",
    "ipset create mptcp-throttle-6-8080 hash:ip",
)

SETS_BY_HAND: Final = (
    "ipset flush mptcp-throttle-4-8080",
    "ipset add mptcp-throttle-4-8080 10.1.0.9,1,10.3.0.2 skbmark 0x20000/0xffff0000",
    "ipset add mptcp-throttle-4-8080 10.1.0.9,1,10.3.0.2",
    "ipset add mptcp-throttle-4-8080 10.1.0.9,1,10.3.0.2 skbmark 0x2/0xff",
    "ipset add mptcp-throttle-4-8080 10.1.0.9,udp:1,10.3.0.2 skbmark 0x20000/0xffff0000",
    "ipset create mptcp-throttle-4-9999 hash:ip,port,ip skbinfo",
    "ipset create mptcp-throttle-4-8080-new hash:ip",
    "ipset create other hash:ip,port,ip skbinfo; ipset swap mptcp-throttle-4-8080 other; ipset destroy other",
    "iptables-legacy -t mangle -F; ipset destroy mptcp-throttle-4-8080",
    "iptables-legacy -t mangle -F; ipset rename mptcp-throttle-4-8080 other; ipset destroy other",
    "iptables-legacy -t mangle -F; ipset destroy mptcp-throttle-4-8080; ipset create mptcp-throttle-4-8080 hash:ip",
)

COMMITTER: Final = """\
import time
import iptc

# Opening a table creates it: only the one that is there already.
iptc.Table.existing_table_names.update({name: name == "mangle" for name in iptc.Table.ALL})
table = iptc.Table("mangle", autocommit=False)
rule = iptc.Rule()
rule.protocol = "udp"
rule.create_target("RETURN")
while True:
    try:
        table.refresh()
        if not table.is_chain("SOMEBODY"):
            table.create_chain("SOMEBODY")
        chain = iptc.Chain(table, "SOMEBODY")
        chain.flush() if chain.rules else chain.append_rule(rule)
        time.sleep(0.003)
        table.commit()
    except iptc.IPTCError:
        pass  # somebody else wrote in between
"""


@pytest.fixture
def work(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """With an indirect parameter, that is the back end that marks packets."""
    with build(Topology(proxy_qdisc=OWN_QDISC)) as lab:
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        marks = getattr(request, "param", "auto")
        services = Services(lab.proxy, daemon={"reconcile_interval": "1s", "marks": marks})
        with services:
            yield Bench(lab, origin, services)


def the_daemon(work: Bench) -> Process:
    assert work.services.daemon is not None
    return work.services.daemon


def errors(work: Bench) -> list[str]:
    lines: list[str] = work.services.status()["daemon"]["errors"]
    return lines


def in_kernel(work: Bench) -> tuple[list[str], str]:
    return work.qdisc_kinds(), work.chain()


def root_qdisc(work: Bench, interface: str = "eth0") -> str:
    """The only qdisc of an interface, without what depends on the number of its queues."""
    shown = work.lab.proxy.run("tc", "qdisc", "show", "dev", interface).stdout
    return re.sub(r" refcnt \d+", "", shown).strip()


def nobody_held(work: Bench) -> bool:
    return work.capped() == [] and work.marks() == []


def stop_and_compare(work: Bench, before: dict[str, str]) -> None:
    """The daemon has lived through it all, and leaves everything as it was."""
    daemon = the_daemon(work)
    assert daemon.exit_status is None
    assert daemon.stop() == 0
    assert kernel_state(work.lab.proxy) == before
    assert "Traceback" not in daemon.log_text()
    assert work.services.sniffer is not None
    assert "Traceback" not in work.services.sniffer.log_text()


@pytest.mark.parametrize(
    ("work", "by_hand"),
    [("ipset", BY_HAND + RULES_BY_HAND + SETS_BY_HAND), ("rules", RULES_BY_HAND)],
    indirect=["work"],
)
def test_what_somebody_deletes_or_changes_is_put_in_place_again(work: Bench, by_hand: tuple[str, ...]) -> None:
    before = kernel_state(work.lab.proxy)
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    planned = in_kernel(work)
    for command in by_hand:
        work.lab.proxy.run("sh", "-c", command)
        eventually(lambda: in_kernel(work) == planned, f"healed after {command}", WITHIN)
        # All hosts of the lab share the lock of iptables(8): it may be taken for a moment.
        eventually(lambda: errors(work) == [], f"no error after {command}", WITHIN)
    work.abort(download)
    stop_and_compare(work, before)


def test_another_mark_in_the_place_of_ours_is_found_by_a_comparison(work: Bench) -> None:
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    planned = in_kernel(work)
    (mark,) = work.marks()
    subflow = f"{mark.client},{mark.client_port},{mark.proxy}"
    work.lab.proxy.run("ipset", "add", "-exist", "mptcp-throttle-4-8080", subflow, "skbmark", "0x30000/0xffff0000")
    assert in_kernel(work) != planned
    # A glance does not show it.
    eventually(lambda: in_kernel(work) == planned, "the mark is ours again", within=15)
    work.abort(download)


def test_an_interface_that_goes_down_and_up_is_as_planned_again(work: Bench) -> None:
    proxy = work.lab.proxy
    before = kernel_state(proxy)
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    proxy.ip(["link set eth0 down"])
    eventually(lambda: nobody_held(work), "nobody held", WITHIN)
    proxy.ip(UP_AGAIN)
    eventually(lambda: len(work.capped()) == 1, "capped again", COMEBACK)
    assert errors(work) == []
    work.abort(download)
    stop_and_compare(work, before)


def test_an_interface_that_is_deleted_and_made_again_is_as_planned_again(work: Bench) -> None:
    proxy, router = work.lab.proxy, work.lab.router
    before = kernel_state(proxy)
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    router.ip(["link delete proxy"])
    eventually(lambda: nobody_held(work), "nobody held", WITHIN)
    eventually(lambda: errors(work) == ["interface eth0 does not exist"], "the operator told", WITHIN)
    router.ip(
        [
            f"link add proxy type veth peer name eth0 netns {proxy.namespace}",
            "link set proxy up",
            "address add 10.3.0.1/24 dev proxy",
            "address add fd00:3::1/64 dev proxy nodad",
        ]
    )
    proxy.tc([f"qdisc replace dev eth0 root {OWN_QDISC}"])
    proxy.ip(UP_AGAIN)
    download.stop()
    download = work.download(200 * MEGABYTE)
    eventually(lambda: work.capped() != [], "capped again", COMEBACK)
    assert "htb 4d50:" in work.qdisc()
    assert errors(work) == []
    work.abort(download)
    stop_and_compare(work, before)


def test_an_interface_made_again_with_another_qdisc_keeps_that_one(work: Bench) -> None:
    proxy, router = work.lab.proxy, work.lab.router
    work.download(200 * MEGABYTE)
    work.wait_settled()
    router.ip(["link delete proxy"])
    eventually(lambda: nobody_held(work), "nobody held", WITHIN)
    router.ip([f"link add proxy type veth peer name eth0 netns {proxy.namespace}", "link set proxy up"])
    proxy.ip(UP_AGAIN)
    assert the_daemon(work).stop() == 0
    assert root_qdisc(work) == "qdisc noqueue 0: root"
    assert work.marks() == []


@pytest.mark.parametrize("how", ["down", "live"])
def test_an_interface_renamed_away_gets_its_qdisc_back_and_is_as_planned_when_it_returns(work: Bench, how: str) -> None:
    proxy = work.lab.proxy
    before = kernel_state(proxy)
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    renaming = "link set eth0 name eth9"
    if how == "live" and proxy.run("ip", *renaming.split(), check=False).returncode != 0:
        pytest.skip("this kernel renames no interface that is up (Linux 6.2)")
    if how == "down":
        proxy.ip(["link set eth0 down", renaming])
    own = "qdisc pfifo 7: root limit 77p"
    eventually(lambda: root_qdisc(work, "eth9") == own, "its own qdisc is back under the new name", WITHIN)
    eventually(lambda: nobody_held(work), "nobody held", WITHIN)
    assert errors(work) == ["interface eth0 does not exist"]
    proxy.ip(["link set eth9 down", "link set eth9 name eth0", *UP_AGAIN])
    eventually(lambda: len(work.capped()) == 1, "capped again", COMEBACK)
    assert errors(work) == []
    work.abort(download)
    stop_and_compare(work, before)


def test_under_a_new_address_of_the_proxy_new_subflows_are_capped_and_old_ones_forgotten(work: Bench) -> None:
    proxy, client = work.lab.proxy, work.lab.client
    before = kernel_state(proxy)
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    proxy.ip(
        [
            "address del 10.3.0.2/24 dev eth0",
            "address add 10.3.0.9/24 dev eth0",
            "route replace default via 10.3.0.1 dev eth0",
        ]
    )
    work.abort(download)
    document = work.origin.add(200 * MEGABYTE)
    url = f"http://{work.lab.origin_address(4)}/{document.name}"
    curl = client.start("curl", "mptcpize", "run", "curl", "-so", "/dev/null", "--proxy", "http://10.3.0.9:8080", url)
    eventually(lambda: any(mark.proxy == "10.3.0.9" for mark in work.marks()), "capped at the new address")
    eventually(lambda: all(mark.proxy != "10.3.0.2" for mark in work.marks()), "nobody held at the old", COMEBACK)
    assert errors(work) == []
    curl.stop()
    stop_and_compare(work, before)


def test_a_foreign_qdisc_in_the_place_of_ours_stays_and_is_told_and_when_it_goes_we_are_back(work: Bench) -> None:
    proxy = work.lab.proxy
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    planned = in_kernel(work)
    proxy.tc(
        [
            "qdisc replace dev eth0 root handle 9: htb default 1",
            "class add dev eth0 parent 9: classid 9:1 htb rate 90mbit",
        ]
    )
    foreign = work.qdisc_kinds()
    eventually(lambda: nobody_held(work), "nobody held", WITHIN)
    eventually(lambda: len(errors(work)) == 1, "the operator told", WITHIN)
    assert errors(work)[0].startswith("eth0: root qdisc htb 9: ")
    assert work.qdisc_kinds() == foreign
    proxy.tc(["qdisc del dev eth0 root"])
    eventually(lambda: in_kernel(work) == planned, "as planned", WITHIN)
    eventually(lambda: errors(work) == [], "resolved", WITHIN)
    work.abort(download)
    assert the_daemon(work).stop() == 0
    assert root_qdisc(work) == "qdisc pfifo 7: root limit 77p"


def test_a_qdisc_that_somebody_puts_in_the_place_of_ours_is_the_one_that_comes_back(work: Bench) -> None:
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    planned = in_kernel(work)
    work.lab.proxy.tc(["qdisc replace dev eth0 root handle 9: pfifo limit 55"])
    eventually(lambda: in_kernel(work) == planned, "as planned", WITHIN)
    work.abort(download)
    assert the_daemon(work).stop() == 0
    assert root_qdisc(work) == "qdisc pfifo 9: root limit 55p"


def test_a_program_that_commits_rules_all_the_time_costs_neither_side_its_rules(work: Bench) -> None:
    proxy = work.lab.proxy
    before = kernel_state(proxy)
    program = proxy.directory / "committer.py"
    program.write_text(COMMITTER, encoding="ascii")
    committer = proxy.start("committer", EXECUTABLES / "python", program)
    long = work.download(200 * MEGABYTE)
    for _ in range(6):
        assert work.download(2 * MEGABYTE).wait().intact
    assert "-N SOMEBODY" in proxy.run("iptables-legacy", "-t", "mangle", "-S").stdout
    assert committer.exit_status is None
    committer.stop()
    assert the_daemon(work).log_text().count(" cap token=") > 5
    eventually(lambda: len(work.marks()) == len(work.capped()) == 1, "as planned", WITHIN)
    assert work.services.cli_json("plan")["in_force"]
    assert errors(work) == []
    proxy.run("iptables-legacy", "-t", "mangle", "-F", "SOMEBODY")
    proxy.run("iptables-legacy", "-t", "mangle", "-X", "SOMEBODY")
    work.abort(long)
    stop_and_compare(work, before)


@pytest.mark.parametrize(
    ("kind", "theirs", "left"),
    [
        ("pfifo", "tc qdisc replace dev eth0 root handle 9: pfifo limit 9", "qdisc pfifo 9: root limit 9p"),
        (
            "htb",
            "tc qdisc del dev eth0 root; tc qdisc add dev eth0 root handle 9: htb",
            "qdisc pfifo 7: root limit 77p",
        ),
    ],
)
def test_in_a_fight_over_the_root_qdisc_we_keep_calm_and_have_the_last_word(
    work: Bench, kind: str, theirs: str, left: str
) -> None:
    proxy, daemon = work.lab.proxy, the_daemon(work)
    work.download(200 * MEGABYTE)
    work.wait_settled()
    planned = in_kernel(work)
    monitor = proxy.start("monitor", "tc", "monitor")
    fighter = proxy.start("fighter", "sh", "-c", f"while true; do {theirs}; sleep 0.1; done")
    cpu, lines, began = cpu_seconds(daemon.pid), len(daemon.log_text().splitlines()), time.monotonic()
    time.sleep(FIGHT_SECONDS)
    assert (cpu_seconds(daemon.pid) - cpu) / (time.monotonic() - began) < 0.2
    assert len(daemon.log_text().splitlines()) - lines <= 6 * FIGHT_SECONDS
    told = monitor.log_text()
    assert told.count(f"\nqdisc {kind} 9: ") > 3 * FIGHT_SECONDS
    assert told.count("\nqdisc htb 4d50: ") <= 2 * FIGHT_SECONDS
    fighter.stop()
    if kind == "htb":
        # We do not replace it: it could not be put back.
        proxy.run("tc", "qdisc", "del", "dev", "eth0", "root", check=False)
    eventually(lambda: in_kernel(work) == planned, "as planned once it has stopped", WITHIN)
    assert daemon.stop() == 0
    assert (root_qdisc(work), work.marks()) == (left, [])
    assert "Traceback" not in daemon.log_text()
