"""Golden: a plan in, the exact commands out."""

from collections.abc import Sequence

from examples import ends, kernel_plan

from mptcp_throttle.own_chains import AFTER_NAT, BEFORE_NAT
from mptcp_throttle.ports import Ports
from mptcp_throttle.units import Rate
from mptcp_throttled.answers.plan_commands.commands import as_commands
from mptcp_throttled.enforcing.diff import diff
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.vocabulary import class_ids
from mptcp_throttled.vocabulary.kernel_state import KernelState
from mptcp_throttled.vocabulary.operations import (
    ChangeAssignments,
    ChangeClass,
    DeleteClass,
    InstallHtb,
    MakeAssignments,
    Operation,
    RemoveAssignments,
    RestoreQdisc,
)

MARKING = class_ids.MarkedTraffic(0xFFFF0000, Ports.of([8080]))


def commands_of(operations: Sequence[Operation], classifier: str, priority: int = BEFORE_NAT) -> list[str]:
    return [
        line for operation in operations for line in as_commands(operation, ("eth0",), MARKING, classifier, priority)
    ]


def test_commands_that_cap_one_subflow() -> None:
    plan = kernel_plan({2: Rate.parse("1mbit")}, {ends("10.1.0.2"): 2})
    commands = commands_of(diff(KernelState(), plan), "rules")
    assert commands == [
        "tc qdisc replace dev eth0 root handle 4d50: htb default 0",
        "tc filter add dev eth0 parent 4d50: protocol all prio 1 handle 1 bpf bytecode"
        " '20,32 0 0 4294963220,84 0 0 4294901760,21 11 0 0,48 0 0 4293918720,116 0 0 4,21 3 0 6,177 0 0 4293918720,"
        "48 0 0 4293918729,5 0 0 2,1 0 0 40,48 0 0 4293918726,21 0 2 6,72 0 0 4293918720,21 1 0 8080,6 0 0 0,"
        "32 0 0 4294963220,84 0 0 4294901760,116 0 0 16,68 0 0 1297088512,22 0 0 0'",
        "tc class add dev eth0 parent 4d50: classid 4d50:2 htb"
        " rate 1mbit ceil 1mbit burst 3028 cburst 3028 quantum 12500",
        "tc qdisc add dev eth0 parent 4d50:2 pfifo limit 1000",
        "iptables-legacy -t mangle -N MPTCP-THROTTLE  # or -F, if it exists",
        "iptables-legacy -t mangle -I POSTROUTING -p tcp -j MPTCP-THROTTLE  # unless it exists",
        "iptables-legacy -t mangle -A MPTCP-THROTTLE -s 10.3.0.2 -d 10.1.0.2 -p tcp -m tcp"
        " --sport 8080 --dport 40000 -j MARK --set-xmark 0x20000/0xffff0000",
    ]


def test_commands_that_free_and_those_for_ipv6() -> None:
    operations: list[Operation] = [
        ChangeAssignments(6, {}, {ends("fd00:1::2"): 3}),
        DeleteClass(3),
        RemoveAssignments(6),
        RestoreQdisc(),
    ]
    commands = commands_of(operations, "rules")
    assert commands == [
        "ip6tables-legacy -t mangle -D MPTCP-THROTTLE -s fd00:3::2 -d fd00:1::2 -p tcp -m tcp"
        " --sport 8080 --dport 40000 -j MARK --set-xmark 0x30000/0xffff0000",
        "tc class del dev eth0 classid 4d50:3",
        "ip6tables-legacy -t mangle -D POSTROUTING -p tcp -j MPTCP-THROTTLE",
        "ip6tables-legacy -t mangle -F MPTCP-THROTTLE",
        "ip6tables-legacy -t mangle -X MPTCP-THROTTLE",
        "tc qdisc del dev eth0 root  # then the saved qdisc, if any",
    ]


def test_commands_of_marks_in_nftables_need_no_filter() -> None:
    operations: list[Operation] = [
        InstallHtb(0),
        MakeAssignments(4, {ends("10.1.0.2"): 2}),
        ChangeAssignments(4, {ends("10.1.0.3"): 3}, {ends("10.1.0.2"): 2}),
        RemoveAssignments(6),
    ]
    assert commands_of(operations, "nft") == [
        "tc qdisc replace dev eth0 root handle 4d50: htb default 0",
        "nft delete table ip mptcp-throttle  # if it exists",
        "nft add table ip mptcp-throttle",
        "nft add map ip mptcp-throttle subflows"
        " '{ type ipv4_addr . inet_service . ipv4_addr . inet_service : classid; }'",
        "nft add chain ip mptcp-throttle postrouting '{ type filter hook postrouting priority mangle; }'",
        "nft add rule ip mptcp-throttle postrouting"
        " meta priority set ip daddr . tcp dport . ip saddr . tcp sport map @subflows",
        "nft add element ip mptcp-throttle subflows '{ 10.1.0.2 . 40000 . 10.3.0.2 . 8080 : 4d50:2 }'",
        "nft delete element ip mptcp-throttle subflows '{ 10.1.0.2 . 40000 . 10.3.0.2 . 8080 : 4d50:2 }'",
        "nft add element ip mptcp-throttle subflows '{ 10.1.0.3 . 40000 . 10.3.0.2 . 8080 : 4d50:3 }'",
        "nft delete table ip6 mptcp-throttle",
    ]


def test_commands_for_a_host_that_only_forwards_come_after_nat() -> None:
    commands = commands_of([MakeAssignments(6, {})], "nft", AFTER_NAT)
    chain = "{ type filter hook postrouting priority srcnat + 1; }"
    assert f"nft add chain ip6 mptcp-throttle postrouting '{chain}'" in commands


def test_commands_of_sockets_are_comments_and_need_no_filter() -> None:
    operations: list[Operation] = [
        InstallHtb(0),
        MakeAssignments(4, {ends("10.1.0.2"): 2}),
        ChangeAssignments(4, {ends("10.1.0.3"): 3}, {ends("10.1.0.2"): 2}),
        RemoveAssignments(4),
    ]
    assert commands_of(operations, "socket") == [
        "tc qdisc replace dev eth0 root handle 4d50: htb default 0",
        "# SO_PRIORITY of 10.3.0.2:8080 to 10.1.0.2:40000: 4d50:2",
        "# SO_PRIORITY of 10.3.0.2:8080 to 10.1.0.2:40000: as before",
        "# SO_PRIORITY of 10.3.0.2:8080 to 10.1.0.3:40000: 4d50:3",
        "# SO_PRIORITY of all sockets: as before",
    ]


def test_commands_shift_minors_under_the_mark_mask() -> None:
    assert class_ids.mark_shift(0xFFFF0000) == 16
    assert class_ids.max_minor(0xFFFF0000) == 0xFFFF
    assert class_ids.max_minor(0x00FF0000) == 0xFF


def test_mark_filter_is_recognised_by_its_program() -> None:
    ours = htb.mark_filter(MARKING)
    tagged_by_kernel = ours._replace(options=(ours.options or b"") + b"\x08\x00\x09\x00\x00\x00\x00\x00")
    assert htb.is_mark_filter(tagged_by_kernel, MARKING)
    assert not htb.is_mark_filter(htb.mark_filter(MARKING._replace(mask=0x00FF0000)), MARKING)
    assert not htb.is_mark_filter(ours._replace(kind="u32", options=b""), MARKING)


def test_commands_of_open_vswitch() -> None:
    cap = kernel_plan({2: Rate.parse("1mbit")}, {ends("10.1.0.2"): 2})
    match = "tcp,nw_src=10.3.0.2,nw_dst=10.1.0.2,tp_src=8080,tp_dst=40000"
    assert commands_of(diff(KernelState(), cap), "ovs") == [
        "ovs-vsctl -- --id=@qos create QoS type=linux-htb external_ids:owner=mptcp-throttle"
        " external_ids:default_minor=0 other_config:max-rate=34000000000 -- add Port eth0 qos @qos",
        "ovs-vsctl -- --id=@q1 create Queue external_ids:owner=mptcp-throttle other_config:min-rate=1000000"
        " other_config:max-rate=1000000 other_config:burst=24224 -- set QoS eth0 queues:1=@q1",
        "ovs-ofctl --bundle add-flows $(ovs-vsctl port-to-br eth0) - <<END",
        "delete cookie=0x4d507468/-1,tcp",
        f"add cookie=0x4d507468,priority=40000,{match},actions=set_queue:1,NORMAL",
        "END",
    ]
    free: list[Operation] = [
        ChangeAssignments(6, {}, {ends("fd00:1::2"): 3}),
        ChangeClass(2, Rate.parse("2mbit")),
        DeleteClass(3),
        RemoveAssignments(6),
        RestoreQdisc(),
    ]
    assert commands_of(free, "ovs") == [
        "ovs-ofctl --bundle add-flows $(ovs-vsctl port-to-br eth0) - <<END",
        "delete_strict priority=40000,tcp6,ipv6_src=fd00:3::2,ipv6_dst=fd00:1::2,tp_src=8080,tp_dst=40000",
        "END",
        "ovs-vsctl -- --if-exists set Queue $(ovs-vsctl get QoS eth0 queues:1) other_config:min-rate=2000000"
        " other_config:max-rate=2000000 other_config:burst=24224",
        "ovs-vsctl -- remove QoS eth0 queues 2 -- --if-exists destroy Queue $(ovs-vsctl get QoS eth0 queues:2)",
        "ovs-ofctl --bundle add-flows $(ovs-vsctl port-to-br eth0) - <<END",
        "delete cookie=0x4d507468/-1,tcp6",
        "END",
        "ovs-vsctl clear Port eth0 qos  # then destroy the records of QoS and Queue",
    ]
