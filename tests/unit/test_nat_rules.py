"""Where connections go, by the rules that iptables-save and nft list."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

import pytest

from mptcp_throttle.ports import ALL_PORTS, Ports
from mptcp_throttle.programs import ProgramFailed
from mptcp_throttle.rpc import Json
from mptcp_throttle.setup import collect_facts
from mptcp_throttle.setup.host_facts import Translation
from mptcp_throttle.setup.nat_rules import (
    nft_interceptions,
    nft_translations,
    saved_interceptions,
    saved_translations,
)

OWN: Final = {ip_address("10.3.0.2"), ip_address("fd00:3::2")}
PORT_8080: Final = Ports.of([8080])
BELOW_8080: Final = Ports((range(80, 81), range(8000, 8080)))


def of_saved(*rules: str, table: str = "nat") -> list[Translation]:
    lines = [f"*{table}", ":PREROUTING ACCEPT [0:0]", *(f"-A {rule}" for rule in rules), "COMMIT", ""]
    return list(saved_translations("\n".join(lines), "iptables-legacy-save", OWN))


@pytest.mark.parametrize(
    ("match", "ports"),
    [
        ("-p tcp -m tcp --dport 8080", PORT_8080),
        ("-p tcp -m multiport --dports 80,8000:8079", BELOW_8080),
        ("-p tcp -m tcp ! --dport 8080", ALL_PORTS - PORT_8080),
        ("-d 10.3.0.2/32", ALL_PORTS),
        ("-d 10.3.0.0/24 ! -i docker0 -p tcp", ALL_PORTS),
        ("! -p udp", ALL_PORTS),
        ("-p udp -m udp --dport 8080", None),
        ("! -p tcp", None),
        ("-d 127.0.0.1/32 -p tcp -m tcp --dport 8080", None),
        ("-d 10.96.0.1/32 -p tcp -m tcp --dport 8080", None),
        ("-i lo -p tcp -m tcp --dport 8080", None),
    ],
)
def test_rule_of_iptables_concerns_these_ports(match: str, ports: Ports | None) -> None:
    found = of_saved(f"PREROUTING {match} -j REDIRECT --to-ports 3128")
    assert [translation.ports for translation in found] == ([] if ports is None else [ports])


@pytest.mark.parametrize(
    ("target", "address", "port"),
    [
        ("DNAT --to-destination 172.17.0.2:3128", "172.17.0.2", 3128),
        ("DNAT --to-destination 172.17.0.2", "172.17.0.2", None),
        ("DNAT --to-destination 172.17.0.2-172.17.0.9:3000-3010", "172.17.0.2-172.17.0.9", None),
        ("DNAT --to-destination [2001:db8::2]:3128", "2001:db8::2", 3128),
        ("DNAT --to-destination 2001:db8::2", "2001:db8::2", None),
        ("DNAT --to-destination 10.3.0.2:3128", None, 3128),
        ("DNAT --to-destination 127.0.0.1:3128", None, 3128),
        ("DNAT --to-destination :3128", None, 3128),
        ("REDIRECT --to-ports 3128", None, 3128),
        ("REDIRECT", None, None),
    ],
)
def test_target_of_iptables_leads_there(target: str, address: str | None, port: int | None) -> None:
    (found,) = of_saved(f"PREROUTING -p tcp -m tcp --dport 8080 -j {target}")
    assert found == Translation("PREROUTING of table nat (iptables-legacy)", PORT_8080, address, port)


def test_chains_of_iptables_count_with_the_ports_that_lead_there() -> None:
    docker = (
        "PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
        "DOCKER -i docker0 -j RETURN",
        "DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:3128",
    )
    expected = Translation("DOCKER of table nat (iptables-legacy)", PORT_8080, "172.17.0.2", 3128)
    assert of_saved(*docker) == [expected]
    assert of_saved(*docker[1:]) == []
    assert of_saved("OUTPUT -j DOCKER", *docker[1:]) == []
    assert of_saved(*docker, table="mangle") == []
    service = (
        "PREROUTING -p tcp --dport 8080 -g a",
        "a -j b",
        "b -p tcp -j DNAT --to-destination 10.0.0.9:1",
        "b -j a",
    )
    assert [(found.ports, found.port) for found in of_saved(*service)] == [(PORT_8080, 1)]


def payload(protocol: str, field: str) -> Json:
    return {"payload": {"protocol": protocol, "field": field}}


def match(left: Json, right: Json, operator: str = "==") -> Json:
    return {"match": {"op": operator, "left": left, "right": right}}


DPORT: Final = payload("tcp", "dport")
REDIRECT: Final = {"redirect": {"port": 3128}}


def of_nft(*rules: tuple[str, list[Json]], hook: str = "prerouting") -> list[Translation]:
    table = {"family": "inet", "table": "t"}
    ports = {**table, "name": "ports", "type": "inet_service", "map": "inet_service", "elem": [[8080, 3128]]}
    listed = [
        {"metainfo": {"version": "1.0.6"}},
        {"map": ports},
        {"chain": {**table, "name": "pre", "type": "nat", "hook": hook, "prio": -100, "policy": "accept"}},
        {"chain": {**table, "name": "sub"}},
        *({"rule": {**table, "chain": chain, "expr": expr}} for chain, expr in rules),
    ]
    return list(nft_translations({"nftables": listed}, OWN))


@pytest.mark.parametrize(
    ("matches", "ports"),
    [
        ([match(DPORT, 8080)], PORT_8080),
        ([match(payload("th", "dport"), {"set": [80, {"range": [8000, 8079]}]})], BELOW_8080),
        ([match(DPORT, 8080, "!=")], ALL_PORTS - PORT_8080),
        ([match(DPORT, "@unknown")], ALL_PORTS),
        ([match(payload("ip", "daddr"), "10.3.0.2"), match(DPORT, 8080)], PORT_8080),
        ([match(payload("ip", "daddr"), {"prefix": {"addr": "10.3.0.0", "len": 24}})], ALL_PORTS),
        ([match(payload("ip6", "daddr"), {"set": ["fd00:3::2", "fd00:9::2"]})], ALL_PORTS),
        ([match({"meta": {"key": "l4proto"}}, "tcp")], ALL_PORTS),
        ([match({"meta": {"key": "l4proto"}}, "udp", "!=")], ALL_PORTS),
        ([match({"meta": {"key": "l4proto"}}, "udp")], None),
        ([match(payload("udp", "dport"), 8080)], None),
        ([match(payload("udp", "dport"), 53, "!=")], None),
        ([match(payload("ip", "daddr"), "10.96.0.1"), match(DPORT, 8080)], None),
        ([match({"meta": {"key": "iifname"}}, "lo"), match(DPORT, 8080)], None),
    ],
)
def test_rule_of_nftables_concerns_these_ports(matches: list[Json], ports: Ports | None) -> None:
    found = of_nft(("pre", [*matches, {"counter": None}, REDIRECT]))
    assert [translation.ports for translation in found] == ([] if ports is None else [ports])
    assert of_nft(("pre", [*matches, REDIRECT]), hook="output") == []


@pytest.mark.parametrize(
    ("statement", "address", "port"),
    [
        ({"dnat": {"family": "ip", "addr": "172.17.0.2", "port": 3128}}, "172.17.0.2", 3128),
        ({"dnat": {"addr": "172.17.0.2"}}, "172.17.0.2", None),
        ({"dnat": {"addr": "10.3.0.2", "port": 3128}}, None, 3128),
        ({"dnat": {"addr": {"range": ["10.0.0.2", "10.0.0.9"]}}}, "another address", None),
        ({"dnat": {"addr": {"map": {"key": DPORT, "data": {"set": [[8080, "10.0.0.9"]]}}}}}, "10.0.0.9", None),
        (
            {"dnat": {"addr": {"map": {"key": DPORT, "data": {"set": [[8080, {"concat": ["10.0.0.9", 1]}]]}}}}},
            "10.0.0.9",
            1,
        ),
        ({"redirect": {"port": {"map": {"key": DPORT, "data": "@ports"}}}}, None, 3128),
        ({"redirect": None}, None, None),
    ],
)
def test_statement_of_nftables_leads_there(statement: Json, address: str | None, port: int | None) -> None:
    (found,) = of_nft(("pre", [match(DPORT, {"range": [8080, 8080]}), statement]))
    assert found == Translation("pre of table inet t", PORT_8080, address, port)


@pytest.mark.parametrize(
    ("jump", "ports"),
    [
        ({"goto": {"target": "sub"}}, ALL_PORTS),
        ({"vmap": {"key": DPORT, "data": {"set": [[8080, {"jump": {"target": "sub"}}]]}}}, PORT_8080),
        (
            {
                "vmap": {
                    "key": {"concat": [payload("ip", "daddr"), DPORT]},
                    "data": {"set": [[{"elem": {"val": {"concat": ["10.3.0.2", 8080]}}}, {"goto": {"target": "sub"}}]]},
                }
            },
            PORT_8080,
        ),
        ({"vmap": {"key": DPORT, "data": {"set": [[8080, {"drop": None}]]}}}, None),
    ],
)
def test_chains_of_nftables_count_with_the_ports_that_lead_there(jump: Json, ports: Ports | None) -> None:
    found = of_nft(("pre", [jump]), ("sub", [REDIRECT]))
    expected = [] if ports is None else [Translation("sub of table inet t", ports, None, 3128)]
    assert found == expected


def test_rules_whose_programs_are_missing_or_fail_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> str:
        raise ProgramFailed("nft: Operation not permitted")

    for output_of in (lambda *_: None, fail):
        monkeypatch.setattr(collect_facts, "output_of", output_of)
        assert list(collect_facts._translations(dict(collect_facts._saved_rules()), OWN)) == []
    with pytest.raises(ProgramFailed):
        collect_facts.read_interceptions()


@pytest.mark.parametrize("printed", [None, "", "Error: syntax error", "["])
def test_rules_that_nft_does_not_list_as_json_are_not_known(
    monkeypatch: pytest.MonkeyPatch, printed: str | None
) -> None:
    monkeypatch.setattr(collect_facts, "output_of", lambda *_: printed)
    assert collect_facts.read_interceptions() == ()
    assert list(collect_facts._translations({}, OWN)) == []


@pytest.mark.parametrize(
    ("target", "port"),
    [("TPROXY --on-port 3129 --on-ip 0.0.0.0 --tproxy-mark 0x1/0x1", 3129), ("TPROXY --on-port 8080", 8080)],
)
def test_tproxy_of_iptables_gives_connections_to_a_port(target: str, port: int) -> None:
    rules = ("PREROUTING -p tcp -j PROXY", f"PROXY -d 198.51.100.0/24 -p tcp -m tcp --dport 8080 -j {target}")
    lines = ["*mangle", *(f"-A {rule}" for rule in rules), "COMMIT", ""]
    (found,) = saved_interceptions("\n".join(lines), "iptables-legacy-save")
    assert found == Translation("PROXY of table mangle (iptables-legacy)", PORT_8080, None, port)
    assert list(saved_translations("\n".join(lines), "iptables-legacy-save", OWN)) == []


@pytest.mark.parametrize(("to", "port"), [({"port": 3129}, 3129), ({"addr": "127.0.0.1"}, None)])
def test_tproxy_of_nftables_gives_connections_to_a_port(to: Json, port: int | None) -> None:
    table = {"family": "inet", "table": "t"}
    rule = {"rule": {**table, "chain": "pre", "expr": [match(DPORT, 8080), {"tproxy": to}, {"accept": None}]}}
    chain = {"chain": {**table, "name": "pre", "type": "filter", "hook": "prerouting", "prio": -150}}
    assert list(nft_interceptions({"nftables": [chain, rule]})) == [
        Translation("pre of table inet t", PORT_8080, None, port)
    ]
    chain["chain"]["hook"] = "forward"
    assert list(nft_interceptions({"nftables": [chain, rule]})) == []
