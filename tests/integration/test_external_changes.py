"""What other programs do to interface, qdiscs and rules is repaired; or no subflow is capped, and an error says why.

The tests act from outside, with the commands of an operator or a network manager. The kernel notifies changes of tc
and of the interface over netlink. Changes of iptables rules it does not: the reconcile of every second finds those.
"""

from __future__ import annotations

import re
import time
from typing import Final

import proxy_world
import pytest
from bpf_links import detach, links_of
from polling import eventually
from proxy_world import EXECUTABLES, MEGABYTE, Hosts, ProxyWorld

from mptcp_lab.benchmarks.measure import cpu_seconds
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.origin import endless
from mptcp_lab.topology import Topology
from mptcp_throttle.units import Rate

WITHIN: Final = 2.0
COMEBACK: Final = 15.0  # the sniffer opens its capture again, the kernel lists what is open, TCP's timers run out
CONTEST: Final = 40  # changes of the root qdisc: a new one every 0.1 s and the time of tc(8)

TOPOLOGY: Final = Topology(proxy_qdisc="handle 7: pfifo limit 77")
DAEMON: Final = {"reconcile_interval": "1s"}
InKernel = tuple[list[str], str]
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
    "iptables-legacy -t mangle -A MPTCP-THROTTLE -s 10.3.0.2 -d 10.1.0.9 -p tcp --sport 8080 --dport 1"
    " -j MARK --set-xmark 0x20000/0xffff0000",
    "iptables-legacy -t mangle -A MPTCP-THROTTLE -s 10.3.0.2 -d 10.1.0.9 -p tcp --sport 8080 --dport 1"
    " -j MARK --set-xmark 0x2/0xff",
    "iptables-legacy -t mangle -A MPTCP-THROTTLE -s 10.3.0.2 -d 10.1.0.9 -p udp --sport 8080 --dport 1"
    " -j MARK --set-xmark 0x20000/0xffff0000",
)

NFT_BY_HAND: Final = (
    "nft flush ruleset",
    "nft flush chain ip mptcp-throttle postrouting",
    "nft flush map ip mptcp-throttle subflows",
    "nft delete table ip mptcp-throttle",
    "nft add rule ip mptcp-throttle postrouting counter",
    "nft insert rule ip mptcp-throttle postrouting accept",
    "nft add element ip mptcp-throttle subflows '{ 10.1.0.9 . 1 . 10.3.0.2 . 8080 : 4d50:9 }'",
    "nft add table ip mptcp-throttle '{ flags dormant; }'",
    "nft add table ip6 mptcp-throttle",
    "iptables-legacy -t mangle -N MPTCP-THROTTLE; nft add rule ip mptcp-throttle postrouting counter",
)

COMMITTER: Final = """\
import time
import iptc

# python-iptables creates a table that it opens: open only the one that exists already.
iptc.Table.existing_table_names.update({name: name == "mangle" for name in iptc.Table.ALL})
table = iptc.Table("mangle", autocommit=False)
rule = iptc.Rule()
rule.protocol = "udp"
rule.create_target("RETURN")
while True:
    try:
        table.refresh()
        if not table.is_chain("FOREIGN"):
            table.create_chain("FOREIGN")
        chain = iptc.Chain(table, "FOREIGN")
        chain.flush() if chain.rules else chain.append_rule(rule)
        time.sleep(0.003)
        table.commit()
    except iptc.IPTCError:
        pass  # another program has committed in between
"""


@pytest.fixture(autouse=True)
def _own_qdisc(request: pytest.FixtureRequest) -> None:
    """A test of the module's hosts may have left them with another qdisc."""
    if "hosts" in request.fixturenames:
        hosts: Hosts = request.getfixturevalue("hosts")
        hosts.lab.proxy.tc([f"qdisc replace dev eth0 root {TOPOLOGY.proxy_qdisc}"])


@pytest.fixture
def planned(world: ProxyWorld, before: dict[str, str]) -> InKernel:
    """What is in the kernel while a download is capped, which the fixture begins."""
    assert "htb" not in str(before)
    world.begin_settled()
    return in_kernel(world)


def in_kernel(world: ProxyWorld) -> InKernel:
    return world.qdisc_kinds(), world.chain()


def root_qdisc(world: ProxyWorld, interface: str = "eth0") -> str:
    """The only qdisc of an interface, without what depends on the number of its queues."""
    shown = world.proxy.run("tc", "qdisc", "show", "dev", interface).stdout
    return re.sub(r" refcnt \d+", "", shown).strip()


def is_free(world: ProxyWorld) -> bool:
    return world.capped() == [] and world.assignments() == []


def stop_and_compare(world: ProxyWorld) -> None:
    """The daemon still runs, and its stop leaves everything as it was."""
    world.abort()
    assert world.daemon.exit_status is None
    assert world.daemon.stop() == 0, world.daemon.log_text()[-600:]
    assert kernel_state(world.proxy) == world.original


@pytest.mark.parametrize(
    ("world", "by_hand"),
    [("rules", BY_HAND + RULES_BY_HAND), ("nft", BY_HAND[:-1] + NFT_BY_HAND)],
    indirect=["world"],
)
def test_foreign_change_is_repaired_within_2_s(world: ProxyWorld, planned: InKernel, by_hand: tuple[str, ...]) -> None:
    for command in by_hand:
        world.proxy.run("sh", "-c", command)
        eventually(lambda: in_kernel(world) == planned, f"repaired after {command}", WITHIN)
        # All hosts of the lab share the lock of iptables(8), which may be taken for a moment.
        eventually(lambda: world.errors() == [], f"no error after {command}", WITHIN)
    stop_and_compare(world)


@pytest.mark.parametrize("world", ["rules"], indirect=True)
def test_replaced_mark_is_repaired_by_a_full_reconcile(world: ProxyWorld, planned: InKernel) -> None:
    (found,) = world.assignments()
    ends = f"-s {found.proxy} -d {found.client} -p tcp --sport {found.proxy_port} --dport {found.client_port}"
    rule = f"MPTCP-THROTTLE 1 {ends} -j MARK --set-xmark 0x30000/0xffff0000"
    world.proxy.run("iptables-legacy", "-t", "mangle", "-R", *rule.split())
    # The quick check does not see it: it counts. A full reconcile may come at any moment, so the log is what tells.
    eventually(
        lambda: "another program had changed kernel objects; repaired by" in world.daemon.log_text(),
        "the mark repaired",
    )
    assert in_kernel(world) == planned


@pytest.mark.parametrize("world", ["nft"], indirect=True)
def test_class_that_another_program_gives_a_subflow_is_repaired_at_once(world: ProxyWorld, planned: InKernel) -> None:
    (found,) = world.assignments()
    ends = f"{found.client} . {found.client_port} . {found.proxy} . {found.proxy_port}"
    elements = "element ip mptcp-throttle subflows"
    world.proxy.run("nft", f"delete {elements} {{ {ends} }}; add {elements} {{ {ends} : 1:2 }}")
    # The quick check reads what has changed: it need not wait for a full reconcile.
    eventually(lambda: in_kernel(world) == planned, "repaired", WITHIN)
    assert "another program had changed kernel objects; repaired by" in world.daemon.log_text()


def test_interface_down_and_up_is_capped_again(world: ProxyWorld) -> None:
    world.begin_settled()
    world.proxy.ip(["link set eth0 down"])
    eventually(lambda: is_free(world), "no subflow capped", WITHIN)
    world.proxy.ip(UP_AGAIN)
    eventually(lambda: len(world.capped()) == 1, "capped again", COMEBACK)
    assert world.errors() == []
    stop_and_compare(world)


def test_interface_deleted_and_recreated_is_capped_again(own_world: ProxyWorld) -> None:
    router = own_world.lab.router
    own_world.begin_settled()
    router.ip(["link delete proxy"])
    eventually(lambda: is_free(own_world), "no subflow capped", WITHIN)
    eventually(lambda: own_world.errors() == ["interface eth0 does not exist"], "the error reported", WITHIN)
    recreate(own_world)
    own_world.download()
    eventually(lambda: own_world.capped() != [], "capped again", COMEBACK)
    assert "htb 4d50:" in own_world.qdisc()
    assert own_world.errors() == []
    stop_and_compare(own_world)


def recreate(world: ProxyWorld) -> None:
    """Make the proxy's interface again, after it was deleted."""
    world.lab.router.ip(
        [
            f"link add proxy type veth peer name eth0 netns {world.proxy.namespace}",
            "link set proxy up",
            "address add 10.3.0.1/24 dev proxy",
            "address add fd00:3::1/64 dev proxy nodad",
        ]
    )
    world.proxy.tc([f"qdisc replace dev eth0 root {TOPOLOGY.proxy_qdisc}"])
    world.proxy.ip(UP_AGAIN)


@pytest.mark.parametrize("how", ["missing", "down"])
def test_interface_that_is_not_there_at_the_start_is_waited_for(how: str) -> None:
    with proxy_world.hosts(TOPOLOGY) as own, proxy_world.configured(own) as world:
        proxy = world.proxy
        if how == "missing":
            world.lab.router.ip(["link delete proxy"])
        else:
            proxy.ip(["link set eth0 down"])
        world.services.start_sniffer()
        world.start_daemon()
        errors = ["interface eth0 does not exist"] if how == "missing" else []
        assert world.errors() == errors
        assert world.daemon.log_text().count("ERROR") == len(errors)
        assert world.sniffer.log_text().count("ERROR eth0: cannot be captured: ") == 1
        assert "capture: none on eth0: missing or down" in world.services.cli("status").stdout
        doctor = world.services.cli("doctor", check=False)
        assert doctor.returncode == 1
        assert "problem  capture: none on eth0: missing or down" in doctor.stdout
        if how == "missing":
            recreate(world)
        else:
            proxy.ip(UP_AGAIN)
        world.download()
        eventually(lambda: world.capped() != [], "capped", COMEBACK)
        assert (world.errors(), world.services.exit_statuses) == ([], (None, None))
        stop_and_compare(world)


def test_interface_recreated_with_another_qdisc_keeps_that_one(own_world: ProxyWorld) -> None:
    proxy, router = own_world.proxy, own_world.lab.router
    own_world.begin_settled()
    router.ip(["link delete proxy"])
    eventually(lambda: is_free(own_world), "no subflow capped", WITHIN)
    router.ip([f"link add proxy type veth peer name eth0 netns {proxy.namespace}", "link set proxy up"])
    proxy.ip(UP_AGAIN)
    assert own_world.daemon.stop() == 0
    assert root_qdisc(own_world) == "qdisc noqueue 0: root"
    assert own_world.assignments() == []
    own_world.end_unreachable()


@pytest.mark.parametrize("how", ["down", "live"])
def test_interface_renamed_gets_its_saved_qdisc_back(world: ProxyWorld, how: str) -> None:
    world.begin_settled()
    renaming = "link set eth0 name eth9"
    if how == "live" and world.proxy.run("ip", *renaming.split(), check=False).returncode != 0:
        pytest.skip("this kernel renames no interface that is up (Linux 6.2)")
    if how == "down":
        world.proxy.ip(["link set eth0 down", renaming])
    own = "qdisc pfifo 7: root limit 77p"
    eventually(lambda: root_qdisc(world, "eth9") == own, "the saved qdisc restored under the new name", WITHIN)
    eventually(lambda: is_free(world), "no subflow capped", WITHIN)
    assert world.errors() == ["interface eth0 does not exist"]
    world.proxy.ip(["link set eth9 down", "link set eth9 name eth0", *UP_AGAIN])
    eventually(lambda: len(world.capped()) == 1, "capped again", COMEBACK)
    assert world.errors() == []
    stop_and_compare(world)


def test_new_proxy_address_is_capped_and_the_old_one_forgotten(own_world: ProxyWorld) -> None:
    proxy, client = own_world.proxy, own_world.lab.client
    own_world.begin_settled()
    proxy.ip(
        [
            "address del 10.3.0.2/24 dev eth0",
            "address add 10.3.0.9/24 dev eth0",
            "route replace default via 10.3.0.1 dev eth0",
        ]
    )
    own_world.abort()
    url = f"http://{own_world.lab.origin_address(4)}/{endless(own_world.origin).name}"
    curl = client.start("curl", "mptcpize", "run", "curl", "-so", "/dev/null", "--proxy", "http://10.3.0.9:8080", url)
    eventually(lambda: any(each.proxy == "10.3.0.9" for each in own_world.assignments()), "capped at the new address")
    eventually(
        lambda: all(each.proxy != "10.3.0.2" for each in own_world.assignments()),
        "none capped at the old one",
        COMEBACK,
    )
    assert own_world.errors() == []
    own_world.abort()
    curl.stop()
    stop_and_compare(own_world)
    own_world.end_unreachable()


@pytest.mark.parametrize("world", ["nft"], indirect=True)
def test_foreign_qdisc_that_cannot_be_saved_stays_and_is_reported(world: ProxyWorld, planned: InKernel) -> None:
    world.proxy.tc(
        [
            "qdisc replace dev eth0 root handle 9: htb default 1",
            "class add dev eth0 parent 9: classid 9:1 htb rate 90mbit",
        ]
    )
    foreign = [line for line in world.qdisc_kinds() if "clsact" not in line]  # that is ours
    eventually(lambda: is_free(world), "no subflow capped", WITHIN)
    eventually(lambda: len(world.errors()) == 1, "the error reported", WITHIN)
    assert world.errors()[0].startswith("eth0: root qdisc htb 9: ")
    eventually(lambda: world.qdisc_kinds() == foreign, "nothing of ours", WITHIN)
    world.proxy.tc(["qdisc del dev eth0 root"])
    eventually(lambda: in_kernel(world) == planned, "as planned", WITHIN)
    eventually(lambda: world.errors() == [], "resolved", WITHIN)
    assert world.daemon.stop() == 0
    assert root_qdisc(world) == "qdisc pfifo 7: root limit 77p"


def test_iptables_commits_of_another_program_lose_no_rules(world: ProxyWorld) -> None:
    program = world.proxy.directory / "committer.py"
    program.write_text(COMMITTER, encoding="ascii")
    committer = world.proxy.start("committer", EXECUTABLES / "python", program)
    world.download()

    def more_was_capped() -> bool:
        assert world.download(2 * MEGABYTE, rate_limit=Rate(8 * MEGABYTE)).wait().intact
        return world.daemon.log_text().count(" cap token=") > 5

    eventually(more_was_capped, "six downloads capped", within=60)
    assert "-N FOREIGN" in world.proxy.run("iptables-legacy", "-t", "mangle", "-S").stdout
    assert committer.exit_status is None
    committer.stop()
    eventually(lambda: len(world.assignments()) == len(world.capped()) == 1, "as planned", WITHIN)
    assert world.services.cli_json("plan")["applied"]
    assert world.errors() == []
    world.proxy.run("iptables-legacy", "-t", "mangle", "-F", "FOREIGN")
    world.proxy.run("iptables-legacy", "-t", "mangle", "-X", "FOREIGN")
    stop_and_compare(world)


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
def test_contest_over_the_root_qdisc_is_bounded_and_won(
    world: ProxyWorld, kind: str, theirs: str, left: str, planned: InKernel
) -> None:
    proxy, daemon = world.proxy, world.daemon

    def notified(qdisc: str) -> int:
        return monitor.log_text().count(f"\nqdisc {qdisc}: ")

    monitor = proxy.start("monitor", "tc", "monitor")
    fighter = proxy.start("fighter", "sh", "-c", f"while true; do {theirs}; sleep 0.1; done")
    cpu, lines, began = cpu_seconds(daemon.pid), len(daemon.log_text().splitlines()), time.monotonic()
    eventually(lambda: notified(f"{kind} 9") >= CONTEST, f"{CONTEST} changes by the other program")
    seconds = time.monotonic() - began
    assert (cpu_seconds(daemon.pid) - cpu) / seconds < 0.2
    assert len(daemon.log_text().splitlines()) - lines <= 6 * seconds
    assert notified("htb 4d50") <= 2 * seconds + 2  # the back-off begins with shorter pauses
    fighter.stop()
    monitor.stop()
    if kind == "htb":
        # The daemon does not replace an HTB that is not ours: it could not be restored.
        proxy.run("tc", "qdisc", "del", "dev", "eth0", "root", check=False)
    eventually(lambda: in_kernel(world) == planned, "as planned once it has stopped", WITHIN)
    assert daemon.stop() == 0
    assert (root_qdisc(world), world.assignments()) == (left, [])


@pytest.mark.parametrize("world", [{"steering": True}, {"steering": False}], indirect=True, ids=["steering", "paces"])
def test_programs_that_another_program_detached_are_attached_again(world: ProxyWorld) -> None:
    world.begin_capped()
    world.wait_restrained()
    pid = world.daemon.pid
    before = links_of(pid)
    assert list(before.values()) == 4 * [
        True
    ]  # at the proxy's cgroup, two at the ingress and one at the egress of eth0
    for link in before:
        detach(link)
    assert not any(links_of(pid).values())
    eventually(lambda: list(links_of(pid).values()) == 4 * [True], "attached again", within=WITHIN)
    assert not links_of(pid).keys() & before.keys()
    world.wait_restrained()
    with world.daemon.suspended():
        world.download()
        world.wait_restrained(2)
    assert world.services.status()["daemon"]["errors"] == []
