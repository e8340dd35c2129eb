"""What a long run samples: objects that are left behind are seen, each as what it is."""

from __future__ import annotations

import os

import pytest
from polling import eventually
from proxy_world import ProxyWorld

from mptcp_lab.host import Host
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.soak.bpf_objects import BpfIds, MapContents, contents, ids_of, make_map
from mptcp_lab.soak.leaks import LEAKS
from mptcp_lab.soak.proxy import Proxy
from mptcp_lab.soak.sampling import differences, kernel_values
from mptcp_lab.soak.schedule import Event
from mptcp_lab.topology import Lab
from mptcp_throttle.linux.libbpf import BpfMap

NOTHING = BpfIds(frozenset(), frozenset(), frozenset())
CHANGES = {
    "route": {"routes": 1},
    "table": {"nftables lines": 2},
    "socket": {"sockets": 1},
    "class": {"classes": 1},
    "rule": {"iptables rules": 1},
}


def make(name: str, host: Host) -> None:
    if name == "class":
        host.tc(
            ["qdisc replace dev eth0 root handle 1: htb", "class add dev eth0 parent 1: classid 1:1 htb rate 1mbit"]
        )
    elif name == "rule":
        host.run("iptables-legacy", "-t", "mangle", "-A", "INPUT", "-p", "tcp")
    else:
        LEAKS[name](host, 1)


@pytest.mark.parametrize("name", CHANGES)
def test_object_that_is_left_behind_is_sampled(host: Host, name: str) -> None:
    before = kernel_values(host, NOTHING)
    make(name, host)
    after = kernel_values(host, NOTHING)
    more = {each: after[each] - before[each] for each in before if after[each] != before[each]}
    assert more == CHANGES[name]
    assert len(differences(before, after)) == len(more)


def test_interface_that_was_down_has_all_its_routes_again(lab: Lab) -> None:
    proxy = Proxy(lab, seed=1)
    before = kernel_values(lab.proxy, NOTHING)
    proxy.happen(Event.INTERFACE_DOWN)
    assert differences(before, kernel_values(lab.proxy, NOTHING)) == []


def test_map_that_is_left_behind_is_sampled_with_its_entries() -> None:
    before = ids_of([os.getpid()]).maps
    BpfMap(make_map(), 4, 4).update({bytes(4): bytes(4)})
    new = ids_of([os.getpid()]).maps - before
    assert len(new) == 1
    assert contents(new) == MapContents(entries=1, slots=0, stored=0)


def test_maps_of_a_daemon_are_empty_again_after_a_capped_download(world: ProxyWorld) -> None:
    with in_namespace(world.proxy.namespace):
        ids = ids_of([world.daemon.pid]).maps
        idle = contents(ids)
        world.begin_capped()
        eventually(lambda: contents(ids).slots > 0, "a slot taken")
        busy = contents(ids)
        assert busy.entries > idle.entries
        assert busy.stored > idle.stored
        world.abort()
        eventually(lambda: contents(ids)[1:] == idle[1:], "all of the connection gone", within=20)
