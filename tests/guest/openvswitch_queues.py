"""The queues of an Open vSwitch port do what HTB of our own does; test_stock_kernels.py runs this file in the guest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from openvswitch_uplink import Uplink, made_uplink
from pyroute2 import netns

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.openvswitch.queues import PortQueues
from mptcp_throttled.kernel.openvswitch.switch import OpenVswitch
from mptcp_throttled.reconcile.kernel_state import HtbState, QdiscState
from mptcp_throttled.reconcile.operations import AddClass, ChangeClass, DeleteClass

SLOW, FAST = Rate.parse("1mbit"), Rate.parse("2mbit")


@pytest.fixture(scope="module")
def uplink() -> Iterator[Uplink]:
    with made_uplink() as uplink:
        yield uplink


@pytest.fixture
def queues(uplink: Uplink) -> Iterator[PortQueues]:
    netns.pushns(uplink.hosts.lab.proxy.namespace)
    try:
        yield PortQueues("eth0", OpenVswitch(uplink.switch.directory))
    finally:
        netns.popns()
    assert uplink.is_clean()


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


def test_class_that_somebody_has_changed_is_repaired(queues: PortQueues, uplink: Uplink) -> None:
    queues.install(0)
    assert queues.change_classes([AddClass(2, SLOW)]) == [None]
    for _ in range(2):
        change = "tc class change dev eth0 parent 1:fffe classid 1:2 htb rate 5mbit"
        uplink.hosts.lab.proxy.run(*change.split())
        assert queues.read() == QdiscState(HtbState(0, True, {2: None}))
        assert queues.change_classes([ChangeClass(2, SLOW, replace_leaf=True)]) == [None]
        assert queues.read() == QdiscState(HtbState(0, True, {2: SLOW}))
    queues.restore()


def test_queues_are_made_by_the_thousand(queues: PortQueues) -> None:
    queues.install(0)
    many = dict.fromkeys(range(2, 1002), SLOW)
    assert set(queues.change_classes([AddClass(*one) for one in many.items()])) == {None}
    assert queues.read() == QdiscState(HtbState(0, True, many))
    queues.fail_open()


def test_port_with_a_qos_of_its_own_is_not_touched(queues: PortQueues, uplink: Uplink) -> None:
    uplink.switch.run("--", "--id=@q", "create", "QoS", "type=linux-noop", "--", "set", "Port", "eth0", "qos=@q")
    assert queues.read().obstacle == "port eth0 has a QoS of its own"
    uplink.switch.run("--", "clear", "Port", "eth0", "qos", "--", "--all", "destroy", "QoS")


def test_port_with_a_root_qdisc_of_its_own_is_not_touched(queues: PortQueues, uplink: Uplink) -> None:
    uplink.hosts.lab.proxy.run("tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "7:", "pfifo")
    assert queues.read().obstacle == "eth0 has a root qdisc of its own, pfifo 7:"
    uplink.hosts.lab.proxy.run("tc", "qdisc", "del", "dev", "eth0", "root")


def test_qos_that_somebody_has_put_in_place_of_ours_is_not_touched(queues: PortQueues, uplink: Uplink) -> None:
    queues.install(0)
    uplink.switch.run("--", "--id=@q", "create", "QoS", "type=linux-noop", "--", "set", "Port", "eth0", "qos=@q")
    theirs = uplink.switch.run("get", "Port", "eth0", "qos")
    assert queues.change_classes([AddClass(2, SLOW)]) == [None]
    queues.restore()
    assert uplink.switch.run("get", "Port", "eth0", "qos") == theirs
    assert uplink.records() == ""
    uplink.switch.run("--", "clear", "Port", "eth0", "qos", "--", "--all", "destroy", "QoS")


def test_queue_that_somebody_has_put_into_our_qos_is_replaced(queues: PortQueues, uplink: Uplink) -> None:
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


def test_switch_that_does_not_answer_keeps_nobody_throttled(queues: PortQueues, uplink: Uplink) -> None:
    queues.install(0)
    assert queues.change_classes([AddClass(2, SLOW)]) == [None]
    assert "htb" in uplink.tc("qdisc")
    os.kill(uplink.switch.daemon.pid, signal.SIGSTOP)
    try:
        with pytest.raises(KernelError, match="ETIMEDOUT"):
            queues.fail_open()
        assert "htb" not in uplink.tc("qdisc")
    finally:
        os.kill(uplink.switch.daemon.pid, signal.SIGCONT)
    queues.fail_open()
    assert queues.read() == QdiscState()
