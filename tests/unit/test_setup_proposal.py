"""What `setup` proposes, and what it refuses, for a host."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from setup_facts import HOST, interface, listener

from mptcp_throttle.errors import EX_COMMAND_LINE, UserError
from mptcp_throttle.ports import ALL_PORTS, Ports
from mptcp_throttle.setup.collect_facts import legacy_dropping, nft_dropping, printable, unit_of
from mptcp_throttle.setup.host_facts import ClientPath, HostFacts, Mptcp, Owner, SquidFacts, Translation
from mptcp_throttle.setup.proposal import Proposal, next_steps, propose
from mptcp_throttle.setup.proposal_text import loaded, proposed_text
from mptcp_throttle.setup.server_drop_in import make_drop_in


def values(proposal: Proposal) -> dict[str, object]:
    return {".".join(value.keys): yaml.safe_load(value.text) for value in proposal.values}


def reason(proposal: Proposal, key: str) -> str:
    return next(value.reason for value in proposal.values if ".".join(value.keys) == key)


def refusal(facts: HostFacts, *names: str) -> tuple[int, str]:
    with pytest.raises(UserError) as caught:
        propose(facts, names)
    assert "\n" not in str(caught.value)
    return caught.value.status, str(caught.value)


def test_proposal_names_what_listens_with_mptcp_and_where_clients_come() -> None:
    proposal = propose(HOST)
    assert values(proposal) == {
        "proxy.interface": "eth0",
        "proxy.ports": [8080],
        "daemon.pacing": True,
        "daemon.replace_any_qdisc": False,
        "socket_group": "mptcp-throttle",
    }
    assert reason(proposal, "proxy.ports") == "squid (squid.service) listens on 8080 with MPTCP"
    assert reason(proposal, "proxy.interface") == "the default route leaves through it"
    assert (proposal.plain_servers, proposal.notes) == ((), ())
    assert all(value.reason for value in proposal.values)


@pytest.mark.parametrize(
    ("mptcp", "line"),
    [
        (Mptcp.MISSING, "setup: this kernel has no MPTCP; allowed: one with CONFIG_MPTCP"),
        (Mptcp.OFF, "setup: MPTCP is off; allowed: `sysctl net.mptcp.enabled=1`, then setup again"),
    ],
)
def test_host_without_mptcp_is_refused(mptcp: Mptcp, line: str) -> None:
    assert refusal(replace(HOST, mptcp=mptcp)) == (os.EX_OSERR, line)


def test_host_where_no_proxy_listens_is_refused() -> None:
    status, line = refusal(replace(HOST, listeners=HOST.listeners[:2]))
    assert status == os.EX_UNAVAILABLE
    assert "no program listens with MPTCP for other hosts (plain TCP: 22 by sshd)" in line
    assert "start Squid, whose http_port is 8080" in line
    assert values(propose(replace(HOST, listeners=()), ports=Ports.of([3128])))["proxy.ports"] == [3128]


def test_known_server_with_plain_tcp_is_proposed_with_its_drop_in() -> None:
    plain = replace(HOST, listeners=(HOST.listeners[0], listener(3128, mptcp=False)))
    proposal = propose(plain)
    assert values(proposal)["proxy.ports"] == [3128]
    assert reason(proposal, "proxy.ports").endswith("listens on 3128, with plain TCP until it is started with MPTCP")
    assert proposal.plain_servers == ("squid.service",)


@pytest.mark.parametrize(
    ("program", "option"), [("sing-box", "tcp_multi_path"), ("xray", "tcpMptcp"), ("ssserver", '"mptcp": true')]
)
def test_server_that_mptcpize_cannot_help_gets_its_own_option(program: str, option: str) -> None:
    plain = listener(8388, owner=Owner(9, program, f"{program}.service"), mptcp=False)
    proposal = propose(replace(HOST, listeners=(plain,)))
    assert proposal.plain_servers == ()
    (note,) = proposal.notes
    assert note.startswith(f"{program} listens with plain TCP, and mptcpize cannot help it: write `")
    assert option in note


def test_port_with_both_kinds_of_listeners_needs_no_drop_in() -> None:
    both = (listener(8080), listener(8080, "10.3.0.2", mptcp=False))
    assert propose(replace(HOST, listeners=both)).plain_servers == ()


def test_known_proxy_is_preferred_to_other_programs_with_mptcp() -> None:
    exporter = listener(9100, owner=Owner(8, "node_exporter", None))
    proposal = propose(replace(HOST, listeners=(*HOST.listeners, exporter)))
    assert values(proposal)["proxy.ports"] == [8080]
    assert proposal.notes == ("other ports with MPTCP: 9100 by node_exporter; --port, once for each, chooses ports",)


def test_program_that_is_no_known_proxy_is_proposed_only_by_name() -> None:
    facts = replace(HOST, listeners=(listener(9100, owner=Owner(8, "node_exporter", None)), listener(81, owner=None)))
    assert refusal(facts) == (
        EX_COMMAND_LINE,
        "setup: no known proxy accepts MPTCP, but other programs do (81 by unknown, 9100 by node_exporter); allowed:"
        " --port, once for each port of the proxy, as setup does not know these programs",
    )
    assert values(propose(facts, ports=Ports.of([9100])))["proxy.ports"] == [9100]


def test_plain_proxy_beside_another_program_with_mptcp_is_refused() -> None:
    exporter = listener(9100, owner=Owner(8, "node_exporter", None))
    facts = replace(HOST, listeners=(exporter, listener(3128, mptcp=False)))
    status, line = refusal(facts)
    assert status == EX_COMMAND_LINE
    assert line.startswith(
        "setup: no known proxy accepts MPTCP (3128 by squid), but other programs do (9100 by node_exporter); allowed: "
    )
    assert values(propose(facts, ports=Ports.of([3128])))["proxy.ports"] == [3128]


def test_adjacent_ports_of_a_proxy_are_proposed_as_a_range() -> None:
    facts = replace(HOST, listeners=tuple(listener(port) for port in (3128, *range(20000, 20040))))
    proposal = propose(facts)
    assert values(proposal)["proxy.ports"] == [3128, "20000-20039"]
    assert reason(proposal, "proxy.ports") == (
        "squid (squid.service) listens on 3128 with MPTCP; squid (squid.service) listens on 20000-20039 with MPTCP"
    )


def test_range_that_is_named_says_what_listens_in_it() -> None:
    facts = replace(HOST, listeners=(listener(20003), listener(20005, mptcp=False)))
    proposal = propose(facts, ports=Ports((range(20000, 30000),)))
    assert values(proposal)["proxy.ports"] == ["20000-29999"]
    assert reason(proposal, "proxy.ports") == (
        "named with --port: squid (squid.service) listens on 20003 with MPTCP; squid (squid.service) listens on 20005,"
        " with plain TCP until it is started with MPTCP; nothing listens on 20000-20002, 20004, 20006-29999 yet"
    )


def test_more_ports_than_the_configuration_may_have_are_refused() -> None:
    apart = range(8000, 8130, 2)
    status, line = refusal(replace(HOST, listeners=tuple(listener(port) for port in apart)))
    assert (status, line) == (
        EX_COMMAND_LINE,
        "setup: the proxy listens on 65 ports and ranges; allowed: up to 64, such as --port 20000-29999",
    )
    with pytest.raises(UserError, match=r"^setup: --port: 65 ports and ranges; allowed: up to 64, ") as caught:
        propose(HOST, ports=Ports.of(apart))
    assert caught.value.status == EX_COMMAND_LINE


def test_squid_without_http_port_is_named_without_one() -> None:
    facts = replace(HOST, listeners=(), squid=SquidFacts(frozenset(), serves_hosts=True, has_large_buffer=True))
    assert refusal(facts)[1].endswith("allowed: start Squid, or --port")
    (note,) = propose(facts, ports=Ports.of([8080])).notes
    assert note == "Squid has no http_port: write `http_port 8080` into a file in /etc/squid/conf.d"


def test_connected_clients_or_the_listener_decide_the_interface_first() -> None:
    proposal = propose(replace(HOST, client_paths=(ClientPath(8080, "eth1", 12),)))
    assert values(proposal)["proxy.interface"] == "eth1"
    assert reason(proposal, "proxy.interface") == "used by the 12 clients that are connected now"
    assert values(propose(replace(HOST, listeners=(listener(8080, "10.4.0.2"),))))["proxy.interface"] == "eth1"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"default_routes": ("eth0", "eth1")}, "eth0, eth1 (the default route"),
        ({"default_routes": ()}, "eth0, eth1 (it is up"),
    ],
)
def test_several_candidates_for_the_interface_are_refused(changes: dict[str, object], why: str) -> None:
    facts = replace(HOST, **changes)  # type: ignore[arg-type]
    status, line = refusal(facts)
    assert (status, why in line, line.endswith("each with --interface")) == (EX_COMMAND_LINE, True, True)
    assert values(propose(facts, ["eth1"]))["proxy.interface"] == "eth1"
    assert values(propose(facts, ["eth1", "eth0", "eth1"]))["proxy.interfaces"] == ["eth1", "eth0"]


@pytest.mark.parametrize(
    "changes",
    [
        {"client_paths": (ClientPath(8080, "eth0", 1), ClientPath(8080, "eth1", 1))},
        {"listeners": (listener(8080, "10.3.0.2"), listener(8080, "10.4.0.2"))},
    ],
)
def test_interfaces_that_clients_use_are_all_proposed(changes: dict[str, object]) -> None:
    proposal = propose(replace(HOST, **changes))  # type: ignore[arg-type]
    assert values(proposal)["proxy.interfaces"] == ["eth0", "eth1"]
    assert reason(proposal, "daemon.replace_any_qdisc").count("is of a kind that can be restored") == 2


def test_host_without_default_route_needs_an_address() -> None:
    facts = replace(HOST, default_routes=(), interfaces=(*HOST.interfaces[:2], interface("eth1", None)))
    assert values(propose(facts))["proxy.interface"] == "eth0"
    facts = replace(HOST, default_routes=(), interfaces=(HOST.interfaces[0], interface("eth0", None)))
    assert refusal(facts)[0] == EX_COMMAND_LINE


def test_unknown_interface_is_refused_with_those_that_exist() -> None:
    assert refusal(HOST, "eth7") == (
        EX_COMMAND_LINE,
        "setup: --interface eth7: no such interface, or loopback; allowed: eth0, eth1",
    )


def test_qdisc_that_cannot_be_restored_is_a_note() -> None:
    facts = replace(HOST, interfaces=(interface("eth0", "10.3.0.2", qdisc="cake"),))
    proposal = propose(facts)
    assert values(proposal)["daemon.replace_any_qdisc"] is False
    assert any("cake, cannot be restored exactly" in note for note in proposal.notes)


def test_interface_that_is_down_or_not_supported_is_a_note() -> None:
    facts = replace(HOST, interfaces=(interface("sit1", "10.3.0.2", up=False, supported=False),))
    notes = propose(facts, ["sit1"]).notes
    assert notes[0].startswith("sit1 is down: ")
    assert notes[1] == (
        "sit1 is none of Ethernet, tun, WireGuard and PPP: it cannot be captured (only the kernel list shows subflows"
        " there), and while it is listed, uploads are throttled on no interface"
    )


def test_ports_that_another_program_has_are_not_those_of_metrics_and_page() -> None:
    taken = (*HOST.listeners, listener(9721, "127.0.0.1", Owner(5, "exporter", None)), listener(9722, "127.0.0.1"))
    proposal = propose(replace(HOST, listeners=taken))
    assert values(proposal)["metrics.listen"] is None
    assert reason(proposal, "metrics.listen") == "exporter listens on 9721 already"
    own = Owner(6, "mptcp-throttled", "mptcp-throttled.service")
    assert "metrics.listen" not in values(
        propose(replace(HOST, listeners=(*HOST.listeners, listener(9721, owner=own))))
    )


def test_what_the_host_lacks_is_not_proposed() -> None:
    proposal = propose(replace(HOST, has_type_information=False, has_socket_group=False))
    assert reason(proposal, "daemon.pacing").startswith("without /sys/kernel/btf/vmlinux HTB alone")
    assert values(proposal)["socket_group"] is None


def test_squid_of_debian_gets_the_lines_that_it_lacks() -> None:
    debian = SquidFacts(frozenset({3128}), serves_hosts=False, has_large_buffer=False)
    notes = propose(replace(HOST, listeners=(listener(3128, mptcp=False),), squid=debian)).notes
    assert any("`http_access allow clients`" in note for note in notes)
    assert any("`client_request_buffer_max_size 64 MB`" in note for note in notes)
    (note,) = propose(replace(HOST, listeners=(), squid=debian), ports=Ports.of([8080])).notes
    assert note.startswith("Squid's http_port is 3128: --port takes it, or write `http_port 8080`")


def test_firewall_that_drops_is_a_note() -> None:
    chain = {"family": "inet", "table": "filter", "name": "input", "hook": "input", "policy": "drop"}
    accepting = {**chain, "hook": "forward"}, {**chain, "policy": "accept"}, {"family": "ip", "table": "t", "name": "x"}
    firewalld = {**chain, "table": "firewalld", "name": "filter_INPUT", "type": "filter", "policy": "accept"}
    chains = ({"chain": listed_chain} for listed_chain in (chain, *accepting, firewalld))
    listed = {"nftables": [{"metainfo": {}}, *chains]}
    assert list(nft_dropping(listed)) == ["input of table inet filter", "filter_INPUT of table inet firewalld"]
    saved = "*mangle\n:INPUT ACCEPT [0:0]\n*filter\n:INPUT DROP [1:2]\n:FORWARD DROP [0:0]\nCOMMIT\n"
    assert list(legacy_dropping(saved, "iptables-legacy-save")) == ["INPUT of table filter (iptables-legacy)"]
    (note,) = propose(replace(HOST, dropping_chains=("input of table inet filter",))).notes
    assert note.endswith("accept TCP port 8080 there")


@pytest.mark.parametrize(
    ("ports", "address", "port", "note"),
    [
        (
            Ports.of([8080]),
            "172.17.0.2",
            3128,
            "port 8080 are sent to 172.17.0.2, port 3128 (chain c): they do not end at the proposed port, and are not"
            " throttled",
        ),
        (
            Ports((range(8000, 9000),)),
            None,
            3128,
            "port 8080 are sent to this host, port 3128 (chain c): they do not end at the proposed port, and are not"
            " throttled",
        ),
        (
            ALL_PORTS,
            "172.17.0.2",
            None,
            "port 8080 are sent to 172.17.0.2, port as before (chain c): they do not end at the proposed port, and are"
            " not throttled",
        ),
        (
            Ports.of([80]),
            None,
            8080,
            "port 80 are sent to this host, port 8080 (chain c): their uploads are not throttled",
        ),
        (
            Ports((range(80, 90), range(443, 444), range(8080, 8081))),
            None,
            8080,
            "port 80-89, 443 are sent to this host, port 8080 (chain c): their uploads are not throttled",
        ),
        (Ports.of([8080]), None, 8080, None),
        (Ports.of([8080]), None, None, None),
        (Ports.of([80]), "172.17.0.2", 8080, None),
    ],
)
def test_address_translation_of_the_proposed_port_is_a_note(
    ports: Ports, address: str | None, port: int | None, note: str | None
) -> None:
    facts = replace(HOST, translations=(Translation("c", ports, address, port),))
    assert propose(facts).notes == (() if note is None else (f"connections to {note}",))


def test_socket_unit_of_systemd_is_a_note() -> None:
    systemd = listener(8080, owner=Owner(1, "systemd", None), mptcp=False)
    (note,) = propose(replace(HOST, listeners=(systemd,)), ports=Ports.of([8080])).notes
    assert "SocketProtocol=mptcp" in note


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/squid.service\n", "squid.service"),
        ("1:name=systemd:/x.service\n0::/system.slice/system-a.slice/a@1.service/child\n", "a@1.service"),
        ("0::/user.slice/user-0.slice/session-1.scope\n", None),
        ("0::/user.slice/user-9.slice/user@9.service/app.slice/squid.service\n", None),
        ("0::/\n", None),
        ("", None),
        ("0::/user.slice/a\x85b.service\n", None),
    ],
)
def test_unit_of_a_process_is_that_of_its_cgroup(cgroup: str, unit: str | None) -> None:
    assert unit_of(cgroup) == unit


@pytest.mark.parametrize("name", ["eth0", "null", "off", "1", "0x1", "a#b", "a,b]", '"x"', "é", "~", "yes", "wg-1.2"])
def test_any_name_of_an_interface_is_written_as_text(name: str) -> None:
    facts = replace(HOST, interfaces=(*HOST.interfaces, interface(name, "10.9.0.1")))
    for names in ([name], [name, "eth1"]):
        config = loaded(proposed_text(propose(facts, names), None))
        assert config.proxy.interfaces == tuple(names)


@pytest.mark.parametrize("name", ["a\x85web: x", "a\u2028b", "a\x1b[2J", "a\nb", "ü"])
def test_name_of_a_process_cannot_end_a_line(name: str) -> None:
    facts = replace(HOST, listeners=(listener(8080, owner=Owner(5, printable(name), None)),))
    text = proposed_text(propose(facts, ports=Ports.of([8080])), None)
    assert text.isascii()
    assert "\x1b" not in text
    assert text.count("\n") == proposed_text(propose(HOST, ports=Ports.of([8080])), None).count("\n")


def test_next_steps_are_in_the_order_in_which_they_work() -> None:
    def steps(*, run: bool = False, parameters: bool = False, own: bool = False, drop_in: bool = False) -> list[str]:
        text = "[Service]\nExecStart=/usr/sbin/squid --foreground -sYC\n"
        made = make_drop_in(Path("/"), "squid.service", [text], with_uploads=True) if drop_in else None
        facts = replace(HOST, services_run=run)
        return list(next_steps(facts, ["squid.service"], made, needs_parameters=parameters, has_own_networks=own))

    services = "mptcp-sniffer mptcp-throttled"
    assert steps(parameters=True) == [
        "sysctl --system",
        "mptcp-throttle setup --server-drop-in squid",
        f"systemctl enable --now {services}",
        "mptcp-throttle setup networks --write [--expensive ADDRESS]",
        "mptcp-throttle reload",
        "mptcp-throttle doctor",
    ]
    assert steps(run=True, own=True, drop_in=True) == [
        "systemctl daemon-reload",
        "systemctl restart squid.service",
        "ss -Mltn",
        f"systemctl restart {services}",
        "mptcp-throttle doctor",
    ]
