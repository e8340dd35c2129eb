"""All classifiers do the same, and each replaces what the others left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Protocol, TypeVar

import pytest
from examples import ends
from foreign_program import own_cgroup
from proxy_world import ALL_CLASSIFIERS, PACKET_CLASSIFIERS
from refusals import refused

from mptcp_lab.class_assignments import SHOW_ASSIGNMENTS, parse_assignments
from mptcp_lab.host import Host
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.sdn import open_vswitch
from mptcp_lab.sdn.open_vswitch import OpenVswitch
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import ClassifierKind, Endpoint, FourTuple
from mptcp_throttle.own_chains import AFTER_NAT
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel.classes.choice import choose_classifier
from mptcp_throttled.kernel.classes.classifier import Classifier
from mptcp_throttled.kernel.classes.nft import NftClassifier
from mptcp_throttled.kernel.classes.rules import RulesClassifier
from mptcp_throttled.kernel.classes.socket import SocketClassifier
from mptcp_throttled.kernel.openvswitch.openflow import OpenFlowClassifier, leaves_no_room
from mptcp_throttled.kernel.openvswitch.queues import PortQueues
from mptcp_throttled.kernel.openvswitch.switch import OpenVswitch as Programs
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.vocabulary.features import Situation
from mptcp_throttled.vocabulary.kernel_state import AssignmentState

AnyClassifier = TypeVar("AnyClassifier", bound=Classifier)

MASK: Final = 0x00FF_0000
PORTS: Final = (8080, 3128)


def numbered(count: int) -> dict[FourTuple, int]:
    """So many subflows, each with a minor."""
    return {ends(f"10.1.{n // 250}.{n % 250}", 1024 + n): n % 255 + 1 for n in range(count)}


ONE, TWO, OTHER_PORT = ends("10.1.0.2"), ends("10.1.0.2", 40001), ends("10.1.0.2", proxy_port=3128)
SIX: Final = ends("fd00:1::2")


@pytest.fixture(scope="module", autouse=True)
def entered(host: Host) -> Iterator[None]:
    """All tests run in the network namespace of the proxy."""
    with in_namespace(host.namespace):
        yield


class Use(Protocol):
    def __call__(self, classifier: AnyClassifier) -> AnyClassifier: ...


@pytest.fixture
def use(host: Host) -> Iterator[Use]:
    """A function that takes a classifier, which is closed after the test and must have left nothing in the kernel."""
    with ExitStack() as stack:
        yield lambda classifier: stack.enter_context(closing(classifier))
    assert left(host) == ""


@pytest.fixture
def sockets() -> Iterator[PacedSockets]:
    """The kernel program on a cgroup without a process."""
    with own_cgroup() as cgroup:
        sockets = PacedSockets(Proxies.only(Ports.of(PORTS)), cgroup)
        sockets.follow(Situation())
        assert sockets.is_attached
        yield sockets
        sockets.close()


@pytest.fixture(scope="module")
def switch(host: Host) -> OpenVswitch:
    """An Open vSwitch, whose port eth0 is. Rules are the same with any datapath."""
    return open_vswitch.put_bridge_before(host, "eth0")


@pytest.fixture(params=ALL_CLASSIFIERS)
def classifier(request: pytest.FixtureRequest, use: Use) -> Iterator[Classifier]:
    """A classifier, whose assignments are removed after the test."""
    if request.param == "ovs":
        switch: OpenVswitch = request.getfixturevalue("switch")
        used: Classifier = use(OpenFlowClassifier("eth0", Programs(switch.directory)))
    elif request.param == "socket":
        used = use(SocketClassifier(request.getfixturevalue("sockets"), RulesClassifier(MASK)))
    else:
        used = use(by_packet(request.param))
    yield used
    for version in (4, 6):
        used.remove(version)
    if request.param == "ovs":
        assert switch.rules("dump-flows") == " priority=0 actions=NORMAL\n"


def by_packet(kind: str) -> Classifier:
    return NftClassifier() if kind == "nft" else RulesClassifier(MASK)


def left(host: Host) -> str:
    shown = host.run("sh", "-c", SHOW_ASSIGNMENTS).stdout
    return "\n".join(line for line in shown.splitlines() if re.search("mptcp-throttle", line, re.IGNORECASE))


def is_in_kernel(classifier: Classifier, host: Host, wanted: Mapping[FourTuple, int]) -> bool:
    """Whether iptables or nftables do exactly that, for the classifiers that use them."""
    return in_kernel(host) == (wanted if classifier.kind in PACKET_CLASSIFIERS else {})


def in_kernel(host: Host) -> dict[FourTuple, int]:
    found = parse_assignments(host.run("sh", "-c", SHOW_ASSIGNMENTS).stdout)
    assert {each.mask for each in found} <= {MASK, 0}
    return {
        FourTuple(Endpoint(ip_address(m.client), m.client_port), Endpoint(ip_address(m.proxy), m.proxy_port)): m.minor
        for m in found
    }


@pytest.mark.parametrize("classifier", [*ALL_CLASSIFIERS, "ovs"], indirect=True)
def test_classifier_reads_back_what_it_made_and_changed(classifier: Classifier, host: Host) -> None:
    classifier.require()
    assert classifier.read() == {}

    classifier.make(4, {ONE: 2, OTHER_PORT: 255})
    classifier.make(6, {SIX: 3})
    assert classifier.read() == {4: AssignmentState({ONE: 2, OTHER_PORT: 255}), 6: AssignmentState({SIX: 3})}
    assert classifier.count() == {4: 2, 6: 1}
    assert is_in_kernel(classifier, host, {ONE: 2, OTHER_PORT: 255, SIX: 3})

    classifier.change(4, {TWO: 4, ONE: 5}, {ONE: 2, OTHER_PORT: 255})
    assert classifier.read()[4] == AssignmentState({TWO: 4, ONE: 5})
    assert is_in_kernel(classifier, host, {TWO: 4, ONE: 5, SIX: 3})

    classifier.change(4, {}, {TWO: 4, ONE: 5})
    assert classifier.read()[4] == AssignmentState({})

    classifier.remove(4)
    assert classifier.read() == {6: AssignmentState({SIX: 3})}
    assert classifier.count() == {6: 1}


def test_make_replaces_an_altered_chain_and_its_assignments(use: Use, host: Host) -> None:
    classifier = use(RulesClassifier(MASK))
    classifier.make(4, {ONE: 2, OTHER_PORT: 3})
    host.run("iptables-legacy", "-t", "mangle", "-I", "OUTPUT", "-j", "MPTCP-THROTTLE")
    host.run("iptables-legacy", "-t", "mangle", "-A", "MPTCP-THROTTLE", "-j", "RETURN")
    assert classifier.read()[4].altered
    assert classifier.count() == {4: None}
    classifier.make(4, {TWO: 4})
    assert classifier.read() == {4: AssignmentState({TWO: 4})}
    assert in_kernel(host) == {TWO: 4}
    classifier.remove(4)


@pytest.mark.parametrize("classifier", [*ALL_CLASSIFIERS, "ovs"], indirect=True)
def test_classifier_changes_assignments_by_the_thousand(classifier: Classifier) -> None:
    many = numbered(1500)
    first = numbered(100)
    later = {end: minor for end, minor in many.items() if end not in first}
    classifier.make(4, first)
    classifier.change(4, later, {})
    assert classifier.read() == {4: AssignmentState(many)}
    assert classifier.count() == {4: 1500}
    classifier.change(4, {}, later)
    assert classifier.read() == {4: AssignmentState(first)}


@pytest.mark.parametrize("left_by", PACKET_CLASSIFIERS)
def test_classifier_removes_what_another_one_left(classifier: Classifier, host: Host, use: Use, left_by: str) -> None:
    if classifier.kind == left_by:
        return
    earlier = use(by_packet(left_by))
    earlier.make(4, {ONE: 2})
    earlier.make(6, {SIX: 2})
    assert [(version, chain.altered) for version, chain in classifier.read().items()] == [(4, True), (6, True)]
    classifier.make(4, {TWO: 3})
    classifier.remove(6)
    assert classifier.read() == {4: AssignmentState({TWO: 3})}
    assert is_in_kernel(classifier, host, {TWO: 3})
    assert ("MPTCP-THROTTLE" in left(host)) == (classifier.kind == "rules")
    assert ("table ip mptcp-throttle" in left(host)) == (classifier.kind == "nft")
    assert "table ip6 mptcp-throttle" not in left(host)


NFT_RULE: Final = "nft add rule ip mptcp-throttle postrouting"
NFT_FIELDS: Final = "ip daddr . tcp dport . ip saddr . tcp sport"
NFT_TYPE: Final = "type ipv4_addr . inet_service . ipv4_addr . inet_service : classid"
NEW_TABLE: Final = "nft delete table ip mptcp-throttle; nft add table ip mptcp-throttle"
NEW_MAP: Final = f"{NEW_TABLE}; nft add map ip mptcp-throttle subflows"
NEW_CHAIN: Final = "nft delete chain ip mptcp-throttle postrouting; nft add chain ip mptcp-throttle postrouting"


@pytest.mark.parametrize(
    "by_hand",
    [
        f"{NFT_RULE} counter",
        "nft insert rule ip mptcp-throttle postrouting accept",
        "nft flush chain ip mptcp-throttle postrouting",
        "nft delete chain ip mptcp-throttle postrouting",
        "nft add chain ip mptcp-throttle other",
        f"nft add map ip mptcp-throttle other '{{ {NFT_TYPE}; }}'",
        "nft add table ip mptcp-throttle '{ flags dormant; }'",
        f"nft flush chain ip mptcp-throttle postrouting; {NFT_RULE} meta priority set"
        " ip daddr . tcp sport . ip saddr . tcp dport map @subflows",
        f"nft flush chain ip mptcp-throttle postrouting; {NFT_RULE} meta priority set 1:2",
        f"{NEW_CHAIN} '{{ type filter hook postrouting priority 0; }}'; {NFT_RULE} meta priority set {NFT_FIELDS}"
        " map @subflows",
        f"{NEW_CHAIN} '{{ type filter hook output priority mangle; }}'; {NFT_RULE} meta priority set {NFT_FIELDS}"
        " map @subflows",
        "nft add chain ip mptcp-throttle postrouting '{ policy drop; }'",
        NEW_TABLE,
        f"{NEW_MAP} '{{ {NFT_TYPE}; flags timeout; }}'",
        f"{NEW_MAP} '{{ {NFT_TYPE}; size 9; }}'",
        "nft add element ip mptcp-throttle subflows '{ 10.1.0.9 . 1 . 10.3.0.2 . 8080 : 1:2 }'",
        "nft add element ip mptcp-throttle subflows '{ 10.1.0.9 . 1 . 10.3.0.2 . 8080 : 4d50:0 }'",
        "nft add element ip mptcp-throttle subflows '{ 10.1.0.9 . 1 . 10.3.0.2 . 8080 comment \"x\" : 4d50:2 }'",
    ],
)
def test_make_replaces_an_altered_table(host: Host, use: Use, by_hand: str) -> None:
    classifier = use(NftClassifier())
    classifier.make(4, {ONE: 2, OTHER_PORT: 3})
    classifier.make(6, {SIX: 3})
    assert classifier.read() == {4: AssignmentState({ONE: 2, OTHER_PORT: 3}), 6: AssignmentState({SIX: 3})}
    host.run("sh", "-ec", by_hand)
    assert classifier.count() == {4: None, 6: 1}
    assert classifier.read()[4].altered
    classifier.make(4, {TWO: 4})
    assert classifier.read() == {4: AssignmentState({TWO: 4}), 6: AssignmentState({SIX: 3})}
    assert in_kernel(host) == {TWO: 4, SIX: 3}
    classifier.remove(4)
    classifier.remove(6)


def test_chain_on_the_other_side_of_nat_is_altered(host: Host, use: Use) -> None:
    use(NftClassifier()).make(4, {ONE: 2})
    classifier = use(NftClassifier(AFTER_NAT))
    assert classifier.count() == {4: None}
    classifier.make(4, {ONE: 2})
    assert classifier.read() == {4: AssignmentState({ONE: 2})}
    assert "hook postrouting priority srcnat + 1;" in host.run("nft", "list", "table", "ip", "mptcp-throttle").stdout
    classifier.remove(4)


def test_flush_of_all_nftables_is_counted_and_read(host: Host, use: Use) -> None:
    classifier = use(NftClassifier())
    classifier.make(4, {ONE: 2})
    assert classifier.read() == {4: AssignmentState({ONE: 2})}
    host.run("nft", "flush", "ruleset")
    assert classifier.count() == {}
    with pytest.raises(KernelError, match=r"^nft add element ip mptcp-throttle subflows: .*: ENOENT$"):
        classifier.change(4, {TWO: 3}, {})
    assert classifier.read() == {}
    classifier.make(4, {ONE: 2})
    assert classifier.count() == {4: 1}
    classifier.remove(4)


def test_foreign_nftables_stay_and_a_change_of_them_costs_one_reading(host: Host, use: Use) -> None:
    host.run("nft", "add table ip others; add chain ip others mptcp-throttle; add table inet mptcp-throttle")
    before = host.run("nft", "list", "ruleset").stdout
    classifier = use(NftClassifier())
    assert classifier.read() == {}
    classifier.make(4, {ONE: 2})
    host.run("nft", "add", "rule", "ip", "others", "mptcp-throttle", "counter")
    assert classifier.count() == {4: 1}
    with refused("nft list"):
        assert classifier.count() == {4: 1}  # nothing has changed since, nothing is read
        classifier.change(4, {TWO: 2}, {})
        assert classifier.count() == {4: 2}
    classifier.remove(4)
    host.run("nft", "flush", "chain", "ip", "others", "mptcp-throttle")
    assert host.run("nft", "list", "ruleset").stdout == before
    host.run("nft", "flush", "ruleset")


CHANGING: Final = "while true; do nft add table ip others; nft add chain ip others c; nft delete table ip others; done"


def test_tables_are_read_while_another_program_keeps_changing_its_own(host: Host, use: Use) -> None:
    classifier = use(NftClassifier())
    many = numbered(9000)
    classifier.make(4, many)
    assert classifier.read() == {4: AssignmentState(many)}
    changing = host.start("changing", "sh", "-c", CHANGING)
    began = time.monotonic()
    while time.monotonic() < began + 3:
        assert classifier.read() == {4: AssignmentState(many)}
        assert classifier.count() == {4: 9000}
    assert changing.exit_status is None
    changing.stop()
    host.run("nft", "flush", "ruleset")


def test_change_of_a_map_is_made_as_a_whole(use: Use) -> None:
    classifier = use(NftClassifier())
    classifier.make(4, {ONE: 2, TWO: 3})
    with pytest.raises(KernelError, match="EEXIST"):
        classifier.change(4, {TWO: 5, OTHER_PORT: 2}, {ONE: 2})
    assert classifier.count() == {4: 2}
    assert classifier.read() == {4: AssignmentState({ONE: 2, TWO: 3})}
    classifier.remove(4)


def test_nft_makes_no_table_of_iptables() -> None:
    script = """
from pathlib import Path
from mptcp_throttled.kernel.classes.nft import NftClassifier
from mptcp_throttled.kernel.classes.rules import RulesClassifier
classifier = NftClassifier()
classifier.make(4, {})
assert RulesClassifier(1).read()[4].altered
classifier.remove(4)
classifier.remove(6)
assert Path("/proc/net/ip_tables_names").read_text() == Path("/proc/net/ip6_tables_names").read_text() == ""
"""
    subprocess.run(["unshare", "--net", sys.executable, "-c", script], check=True)


FOREIGN_RULE: Final = "-t mangle -A FORWARD -p tcp -m comment --comment other -j MARK --set-mark 5"
_RIGHTS: Final = "+net_admin,+net_raw"
UNPRIVILEGED: Final = f"--reuid=65534 --regid=65534 --clear-groups --inh-caps={_RIGHTS} --ambient-caps={_RIGHTS}"


@pytest.mark.parametrize("tool", ["iptables-legacy", "ip6tables-legacy"])
@pytest.mark.parametrize("user", ["", f"setpriv {UNPRIVILEGED}"], ids=["root", "unprivileged"])
def test_iptables_is_not_loaded_beside_a_table_of_others(tool: str, user: str) -> None:
    """It takes a quarter of a second of each start; who may not list the tables finds one wherever one may be."""
    script = """
import sys
from mptcp_throttled.kernel.classes.nft import NftClassifier
from mptcp_throttled.kernel.classes.rules import RulesClassifier
assert NftClassifier().read() == RulesClassifier(1).read() == {}
assert "iptc" not in sys.modules and "setuptools" not in sys.modules
"""
    commands = f"{tool} {FOREIGN_RULE} && exec {user} {sys.executable} -c '{script}'"
    subprocess.run(["unshare", "--net", "sh", "-c", commands], check=True)


@pytest.mark.parametrize(("tool", "version"), [("iptables-legacy", 4), ("ip6tables-legacy", 6)])
def test_our_chain_is_found_beside_rules_of_others(tool: str, version: int) -> None:
    script = """
from mptcp_throttled.kernel.classes.nft import NftClassifier
print({version: state.altered for version, state in NftClassifier().read().items()})
"""
    chain = f"{tool} -t mangle -N MPTCP-THROTTLE && {tool} -t mangle -A OUTPUT -j MPTCP-THROTTLE"
    commands = f"{tool} {FOREIGN_RULE} && {chain} && exec {sys.executable} -c '{script}'"
    found = subprocess.run(["unshare", "--net", "sh", "-c", commands], check=True, stdout=subprocess.PIPE, text=True)
    assert found.stdout == f"{{{version}: True}}\n"


def test_rules_of_another_configuration_are_replaced(host: Host, use: Use) -> None:
    use(RulesClassifier(0xFF00_0000)).make(4, {ONE: 2})
    classifier = use(RulesClassifier(MASK))
    assert classifier.read()[4].altered
    classifier.make(4, {ONE: 2})
    assert classifier.read() == {4: AssignmentState({ONE: 2})}
    assert in_kernel(host) == {ONE: 2}
    classifier.remove(4)


@pytest.mark.parametrize(
    ("kind", "call"), [("rules", "iptables-legacy -t mangle -A"), ("nft", "nft add table ip mptcp-throttle")]
)
def test_make_that_fails_leaves_nothing(use: Use, kind: str, call: str) -> None:
    classifier = use(by_packet(kind))
    with refused(call), pytest.raises(KernelError, match=call):
        classifier.make(4, {ONE: 2})
    assert classifier.read() == {}


def test_remove_names_a_chain_used_by_a_foreign_rule(host: Host, use: Use) -> None:
    classifier = use(RulesClassifier(MASK))
    classifier.make(4, {ONE: 2})
    mangle = ("iptables-legacy", "-t", "mangle")
    host.run(*mangle, "-N", "FOREIGN")
    host.run(*mangle, "-A", "FOREIGN", "-j", "MPTCP-THROTTLE")
    classifier.make(4, {TWO: 2})
    assert classifier.read() == {4: AssignmentState({TWO: 2})}
    with pytest.raises(KernelError, match=r"^iptables-legacy -t mangle -X MPTCP-THROTTLE: "):
        classifier.remove(4)
    assert in_kernel(host) == {}
    host.run(*mangle, "-F", "FOREIGN")
    host.run(*mangle, "-X", "FOREIGN")
    classifier.remove(4)


def test_auto_means_nft_or_rules_where_the_kernel_lacks_nftables(use: Use, caplog: pytest.LogCaptureFixture) -> None:
    assert use(choose_classifier(ClassifierKind.AUTO, MASK, None).present).kind == "nft"
    assert caplog.messages == []  # no warning
    with refused("look for maps of nftables"):
        assert use(choose_classifier(ClassifierKind.AUTO, MASK, None).present).kind == "rules"
        with pytest.raises(KernelError, match=r"^look for maps of nftables: ENOENT"):
            use(choose_classifier(ClassifierKind.NFT, MASK, None).present).require()
    (line,) = caplog.messages
    assert line.startswith("nftables is not available, so classifier `rules` is used where `socket` cannot be: ")


def test_auto_means_sockets_while_the_program_is_attached(use: Use, sockets: PacedSockets) -> None:
    choice = choose_classifier(ClassifierKind.AUTO, MASK, sockets)
    use(choice.present)
    assert choice.present.kind == "socket"
    sockets.close()
    assert choice.present.kind == "nft"


@pytest.mark.parametrize(
    "rule",
    [
        "cookie=0x4d507468,priority=40000,tcp,nw_src=10.3.0.2,tp_src=8080,nw_dst=10.1.0.9,tp_dst=1,actions=NORMAL",
        "cookie=0x4d507468,priority=7,tcp,nw_src=10.3.0.2,actions=set_queue:1,NORMAL",
        "cookie=0x4d507468,priority=40000,tcp,nw_src=10.3.0.0/24,tp_src=8080,nw_dst=10.1.0.9,tp_dst=1,"
        "actions=set_queue:1,NORMAL",
    ],
)
def test_altered_openflow_rule_is_replaced(switch: OpenVswitch, use: Use, rule: str) -> None:
    classifier = use(OpenFlowClassifier("eth0", Programs(switch.directory)))
    classifier.make(4, {ONE: 2})
    switch.rules("add-flow", rule)
    assert classifier.read()[4].altered
    assert classifier.count() == {4: None}
    classifier.make(4, {TWO: 3})
    assert classifier.read() == {4: AssignmentState({TWO: 3})}
    classifier.remove(4)
    assert not leaves_no_room(Programs(switch.directory), "br0")


@pytest.fixture
def other_bridges(switch: OpenVswitch) -> Iterator[None]:
    """br1 with the port other0, and br2, which does not speak our version of OpenFlow."""
    add = ("add-br", "br1", "--", "set", "Bridge", "br1", "datapath_type=netdev", "--", "add-port", "br1", "other0")
    switch.run(*add, "--", "set", "Interface", "other0", "type=dummy")
    switch.run("add-br", "br2", "--", "set", "Bridge", "br2", "datapath_type=netdev", "protocols=OpenFlow10")
    yield
    switch.run("del-br", "br1", "--", "del-br", "br2")


@pytest.mark.usefixtures("other_bridges")
def test_openflow_rules_on_another_bridge_than_ours_are_removed(switch: OpenVswitch, use: Use) -> None:
    use(OpenFlowClassifier("eth0", Programs(switch.directory))).make(4, {ONE: 2})
    classifier = use(OpenFlowClassifier("other0", Programs(switch.directory)))
    assert classifier.read()[4].altered
    classifier.make(4, {ONE: 2})
    assert classifier.read() == {4: AssignmentState({ONE: 2})}
    assert "set_queue" not in switch.rules("dump-flows")
    classifier.remove(4)
    assert classifier.read() == {}


@pytest.mark.usefixtures("other_bridges")
def test_openflow_rules_are_removed_though_our_port_is_on_no_bridge(switch: OpenVswitch, use: Use) -> None:
    use(OpenFlowClassifier("eth0", Programs(switch.directory))).make(4, {ONE: 2})
    classifier = use(OpenFlowClassifier("eth1", Programs(switch.directory)))
    assert classifier.read()[4].altered
    with pytest.raises(KernelError, match=r"^eth1 is not a port of an Open vSwitch bridge: ENODEV$"):
        classifier.make(4, {ONE: 2})
    classifier.remove(4)
    assert classifier.read() == {}


@pytest.mark.parametrize("rule", ["priority=100,udp,actions=drop", "cookie=0x4d507468,udp,actions=drop"])
def test_rule_of_another_program_leaves_no_room(switch: OpenVswitch, use: Use, rule: str) -> None:
    classifier = use(OpenFlowClassifier("eth0", Programs(switch.directory)))
    assert not leaves_no_room(Programs(switch.directory), "br0")
    switch.rules("add-flow", rule)
    assert leaves_no_room(Programs(switch.directory), "br0")
    assert classifier.read() == {}
    switch.rules("del-flows", "udp")


def test_bridge_without_the_rule_normal_has_no_room(switch: OpenVswitch) -> None:
    switch.rules("del-flows")
    assert leaves_no_room(Programs(switch.directory), "br0")
    switch.rules("add-flow", "priority=0,actions=NORMAL")
    assert not leaves_no_room(Programs(switch.directory), "br0")


def test_switch_that_does_not_answer_is_asked_again_later(switch: OpenVswitch) -> None:
    programs = Programs(switch.directory)
    os.kill(switch.daemon.pid, signal.SIGSTOP)
    try:
        with pytest.raises(KernelError, match=r"^ovs-ofctl .*ETIMEDOUT \(ovs-vswitchd does not answer\)$"):
            programs.rules("br0")
        began = time.monotonic()
        with pytest.raises(KernelError, match=r"^ovs-vsctl .*ETIMEDOUT \(ovs-vswitchd has not answered just now\)$"):
            programs.change(("clear", "Port", "eth0", "qos"))
        assert programs.bridges()  # of the database
        assert time.monotonic() < began + 2
    finally:
        os.kill(switch.daemon.pid, signal.SIGCONT)


def test_userspace_datapath_is_refused(switch: OpenVswitch) -> None:
    queues = PortQueues("eth0", Programs(switch.directory))
    obstacle = "bridge br0 has the datapath netdev, which ignores queues"
    assert queues.read().obstacle == obstacle
    with pytest.raises(KernelError, match=obstacle):
        queues.install(0)
    assert PortQueues("eth1", Programs(switch.directory)).read().obstacle == (
        "eth1 is not a port of an Open vSwitch bridge"
    )


def test_absent_open_vswitch_is_named(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    assert not programs.is_accessible
    with pytest.raises(KernelError, match=r"^ovs-vsctl .*No such file or directory"):
        programs.bridges()


def test_open_vswitch_whose_directory_is_closed_to_us_may_be_there(tmp_path: Path) -> None:
    assert not Programs(tmp_path).may_be_there
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    look = f"""
import os
from pathlib import Path
from mptcp_throttled.kernel.openvswitch.switch import OpenVswitch
os.setuid(65534)
switch = OpenVswitch(Path({str(closed)!r}))
assert switch.may_be_there and not switch.is_accessible
"""
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    subprocess.run([sys.executable, "-c", look], check=True)


def test_classes_of_a_detached_program_are_gone(use: Use, sockets: PacedSockets) -> None:
    classifier = use(SocketClassifier(sockets, RulesClassifier(MASK)))
    classifier.make(4, {ONE: 2})
    sockets.close()
    assert classifier.read() == {4: AssignmentState({})}
    with pytest.raises(KernelError, match="the program is not attached"):
        classifier.make(4, {ONE: 2})
