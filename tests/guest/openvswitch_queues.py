"""The queues of an Open vSwitch port do what HTB of our own does; test_stock_kernels.py runs this file in the guest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

import pytest
from examples import ends, kernel_plan
from openvswitch_uplink import Uplink

from mptcp_lab.namespaces import in_namespace
from mptcp_throttle.linux.kernel_error import KernelError, set_faults
from mptcp_throttle.units import Rate
from mptcp_throttled.enforcing.reconciler import Reconciler
from mptcp_throttled.kernel.classes.choice import ClassifierChoice
from mptcp_throttled.kernel.linux_kernel import LinuxKernel
from mptcp_throttled.kernel.openvswitch.openflow import OpenFlowClassifier
from mptcp_throttled.kernel.openvswitch.queues import PortQueues
from mptcp_throttled.kernel.openvswitch.switch import OpenVswitch
from mptcp_throttled.vocabulary.kernel_plan import UNTOUCHED
from mptcp_throttled.vocabulary.kernel_state import HtbState, QdiscState
from mptcp_throttled.vocabulary.operations import AddClass, ChangeClass, DeleteClass

SLOW, FAST = Rate.parse("1mbit"), Rate.parse("2mbit")


@pytest.fixture
def queues(uplink: Uplink) -> Iterator[PortQueues]:
    with in_namespace(uplink.hosts.lab.proxy.namespace):
        yield PortQueues("eth0", OpenVswitch(uplink.switch.directory))
    assert uplink.is_clean()


@pytest.fixture
def one_class(queues: PortQueues) -> Iterator[PortQueues]:
    """With our QoS and a class, until the end of the test."""
    queues.install(0)
    assert queues.change_classes([AddClass(2, SLOW)]) == [None]
    yield queues
    queues.restore()


def test_queues_are_added_changed_and_deleted(queues: PortQueues) -> None:
    assert queues.read() == QdiscState()
    queues.install(1)
    assert queues.read() == QdiscState(HtbState(1, True, {}))
    assert queues.change_classes([AddClass(1, FAST), AddClass(2, SLOW), AddClass(3, SLOW)]) == [None] * 3
    assert queues.read() == QdiscState(HtbState(1, True, {1: FAST, 2: SLOW, 3: SLOW}))
    assert queues.change_classes([ChangeClass(2, FAST), DeleteClass(3), AddClass(4, SLOW)]) == [None] * 3
    assert queues.read() == QdiscState(HtbState(1, True, {1: FAST, 2: FAST, 4: SLOW}))
    assert queues.class_bytes().keys() >= {1, 2, 4}
    queues.restore()
    assert queues.read() == QdiscState()
    (refusal,) = queues.change_classes([AddClass(2, SLOW)])
    assert str(refusal) == "eth0: QoS: ENOENT"


@pytest.mark.parametrize("how", ["class", "record"])
def test_rate_that_another_program_changes_is_repaired(one_class: PortQueues, uplink: Uplink, how: str) -> None:
    for _ in range(2):
        if how == "class":
            change = "tc class change dev eth0 parent 1:fffe classid 1:2 htb rate 5mbit"
            uplink.hosts.lab.proxy.run(*change.split())
        else:
            uplink.switch.run("--", "set", "Queue", uplink.records().split()[1], "other_config:max-rate=10M")
        assert one_class.read() == QdiscState(HtbState(0, True, {2: None}))
        assert one_class.change_classes([ChangeClass(2, SLOW, replace_leaf=True)]) == [None]
        assert one_class.read() == QdiscState(HtbState(0, True, {2: SLOW}))


def test_more_queues_than_a_transaction_takes_are_made(queues: PortQueues) -> None:
    queues.install(0)
    many = dict.fromkeys(range(2, 302), SLOW)
    assert set(queues.change_classes([AddClass(*item) for item in many.items()])) == {None}
    assert queues.read() == QdiscState(HtbState(0, True, many))
    queues.fail_open()


def without_effect(queues: PortQueues, obstacle: str) -> None:
    """All that the daemon may try is refused, or does nothing."""
    assert queues.read() == QdiscState(None, obstacle)
    with pytest.raises(KernelError, match=obstacle):
        queues.install(0)
    queues.restore()
    queues.fail_open()


def test_port_with_a_qos_of_its_own_is_not_touched(queues: PortQueues, uplink: Uplink) -> None:
    uplink.switch.run("--", "--id=@q", "create", "QoS", "type=linux-htb", "--", "set", "Port", "eth0", "qos=@q")
    before = uplink.switch.run("list", "QoS"), uplink.switch.run("get", "Port", "eth0", "qos"), uplink.tc("qdisc")
    without_effect(queues, "port eth0 has a QoS of its own")
    after = uplink.switch.run("list", "QoS"), uplink.switch.run("get", "Port", "eth0", "qos"), uplink.tc("qdisc")
    assert after == before
    uplink.switch.run("--", "clear", "Port", "eth0", "qos", "--", "--all", "destroy", "QoS")


def test_port_with_a_root_qdisc_of_its_own_is_not_touched(queues: PortQueues, uplink: Uplink) -> None:
    uplink.hosts.lab.proxy.run("tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "7:", "pfifo")
    before = uplink.tc("qdisc")
    without_effect(queues, "eth0 has a root qdisc of its own, pfifo 7:")
    assert uplink.tc("qdisc") == before
    uplink.hosts.lab.proxy.run("tc", "qdisc", "del", "dev", "eth0", "root")


def test_qos_that_another_program_put_in_place_of_ours_is_not_touched(queues: PortQueues, uplink: Uplink) -> None:
    queues.install(0)
    uplink.switch.run("--", "--id=@q", "create", "QoS", "type=linux-noop", "--", "set", "Port", "eth0", "qos=@q")
    theirs = uplink.switch.run("get", "Port", "eth0", "qos")
    assert queues.change_classes([AddClass(2, SLOW)]) == [None]
    queues.restore()
    assert uplink.switch.run("get", "Port", "eth0", "qos") == theirs
    assert uplink.records() == ""
    uplink.switch.run("--", "clear", "Port", "eth0", "qos", "--", "--all", "destroy", "QoS")
    # With linux-noop ovs-vswitchd has not touched the root qdisc.
    assert queues.read() == QdiscState(None, None, True)
    queues.restore()


def test_queue_that_another_program_put_into_our_qos_is_replaced(queues: PortQueues, uplink: Uplink) -> None:
    queues.install(0)
    assert queues.change_classes([AddClass(2, SLOW)]) == [None]
    qos = uplink.switch.run("get", "Port", "eth0", "qos").strip()
    theirs = "other_config:max-rate=5000000"
    for minor in (2, 7):
        queue = f"queues:{minor - 1}=@q"
        uplink.switch.run("--", "--id=@q", "create", "Queue", theirs, "--", "set", "QoS", qos, queue)
    assert queues.read() == QdiscState(HtbState(0, True, {2: None, 7: None}))
    assert queues.change_classes([ChangeClass(2, SLOW, replace_leaf=True), DeleteClass(7)]) == [None, None]
    assert queues.read() == QdiscState(HtbState(0, True, {2: SLOW}))
    queues.restore()
    # Both of theirs are still there.
    assert uplink.switch.run("--bare", "--columns=other_config", "find", "Queue", theirs).split() == [
        "max-rate=5000000",
        "max-rate=5000000",
    ]
    uplink.switch.run("--all", "destroy", "Queue")


@pytest.mark.parametrize("last", ["ovs-ofctl --bundle", "ovs-vsctl -- remove Port"])
def test_switch_that_stops_answering_keeps_no_subflow_throttled(uplink: Uplink, queues: PortQueues, last: str) -> None:
    """ovs-vswitchd stops before it has carried out the `last` request."""
    marks = OpenFlowClassifier("eth0", OpenVswitch(uplink.switch.directory))
    reconciler = Reconciler(LinuxKernel(queues, ClassifierChoice(marks)))
    plan = kernel_plan({2: SLOW}, {ends("10.1.0.2"): 2})
    outcome = reconciler.full(plan)
    assert (outcome.applied, outcome.failures) == (plan, ())
    assert "htb" in uplink.tc("qdisc")

    def stop(names: Sequence[str]) -> list[None]:
        if any(name.startswith(last) for name in names):
            os.kill(uplink.switch.daemon.pid, signal.SIGSTOP)
        return [None] * len(names)

    set_faults(stop)
    try:
        assert reconciler.full(UNTOUCHED).failures
        assert "htb" not in uplink.tc("qdisc")
    finally:
        set_faults(None)
        os.kill(uplink.switch.daemon.pid, signal.SIGCONT)
    switch = OpenVswitch(uplink.switch.directory)
    next_kernel = LinuxKernel(PortQueues("eth0", switch), ClassifierChoice(OpenFlowClassifier("eth0", switch)))
    assert Reconciler(next_kernel).full(UNTOUCHED).failures == ()


def test_renamed_interface_keeps_no_subflow_throttled(uplink: Uplink, queues: PortQueues) -> None:
    """ovs-vswitchd knows interfaces by their names."""
    queues.install(0)
    rename = ["link set eth0 down", "link set eth0 name eth9", "link set eth9 up"]
    uplink.hosts.lab.proxy.ip(rename)
    assert queues.read() == QdiscState(HtbState(0, False, {}))
    queues.restore()
    assert "htb" not in uplink.hosts.lab.proxy.run("tc", "qdisc", "show", "dev", "eth9").stdout
    assert not queues.read().restore_pending
    uplink.hosts.lab.proxy.ip(["link set eth9 down", "link set eth9 name eth0", "link set eth0 up"])


def test_root_qdisc_that_another_program_puts_there_meanwhile_stays(uplink: Uplink, queues: PortQueues) -> None:
    proxy = uplink.hosts.lab.proxy
    queues.install(0)
    proxy.ip(["link set eth0 down", "link set eth0 name eth9", "link set eth9 up"])
    assert queues.read() == QdiscState(HtbState(0, False, {}))

    def replace_root(names: Sequence[str]) -> list[None]:
        if any(name.startswith("tc qdisc del") for name in names):
            proxy.run("tc", "qdisc", "replace", "dev", "eth9", "root", "handle", "7:", "pfifo")
        return [None] * len(names)

    set_faults(replace_root)
    try:
        with pytest.raises(KernelError):
            queues.restore()
    finally:
        set_faults(None)
    assert "pfifo 7: root" in proxy.run("tc", "qdisc", "show", "dev", "eth9").stdout
    queues.restore()
    proxy.run("tc", "qdisc", "del", "dev", "eth9", "root")
    proxy.ip(["link set eth9 down", "link set eth9 name eth0", "link set eth0 up"])


def test_rate_below_that_of_the_slowest_queue_is_applied_as_that(queues: PortQueues) -> None:
    queues.install(0)
    slowest = Rate.parse("8kbit")
    assert queues.change_classes([AddClass(2, slowest)]) == [None]
    assert queues.read() == QdiscState(HtbState(0, True, {2: slowest}))
    queues.restore()


def test_record_that_another_program_deleted_hinders_no_change(queues: PortQueues, uplink: Uplink) -> None:
    queues.install(0)
    assert queues.change_classes([AddClass(2, SLOW), AddClass(3, SLOW)]) == [None] * 2
    qos = uplink.switch.run("get", "Port", "eth0", "qos").strip()
    record = uplink.switch.run("get", "QoS", qos, "queues:2").strip()
    uplink.switch.run("--", "remove", "QoS", qos, "queues", "2", "--", "destroy", "Queue", record)
    assert queues.change_classes([DeleteClass(3), AddClass(4, FAST)]) == [None] * 2
    assert queues.read() == QdiscState(HtbState(0, True, {2: SLOW, 4: FAST}))
    queues.restore()


def test_queue_that_the_qos_of_another_program_uses_is_left_to_it(queues: PortQueues, uplink: Uplink) -> None:
    queues.install(0)
    assert queues.change_classes([AddClass(2, SLOW)]) == [None]
    ours = uplink.records().split()[1]
    uplink.switch.run("--", "--id=@q", "create", "QoS", "type=linux-htb", f"queues:5={ours}")
    queues.restore()
    assert queues.read() == QdiscState()
    assert ours in uplink.records()
    uplink.switch.run("--", "--all", "destroy", "QoS", "--", "--all", "destroy", "Queue")
