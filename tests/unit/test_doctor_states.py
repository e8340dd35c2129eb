"""Each check of `doctor`, and each place at which it makes a problem, has a state with it and a state that is ok.

A state is a function that puts a host into it: with `is_well` it does what the remedy says, or sets what says that the
problem is intended.
"""

from __future__ import annotations

import ast
import grp
import inspect
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from examples import examined_host
from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle import findings
from mptcp_throttle.cli.doctor import CHECKS, file_checks, kernel_checks, mark_checks, proxy_checks, service_checks
from mptcp_throttle.cli.doctor.file_checks import ServiceUser
from mptcp_throttle.config.schema import SocketGroup
from mptcp_throttle.features import FEATURE_TEXTS
from mptcp_throttle.findings import Check, Finding, Host
from mptcp_throttle.linux.qdisc_kinds import SeenQdisc
from mptcp_throttle.model import BackEnd, Budget, ClassifierKind, Counting, Every, Per, RateKind, Stage, Window
from mptcp_throttle.network_namespace import parse_namespace
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies, Proxy
from mptcp_throttle.rpc import Json
from mptcp_throttle.setup.host_facts import Translation
from mptcp_throttle.systemd_unit import Unit
from mptcp_throttle.units import Rate
from mptcp_throttle.valkey.server import ServerUrl
from mptcp_throttle.when import When

MODULES: Final = (file_checks, kernel_checks, mark_checks, proxy_checks, service_checks, findings)
REMARKS: Final = {mark_checks.classifier}
"""Checks without problems: they only say what is in use, and why."""


@dataclass
class Examined:
    """A host, of which a state patches what its checks read."""

    patch: pytest.MonkeyPatch
    directory: Path
    host: Host

    def reads(self, module: ModuleType, **values: object) -> None:
        """What a module has instead of its own."""
        for name, value in values.items():
            self.patch.setattr(module, name, value)

    def file(self, module: ModuleType, name: str, text: str) -> None:
        """The file that a module reads as the path of this name."""
        path = self.directory / name
        path.write_text(text)
        self.reads(module, **{name: path})

    def configure(self, section: str, **settings: object) -> None:
        """Settings of a section of the configuration."""
        config = self.host.config
        changed = getattr(config, section).model_copy(update=settings)
        self.host = replace(self.host, config=replace(config, **{section: changed}))

    def parameters(self, **values: str) -> None:
        """The parameters below net.mptcp."""
        parameters = self.directory / "mptcp"
        parameters.mkdir(exist_ok=True)
        for name, value in values.items():
            (parameters / name).write_text(f"{value}\n")
        self.reads(kernel_checks, _MPTCP=parameters)

    def daemon(self, **status: object) -> None:
        """What the daemon answers."""
        features = {name: {"problem": None, "switched_off": None} for name in FEATURE_TEXTS}
        fine: Json = {"not_enforced": [], "errors": [], "config": {"problems": []}, "pause": None, "features": features}
        answer = {"daemon": {"classifier": "socket", **fine, **status}, "sniffer": {"connected": True, "problem": None}}
        self.host = replace(self.host, daemon=answer)

    def sniffer(self, **status: object) -> None:
        """What the sniffer answers."""
        fine: Json = {
            "interfaces": ["eth0"],
            "captured": ["eth0"],
            "dropped": 0,
            "kernel_view": {"enabled": True, "problem": None},
        }
        self.host = replace(self.host, sniffer={**fine, **status})


State = Callable[[Examined, bool], None]


def kernel_without_mptcp(host: Examined, is_well: bool) -> None:
    host.parameters(**({"enabled": "1"} if is_well else {}))


def mptcp_off(host: Examined, is_well: bool) -> None:
    host.parameters(enabled="1" if is_well else "0")


def connections_on_another_host(host: Examined, is_well: bool) -> None:
    host.parameters()
    host.configure("sniffer", kernel_view=not is_well)


def with_limits(host: Examined, subflows: int, add_addr_accepted: int = 0) -> None:
    host.parameters(path_manager="kernel")
    limits = kernel_checks.Limits(subflows, add_addr_accepted)
    host.reads(kernel_checks, read_limits=lambda: limits, read_announced=list, receives_events=lambda: False)


def no_subflows(host: Examined, is_well: bool) -> None:
    with_limits(host, subflows=int(is_well))


def opened_by_the_proxy(host: Examined, is_well: bool) -> None:
    with_limits(host, 2, add_addr_accepted=0 if is_well else 8)


def opened_by_the_proxy_and_throttled(host: Examined, is_well: bool) -> None:
    with_limits(host, 2, add_addr_accepted=8)
    host.configure("daemon", classifier=ClassifierKind.NFT if is_well else ClassifierKind.RULES)


def initial_address_refused(host: Examined, is_well: bool) -> None:
    with_limits(host, 2)
    host.parameters(allow_join_initial_addr_port="1" if is_well else "0")


def joins_of_another_proxy(host: Examined, is_well: bool) -> None:
    with_limits(host, 2)
    host.parameters(allow_join_initial_addr_port="1")
    host.configure("fleet", url=ServerUrl.parse("valkey://127.0.0.1"))
    host.reads(kernel_checks, _WATCH_SECONDS=0.0)
    with_counts(host, received=1000, unknown=20 if is_well else 500)


def with_counts(host: Examined, received: int, unknown: int) -> None:
    host.file(kernel_checks, "_COUNTERS", "TcpExt: A\nTcpExt: 1\n" + mptcp_counters(received, unknown))


def mptcp_counters(received: int, unknown: int) -> str:
    return f"MPTcpExt: MPJoinNoTokenFound MPJoinSynRx\nMPTcpExt: {unknown} {received}\n"


def another_address_announced(host: Examined, is_well: bool) -> None:
    with_limits(host, 2)
    host.parameters(allow_join_initial_addr_port="0")
    host.reads(kernel_checks, read_announced=lambda: [kernel_checks.Announced("10.3.0.9", None)] if is_well else [])


def path_manager_of_a_program(host: Examined, is_well: bool) -> None:
    with_limits(host, 2)
    host.parameters(path_manager="userspace")
    host.reads(kernel_checks, receives_events=lambda: is_well)


def small_send_buffers(host: Examined, is_well: bool) -> None:
    host.file(kernel_checks, "_SEND_BUFFERS", f"4096 {1 << 20 if is_well else 16384} 4194304")


def clock_without_ntp(host: Examined, is_well: bool) -> None:
    stage = Stage(1.0, {RateKind.CAP: Rate.parse("256kbit")})
    budget = Budget(10**9, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, None, (stage,))
    networks = tuple(replace(network, budgets=(budget,)) for network in host.host.config.networks)
    host.host = replace(host.host, config=replace(host.host.config, networks=networks))
    host.reads(kernel_checks, is_clock_synchronised=lambda: is_well)


def much_unsent_data(host: Examined, is_well: bool) -> None:
    host.reads(platform, release=lambda: "6.12.1")
    host.file(kernel_checks, "_UNSENT", "16384" if is_well else "4294967295")


def large_pieces(host: Examined, is_well: bool) -> None:
    host.reads(platform, release=lambda: "6.1.0")
    host.file(kernel_checks, "_SINGLE_PAGES", str(int(is_well)))


def missing_interface(host: Examined, is_well: bool) -> None:
    (host.directory / ("eth0" if is_well else "eth1")).mkdir()
    host.reads(proxy_checks, _INTERFACES=host.directory)


def no_listener(host: Examined, is_well: bool) -> None:
    host.reads(proxy_checks, _listening=lambda _: Ports.of([8080] if is_well else []))


def listener_without_mptcp(host: Examined, is_well: bool) -> None:
    host.reads(proxy_checks, _listening=lambda protocol: Ports.of([8080] if is_well or protocol == "-t" else []))


def with_range(host: Examined, *listening: int, with_mptcp: tuple[int, ...] = ()) -> None:
    ports = Ports.parse([8080, "40000-40009"])
    host.host = replace(host.host, config=replace(host.host.config, proxies=Proxies.only(ports, ("eth0",))))
    host.reads(proxy_checks, _listening=lambda protocol: Ports.of(with_mptcp if protocol == "-M" else listening))


def no_listener_in_a_range(host: Examined, is_well: bool) -> None:
    ports = (8080, 40003) if is_well else (8080,)
    with_range(host, *ports, with_mptcp=ports)


def no_listener_of_one_proxy(host: Examined, is_well: bool) -> None:
    ports = {"work": 8080, "guests": 8443}
    proxies = Proxies({name: Proxy(("eth0",), Ports.of([port])) for name, port in ports.items()})
    host.host = replace(host.host, config=replace(host.host.config, proxies=proxies))
    host.reads(proxy_checks, _listening=lambda _: Ports.of([8080, 8443] if is_well else [8080]))


def listener_without_mptcp_in_a_range(host: Examined, is_well: bool) -> None:
    with_range(host, 8080, 40003, 40004, with_mptcp=(8080, 40003, 40004) if is_well else (8080, 40003))


def connections_from_a_range(host: Examined, is_well: bool) -> None:
    with_range(host, 8080, 40003, with_mptcp=(8080, 40003))
    host.file(proxy_checks, "_LOCAL_PORTS", "32768\t60999\n")
    host.file(proxy_checks, "_RESERVED_PORTS", "1-3,40000-40002,40004-40009\n" if is_well else "\n")


def listener_on_another_host(host: Examined, is_well: bool) -> None:
    no_listener(host, is_well=False)
    host.configure("sniffer", kernel_view=not is_well)


def with_rule_and_listeners(host: Examined, address: str | None, *elsewhere: int) -> None:
    no_listener(host, is_well=False)
    rule = Translation("DOCKER of table nat (iptables-legacy)", Ports.of([8080]), address, 3128)
    listening = [(port, None) for port in elsewhere]
    host.reads(os, geteuid=lambda: 0)
    host.reads(
        proxy_checks,
        read_translations=lambda: [] if address is None else [rule],
        listeners_elsewhere=lambda ports: [each for each in listening if each[0] in ports],
    )


def rule_that_leads_to_a_container(host: Examined, is_well: bool) -> None:
    with_rule_and_listeners(host, None if is_well else "172.17.0.2", 3128)


def container_that_does_not_run(host: Examined, is_well: bool) -> None:
    proxy = replace(host.host.config.proxy, namespace=parse_namespace("docker:squid"))
    host.host = replace(host.host, config=replace(host.host.config, proxies=Proxies({None: proxy})))
    host.reads(proxy_checks, is_entered=lambda: is_well, KEPT_AT=host.directory / "missing")


def container_that_has_ended(host: Examined, is_well: bool) -> None:
    container_that_does_not_run(host, is_well)
    host.reads(os, geteuid=lambda: 0)
    host.reads(proxy_checks, why_left=lambda _: "does not run", KEPT_AT=host.directory)


def rule_that_comes_before_rules(host: Examined, is_well: bool) -> None:
    rule_that_leads_to_a_container(host, is_well)
    host.configure("sniffer", kernel_view=False)
    host.daemon(classifier="rules")


def tproxy_to_another_port(host: Examined, is_well: bool) -> None:
    rule = Translation("PREROUTING of table mangle (iptables-nft)", Ports.of([8080]), None, 8080 if is_well else 3129)
    host.reads(os, geteuid=lambda: 0)
    host.reads(proxy_checks, read_interceptions=lambda: (rule,))


def proxy_in_a_container(host: Examined, is_well: bool) -> None:
    with_rule_and_listeners(host, None, 3128 if is_well else 8080)


def proxy_in_a_container_of_another_host(host: Examined, is_well: bool) -> None:
    proxy_in_a_container(host, is_well=False)
    host.configure("sniffer", kernel_view=not is_well)


class Lookup:
    """Sends everything through one interface."""

    def __init__(self, interface: str) -> None:
        self._interface = interface

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def address_of(self, *_: object) -> None:
        return None

    def interface_to(self, *_: object) -> str:
        return self._interface


def routes_through_another_interface(host: Examined, is_well: bool) -> None:
    host.reads(proxy_checks, RouteLookup=lambda: Lookup("eth0" if is_well else "eth1"), _clients=lambda _: iter(()))


class Links:
    """pyroute2's IPRoute, of a host with the interface eth0."""

    def __enter__(self) -> Links:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_links(self) -> Iterator[Json]:
        class Link(dict[str, int]):
            def get_attr(self, _: str) -> str:
                return "eth0"

        yield Link(index=7)


def with_root(host: Examined, kind: str) -> None:
    tree = (SeenQdisc(kind, 0x8001_0000, TC_H_ROOT),)
    host.reads(kernel_checks, timed=lambda _: Links(), seen_qdiscs=lambda _: {7: tree})


def qdisc_that_cannot_be_restored(host: Examined, is_well: bool) -> None:
    with_root(host, "pfifo" if is_well else "cake")


def qdisc_that_may_be_replaced(host: Examined, is_well: bool) -> None:
    with_root(host, "cake")
    host.configure("daemon", replace_any_qdisc=is_well)


def qdisc_of_a_switch(host: Examined, is_well: bool) -> None:
    with_root(host, "htb")
    host.configure("daemon", backend=BackEnd.OVS if is_well else BackEnd.TC)


def squid_that_serves_this_host_alone(host: Examined, is_well: bool) -> None:
    host.file(proxy_checks, "CONFIGURATION", f"http_port 8080\nhttp_access allow {'all' if is_well else 'localhost'}\n")


def squid_with_a_small_buffer(host: Examined, is_well: bool) -> None:
    line = "client_request_buffer_max_size 64 MB" if is_well else ""
    host.file(proxy_checks, "CONFIGURATION", f"http_port 8080\n{line}\n")
    networks = [network.with_rates({RateKind.UPLINK_CAP: Rate(10**6)}) for network in host.host.config.networks]
    host.host = replace(host.host, config=replace(host.host.config, networks=tuple(networks)))


def with_rules(host: Examined, saved: str, ruleset: Json, classifier: ClassifierKind = ClassifierKind.SOCKET) -> None:
    listed = {"iptables-nft-save": saved, "nft": json.dumps({"nftables": ruleset})}
    host.reads(mark_checks, output_of=lambda name, *_: listed.get(name))
    host.reads(os, geteuid=lambda: 0)
    host.configure("daemon", classifier=classifier)


def priorities_changed_by_iptables(host: Examined, is_well: bool) -> None:
    port = 22 if is_well else 8080
    rule = f"-A OUTPUT -p tcp -m tcp --sport {port} -j CLASSIFY --set-class 1:2"
    with_rules(host, f"*mangle\n{rule}\nCOMMIT\n", [])


def priorities_changed_by_nft(host: Examined, is_well: bool) -> None:
    table = {"family": "inet", "table": "t"}
    source = {"payload": {"protocol": "tcp", "field": "sport"}}
    ports = {"set": [22, {"range": [2000, 2009 if is_well else 9000]}]}
    change = {"mangle": {"key": {"meta": {"key": "priority"}}, "value": "1:2"}}
    expression = [{"match": {"op": "==", "left": source, "right": ports}}, change]
    chain = {**table, "name": "post", "type": "filter", "hook": "postrouting", "prio": 0}
    with_rules(host, "", [{"chain": chain}, {"rule": {**table, "chain": "post", "expr": expression}}])


def marks_changed_by_iptables(host: Examined, is_well: bool) -> None:
    bits = "0x1/0xff" if is_well else "0x10000/0xffff0000"
    rule = f"*mangle\n-A POSTROUTING -j MARK --set-xmark {bits}\nCOMMIT\n"
    with_rules(host, rule, [], ClassifierKind.RULES)


def iptables_of_nftables(host: Examined, is_well: bool) -> None:
    host.daemon(classifier="rules")
    kind = "legacy" if is_well else "nf_tables"
    host.reads(mark_checks, output_of=lambda *_: f"iptables v1.8.9 ({kind})")


def iptables_of_nftables_with_rules(host: Examined, is_well: bool) -> None:
    iptables_of_nftables(host, is_well=False)
    host.configure("daemon", classifier=ClassifierKind.RULES if is_well else ClassifierKind.AUTO)


def file_that_no_service_can_read(host: Examined, is_well: bool) -> None:
    file = host.directory / "mptcp-throttle.yaml"
    file.touch()
    file.chmod(0o644 if is_well else 0o600)
    above = {path.stat().st_ino for path in file.parents}
    may = ServiceUser.may
    host.patch.setattr(ServiceUser, "may", lambda user, bits, status: status.st_ino in above or may(user, bits, status))
    user = ServiceUser("throttled", 4711, frozenset({4711}))
    host.reads(file_checks, config_paths=lambda _: (file,), of_listener=lambda _: user)


def window_that_is_over(host: Examined, is_well: bool) -> None:
    window = Window(When.parse("2099-12-24" if is_well else "2020-12-24"), {})
    networks = tuple(replace(network, schedule=(window,)) for network in host.host.config.networks)
    host.host = replace(host.host, config=replace(host.host.config, networks=networks))


def unknown_socket_group(host: Examined, is_well: bool) -> None:
    group = SocketGroup("root" if is_well else "no-such-group", "mptcp-throttle.yaml:1")
    host.host = replace(host.host, config=replace(host.host.config, socket_group=group))


def user_without_the_socket_group(host: Examined, is_well: bool) -> None:
    unknown_socket_group(host, is_well=True)
    root = grp.getgrnam("root").gr_gid
    host.reads(os, geteuid=lambda: 1000, getegid=lambda: root if is_well else 1000, getgroups=lambda: [1000])


def sniffer_that_does_not_answer(host: Examined, is_well: bool) -> None:
    if is_well:
        host.sniffer()
    else:
        host.host = replace(host.host, config=replace(host.host.config, run_directory=host.directory))


def interface_not_captured(host: Examined, is_well: bool) -> None:
    host.sniffer(captured=["eth0"] if is_well else [])


def dropped_frames(host: Examined, is_well: bool) -> None:
    host.sniffer(dropped=0 if is_well else 7)


def kernel_list_refused(host: Examined, is_well: bool) -> None:
    host.sniffer(kernel_view={"enabled": True, "problem": None if is_well else "EPERM"})


def kernel_list_not_wanted(host: Examined, is_well: bool) -> None:
    host.sniffer(kernel_view={"enabled": not is_well, "problem": "EPERM"})


def connections_not_in_this_kernel(host: Examined, is_well: bool) -> None:
    host.sniffer(kernel_view={"enabled": True, "problem": None, "unlisted": None if is_well else "proved on the wire"})


def daemon_that_does_not_answer(host: Examined, is_well: bool) -> None:
    if is_well:
        host.daemon()
    else:
        host.host = replace(host.host, config=replace(host.host.config, run_directory=host.directory))


def paused(host: Examined, is_well: bool) -> None:
    host.daemon(pause=None if is_well else {"seconds_left": None})


def refused_class(host: Examined, is_well: bool) -> None:
    host.daemon(errors=[] if is_well else ["AddClass: ENOMEM"])


def missing_features(host: Examined, is_well: bool) -> None:
    state = {"problem": None if is_well else "no CAP_PERFMON", "switched_off": None}
    host.daemon(features=dict.fromkeys(FEATURE_TEXTS, state))


def features_switched_off(host: Examined, is_well: bool) -> None:
    state = {"problem": "daemon.pacing is false", "switched_off": "daemon.pacing is false" if is_well else None}
    host.daemon(features=dict.fromkeys(FEATURE_TEXTS, state))


def with_fleet(host: Examined, **fleet: object) -> None:
    host.daemon(fleet={"name": "proxy-1", "server": "a:1", "problem": None, "age": 1.0, "refused": 0, **fleet})


def fleet_whose_server_is_away(host: Examined, is_well: bool) -> None:
    with_fleet(host, problem=None if is_well else "a:1: does not answer", age=1.0 if is_well else None)


def fleet_whose_rates_cannot_be_leased(host: Examined, is_well: bool) -> None:
    problem = None if is_well else "a:1: NOPERM User proxy-1 has no permissions to run the 'hget' command"
    host.daemon(leases={"problem": problem})


def policy_that_is_refused(host: Examined, is_well: bool) -> None:
    problem = None if is_well else "policy 8: networks.d/lte.yaml:9: proxy: work: is not in proxies of a.yaml"
    host.daemon(policy={"fleet": "europe", "in_use": None, "problem": problem, "away": None})


def policy_whose_server_is_away(host: Examined, is_well: bool) -> None:
    away = None if is_well else "a:1: does not answer"
    host.daemon(policy={"fleet": "europe", "in_use": None, "problem": None, "away": away})


def fleet_whose_list_cannot_be_read(host: Examined, is_well: bool) -> None:
    with_fleet(host, list_problem=None if is_well else "is no hash")


def fleet_with_refused_values(host: Examined, is_well: bool) -> None:
    with_fleet(host, refused=0 if is_well else 3, refusal="a hash has '-1' as the total of proxy-2.00000000")


def with_unit(host: Examined, **properties: str) -> None:
    running = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "NRestarts": "0"}
    values = {**dict.fromkeys(Unit._fields, "0"), **running, "Id": "x.service", **properties}
    host.reads(service_checks, read_unit=lambda _: Unit(**values), last_line=lambda _: None)


def failed_unit(host: Examined, is_well: bool) -> None:
    with_unit(host, ActiveState="active" if is_well else "failed")


def masked_unit(host: Examined, is_well: bool) -> None:
    with_unit(host, LoadState="loaded" if is_well else "masked")


def unit_not_started(host: Examined, is_well: bool) -> None:
    with_unit(host, ActiveState="active" if is_well else "inactive")


def unit_that_ends(host: Examined, is_well: bool) -> None:
    with_unit(host, ActiveState="active" if is_well else "deactivating")


def unit_that_was_restarted(host: Examined, is_well: bool) -> None:
    with_unit(host, NRestarts="0" if is_well else "3")


STATES: Final[dict[Check, tuple[State, ...]]] = {
    kernel_checks.mptcp: (kernel_without_mptcp, mptcp_off, connections_on_another_host),
    kernel_checks.joins: (
        no_subflows,
        opened_by_the_proxy,
        opened_by_the_proxy_and_throttled,
        initial_address_refused,
        another_address_announced,
        joins_of_another_proxy,
        path_manager_of_a_program,
    ),
    kernel_checks.send_buffers: (small_send_buffers,),
    kernel_checks.clock: (clock_without_ntp,),
    kernel_checks.unsent_data: (much_unsent_data, large_pieces),
    proxy_checks.interface: (missing_interface,),
    proxy_checks.listeners: (
        no_listener,
        listener_without_mptcp,
        no_listener_in_a_range,
        no_listener_of_one_proxy,
        listener_without_mptcp_in_a_range,
        listener_on_another_host,
    ),
    proxy_checks.own_connections: (connections_from_a_range,),
    proxy_checks.namespace: (container_that_does_not_run, container_that_has_ended),
    proxy_checks.ends: (
        rule_that_leads_to_a_container,
        proxy_in_a_container,
        proxy_in_a_container_of_another_host,
    ),
    proxy_checks.translated: (rule_that_comes_before_rules,),
    proxy_checks.interceptions: (tproxy_to_another_port,),
    proxy_checks.routes: (routes_through_another_interface,),
    kernel_checks.root_qdiscs: (qdisc_that_cannot_be_restored, qdisc_that_may_be_replaced, qdisc_of_a_switch),
    proxy_checks.access: (squid_that_serves_this_host_alone,),
    proxy_checks.uploads: (squid_with_a_small_buffer,),
    mark_checks.foreign_marks: (priorities_changed_by_iptables, priorities_changed_by_nft, marks_changed_by_iptables),
    mark_checks.legacy_tables: (iptables_of_nftables, iptables_of_nftables_with_rules),
    file_checks.configuration_files: (file_that_no_service_can_read,),
    file_checks.schedules: (window_that_is_over,),
    file_checks.socket_group: (unknown_socket_group,),
    file_checks.cli_user: (user_without_the_socket_group,),
    service_checks.sniffer: (
        sniffer_that_does_not_answer,
        interface_not_captured,
        dropped_frames,
        kernel_list_refused,
        kernel_list_not_wanted,
        connections_not_in_this_kernel,
    ),
    service_checks.daemon: (
        daemon_that_does_not_answer,
        paused,
        refused_class,
        missing_features,
        features_switched_off,
        fleet_whose_server_is_away,
        fleet_whose_rates_cannot_be_leased,
        fleet_whose_list_cannot_be_read,
        fleet_with_refused_values,
        policy_that_is_refused,
        policy_whose_server_is_away,
    ),
    service_checks.units: (failed_unit, masked_unit, unit_not_started, unit_that_ends, unit_that_was_restarted),
}


def examine(check: Check, state: State, directory: Path, *, is_well: bool) -> list[Finding]:
    """What a check finds in a state."""
    directory.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        host = Examined(patch, directory, examined_host())
        state(host, is_well)
        return list(check(host.host))


@pytest.mark.parametrize(
    ("first", "last", "own", "found"),
    [
        ((0, 0), (0, 0), [], None),
        ((1000, 9), (1000, 9), [], None),
        ((100, 10), (100, 10), [], "of 100 since the start of this host, 10 are for connections"),
        ((1000, 49), (1000, 49), [], None),
        # Since the clients go to addresses of this proxy alone, none has come.
        ((1000, 500), (1900, 500), ["10.0.0.9"], None),
        ((1000, 500), (1010, 505), ["10.0.0.9"], "of 10 in 1 s, 5 are for connections"),
        ((1000, 500), (1010, 505), [], "of 10 in 1 s, 5 are for connections"),
        ((1000, 1), (1100, 2), [], None),
        ((1000, 1), (1001, 2), [], None),
    ],
)
def test_joins_of_unknown_connections_are_told_by_their_part(
    first: tuple[int, int], last: tuple[int, int], own: list[str], found: str | None
) -> None:
    counts = kernel_checks.JoinCounts(*first), kernel_checks.JoinCounts(*last)
    findings = list(kernel_checks.judge_unknown_joins(*counts, own))
    assert [found in str(finding.problem) for finding in findings if found is not None] == [True] * (found is not None)
    assert not (findings and found is None)
    assert [finding.harm for finding in findings] == [False] * len(findings)
    assert all(("10.0.0.9" in str(finding.remedy)) == bool(own) for finding in findings)


def test_joins_of_unknown_connections_mean_nothing_to_a_proxy_alone(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        host = Examined(patch, tmp_path, examined_host())
        joins_of_another_proxy(host, is_well=False)
        host.configure("fleet", url=None)
        assert [finding.problem for finding in kernel_checks.joins(host.host)] == [None]


def test_kernel_without_the_counters_of_joins_says_nothing(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        host = Examined(patch, tmp_path, examined_host())
        host.file(kernel_checks, "_COUNTERS", "MPTcpExt: MPCapableSYNRX\nMPTcpExt: 1\n")
        assert kernel_checks.read_join_counts() is None


@pytest.mark.parametrize(("check", "state"), [(check, state) for check in STATES for state in STATES[check]])
def test_every_problem_of_a_check_has_a_state_in_which_it_is_ok(check: Check, state: State, tmp_path: Path) -> None:
    found = examine(check, state, tmp_path / "ill", is_well=False)
    assert [finding for finding in found if finding.problem is not None]
    assert all(finding.remedy for finding in found if finding.problem is not None)
    found = examine(check, state, tmp_path / "well", is_well=True)
    assert found
    assert [finding for finding in found if finding.problem is not None or finding.unchecked is not None] == []


def test_every_check_has_such_states_or_only_remarks() -> None:
    assert {*STATES} | REMARKS == {*CHECKS}
    for check in REMARKS:
        assert "problem" not in inspect.getsource(inspect.unwrap(check))


def makes_problem(call: ast.Call) -> bool:
    """Whether a call is `note(...)`, or a `Finding` with a problem."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    with_problem = len(call.args) > 1 or any(each.arg == "problem" for each in call.keywords)
    return name == "note" or (name == "Finding" and with_problem)


def test_every_place_that_makes_a_problem_is_in_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: set[tuple[str, int]] = set()

    def recorded(make: Callable[..., Finding]) -> Callable[..., Finding]:
        def record(*args: object, **kwargs: object) -> Finding:
            finding = make(*args, **kwargs)
            frame = inspect.currentframe()
            assert frame is not None
            assert frame.f_back is not None
            if finding.problem is not None:
                made.add((frame.f_back.f_globals["__name__"], frame.f_back.f_lineno))
            return finding

        return record

    for module in MODULES:
        for name in {"Finding", "note"} & {*vars(module)}:
            monkeypatch.setattr(module, name, recorded(vars(module)[name]))
    states = [(check, state) for check in STATES for state in STATES[check]]
    for number, (check, state) in enumerate(states):
        examine(check, state, tmp_path / str(number), is_well=False)
    missing = []
    for module in MODULES:
        tree = ast.parse(inspect.getsource(module))
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and makes_problem(call):
                lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
                if not any((module.__name__, line) in made for line in lines):
                    missing.append(f"{module.__name__}:{call.lineno}: {ast.unparse(call)}")
    assert not missing, "\n".join(missing)


def test_listener_of_an_endpoint_with_a_port_is_none_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "LISTEN 0 1024 0.0.0.0:* 0.0.0.0:*\nLISTEN 0 100 [::]:8080 [::]:*\n"
    monkeypatch.setattr(proxy_checks, "output_of", lambda *_: shown)
    assert proxy_checks._listening("-M") == Ports.of([8080])


def test_port_on_which_the_kernel_listens_for_joins_is_no_fault(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        host = Examined(patch, tmp_path, examined_host())
        host.reads(proxy_checks, _listening=lambda protocol: Ports.of([8080] if protocol == "-t" else []))
        for announced, problem in (([], "has a listener without MPTCP"), ([("10.3.0.9", 8080)], None)):
            endpoints = [kernel_checks.Announced(*each) for each in announced]
            host.reads(proxy_checks, read_announced=lambda endpoints=endpoints: endpoints)
            assert [finding.problem for finding in proxy_checks.listeners(host.host)] == [problem]
