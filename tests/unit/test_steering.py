"""Paths of flows in a fabric of switches: those of the controller, without OpenFlow."""

from hashlib import sha256
from itertools import combinations
from pathlib import Path

from mptcp_lab.scenario.files import load
from mptcp_lab.sdn.fabric import End, Fabric, Hop, reverse
from mptcp_lab.sdn.steering import TCP, UDP, Flow, Steering
from mptcp_lab.sdn.switch_plan import fabric_of, switch_shapes
from mptcp_sniffer.segment import Flag

SITES = ("uk", "de", "hr", "nl", "at")
KEY = bytes(range(8))
TOKEN = sha256(KEY).digest()[:4]
SYN, SYN_ACK = int(Flag.SYN), Flag.SYN | Flag.ACK
CAPABLE_SYN = bytes([30, 4, 0x01, 0x01])
CAPABLE_SYN_ACK = bytes([30, 12, 0x01, 0x01]) + KEY
JOIN_SYN = bytes([30, 12, 0x10, 1]) + TOKEN + bytes(4)
JOIN_SYN_ACK = bytes([30, 16, 0x10, 1]) + bytes(12)

FIRST = Flow(TCP, "10.1.0.1", 1000, "10.2.0.1", 80)
JOINED = Flow(TCP, "10.1.0.11", 1001, "10.2.0.1", 80)


def mesh() -> Fabric:
    """Five sites, each linked with all others; port 1 is that of its host, which has two addresses."""
    links = {
        f"{one}-{other}": (End(one, 2 + SITES.index(other)), End(other, 2 + SITES.index(one)))
        for one, other in combinations(SITES, 2)
    }
    hosts = {f"10.{n}.0.{k}": End(site, 1) for n, site in enumerate(SITES, 1) for k in (1, 11)}
    return Fabric(SITES, links, hosts)


def sites(steering: Steering, flow: Flow) -> list[str]:
    return [hop.switch for hop in steering.paths[flow]]


def connected(primary: int = 1) -> Steering:
    """After the handshakes of a connection and of a subflow that joins it."""
    steering = Steering(mesh(), primary)
    steering.path_of_first_packet(FIRST, SYN, CAPABLE_SYN)
    steering.path_of_first_packet(FIRST.back(), SYN_ACK, CAPABLE_SYN_ACK)
    steering.path_of_first_packet(JOINED, SYN, JOIN_SYN)
    steering.path_of_first_packet(JOINED.back(), SYN_ACK, JOIN_SYN_ACK)
    return steering


def test_paths_are_the_shortest_first_and_have_no_link_in_common() -> None:
    fabric = mesh()
    paths = fabric.paths("10.1.0.1", "10.2.0.11")
    assert [[hop.switch for hop in path] for path in paths] == [
        ["uk", "de"],
        ["uk", "hr", "de"],
        ["uk", "nl", "de"],
        ["uk", "at", "de"],
    ]
    assert paths[1] == (Hop("uk", 1, 4), Hop("hr", 2, 3), Hop("de", 4, 1))
    links = [fabric.links_of(path) for path in paths]
    assert all(not one & other for one, other in combinations(links, 2))
    assert reverse(reverse(paths[1])) == paths[1]
    assert fabric.paths("10.1.0.1", "10.1.0.11") == [(Hop("uk", 1, 1),)]
    assert Fabric.from_json(fabric.to_json()) == fabric


def test_greedy_paths_that_block_each_other_are_as_many_as_were_found() -> None:
    links = {"x": (End("one", 2), End("two", 2))}
    assert Fabric(("one", "two", "far"), links, {"a": End("one", 1), "b": End("far", 1)}).paths("a", "b") == []


def test_joining_subflow_has_no_link_in_common_with_the_first() -> None:
    steering = connected()
    assert sites(steering, FIRST) == ["uk", "de"]
    assert sites(steering, FIRST.back()) == ["de", "uk"]
    assert sites(steering, JOINED) == ["uk", "hr", "de"]
    assert sites(steering, JOINED.back()) == ["de", "hr", "uk"]
    third = JOINED._replace(source_port=1002)
    steering.path_of_first_packet(third, SYN, JOIN_SYN)
    assert sites(steering, third) == ["uk", "nl", "de"]


def test_retransmitted_syn_keeps_the_path() -> None:
    steering = connected()
    steering.path_of_first_packet(JOINED, SYN, JOIN_SYN)
    assert sites(steering, JOINED) == ["uk", "hr", "de"]
    assert steering.subflows == {int.from_bytes(TOKEN): [FIRST, JOINED]}


def test_join_to_an_unknown_token_plain_tcp_and_udp_take_the_primary_path() -> None:
    steering = Steering(mesh(), 1)
    for flow, flags, options in ((JOINED, SYN, JOIN_SYN), (FIRST, SYN, b""), (FIRST._replace(protocol=UDP), 0, b"")):
        steering.path_of_first_packet(flow, flags, options)
        assert sites(steering, flow) == ["uk", "de"]


def test_connections_begin_on_the_primary_path() -> None:
    steering = connected(primary=3)
    assert sites(steering, FIRST) == ["uk", "nl", "de"]
    assert sites(steering, JOINED) == ["uk", "de"]
    assert sites(connected(primary=9), FIRST) == ["uk", "at", "de"]


def test_flows_are_led_around_a_failed_link_and_new_ones_avoid_it() -> None:
    steering = connected()
    moved = steering.fail("uk-de")
    assert moved.keys() == {FIRST, FIRST.back()}
    assert sites(steering, FIRST) == ["uk", "hr", "de"]
    new = FIRST._replace(source_port=7)
    steering.path_of_first_packet(new, SYN, CAPABLE_SYN)
    assert sites(steering, new) == ["uk", "hr", "de"]


def test_flows_go_back_when_their_links_work_again() -> None:
    steering = connected()
    steering.fail("uk-de")
    assert steering.fail("uk-hr").keys() == {FIRST, FIRST.back(), JOINED, JOINED.back()}
    assert sites(steering, FIRST) == sites(steering, JOINED) == ["uk", "nl", "de"]
    assert steering.repair("uk-de").keys() == {FIRST, FIRST.back()}
    assert sites(steering, FIRST) == ["uk", "de"]
    assert steering.repair("uk-hr").keys() == {JOINED, JOINED.back()}
    assert sites(steering, JOINED) == ["uk", "hr", "de"]


def test_address_that_is_at_no_switch_has_no_path() -> None:
    steering = Steering(mesh(), 1)
    assert steering.path_of_first_packet(FIRST._replace(destination="10.9.0.1"), SYN, CAPABLE_SYN) is None
    assert steering.paths == {}


def test_fabric_of_a_scenario_has_its_links_and_addresses() -> None:
    scenario = load("plans/x", Path(__file__).parent / "plans/switches.yaml")[0].scenario
    fabric = fabric_of(scenario)
    assert fabric.switches == ("one", "two", "three")
    assert fabric.links == {
        "direct": (End("one", 2), End("two", 2)),
        "one-three": (End("one", 3), End("three", 1)),
        "three-two": (End("three", 2), End("two", 3)),
    }
    assert fabric.hosts == {"10.1.0.1": End("one", 1), "10.1.0.11": End("one", 1), "10.2.0.2": End("two", 1)}
    assert [command.host for command in switch_shapes(scenario)] == ["one", "two"]
