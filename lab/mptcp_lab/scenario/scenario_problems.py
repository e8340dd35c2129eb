"""What is wrong with a scenario that its sections cannot see one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_lab.port import Port
from mptcp_lab.proxy_server import Access
from mptcp_lab.scenario.quantities import Moment
from mptcp_lab.scenario.scenario_schema import (
    ACTIONS,
    CAP,
    MAX_ENDS,
    MAX_LINKS,
    OF_CAPTURES,
    OF_NETWORKS,
    OF_SUBFLOWS,
    OF_VIDEOS,
    SHAPE,
    UNITS,
    HostSection,
    Node,
    Program,
    Protocol,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.scenario.scenario_schema import Scenario
    from mptcp_throttle.config.yaml_file import KeyPath


def problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """What the sections cannot see one by one: where, and what is wrong there and allowed."""
    yield from _link_problems(scenario)
    yield from _host_problems(scenario)
    yield from _throttle_problems(scenario)
    yield from _switch_problems(scenario)
    yield from _flow_problems(scenario)
    yield from _event_problems(scenario)
    yield from _moment_problems(scenario)
    yield from _figure_problems(scenario)
    yield from _effect_problems(scenario)


def _one_of_these(names: object) -> str:
    return f"allowed: {', '.join(map(str, names)) or 'none, there is none'}"  # type: ignore[call-overload]


def _ports(scenario: Scenario) -> list[Port]:
    return [port for link in scenario.links.values() for port in link.ends]


def _link_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    if len(scenario.links) > MAX_LINKS:
        yield ("links",), f"allowed: up to {MAX_LINKS}"
    seen: set[Port] = set()
    for name, link in scenario.links.items():
        keys: KeyPath = ("links", name)
        if len(link.ends) < 2:
            yield (*keys, "ends"), f"allowed: 2 to {MAX_ENDS} ends"
        for number_, port in enumerate(link.ends):
            if port.host not in scenario.hosts:
                yield (*keys, "ends", number_), f"there is no such host; {_one_of_these(scenario.hosts)}"
            if port in seen:
                yield (*keys, "ends", number_), "is an end of another link; allowed: an interface of its own"
            seen.add(port)
        if set(link.families) - {4, 6}:
            yield (*keys, "families"), "allowed: 4, 6 or both"
        if link.bridged and scenario.gateway(name) is None:
            yield (*keys, "bridged"), "needs an end at a host that forwards"
        if link.mtu < 1280 and 6 in link.families:
            yield (*keys, "mtu"), "is too small for IPv6; allowed: 1280 or more, or families: [4]"
        if link.jitter and link.rate is None:
            yield (*keys, "jitter"), "needs a rate: without it packets overtake each other"
        if link.jitter > link.delay:
            yield (*keys, "jitter"), "is more than delay"
        if link.reorder and not link.delay:
            yield (*keys, "reorder"), "needs a delay, which the packets that overtake others skip"
        if link.gap > 1 and not link.reorder:
            yield (*keys, "gap"), "needs reorder"
        if link.lossy_ends is not None and (link.shared or link.bridged or not link.loss):
            yield (*keys, "lossy_ends"), "needs a loss, and a link with two ends that is not bridged"
        for port in link.lossy_ends or ():
            if port not in link.ends:
                yield (*keys, "lossy_ends"), f"{port} is no end of it; {_one_of_these(link.ends)}"


def _host_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    forwarding = [name for name, host in scenario.hosts.items() if host.forward]
    if len(forwarding) > 1:
        yield ("hosts", forwarding[1], "forward"), f"allowed: one host that forwards, which is {forwarding[0]}"
    for name, host in scenario.hosts.items():
        interfaces = [port.interface for port, _ in scenario.ports(name)]
        if not interfaces:
            yield ("hosts", name), "is at no link; allowed: hosts that links connect"
        for key in ("addresses", "endpoints", "qdiscs"):
            for interface in getattr(host, key):
                if interface not in interfaces:
                    yield ("hosts", name, key, interface), f"no such interface; {_one_of_these(interfaces)}"
        if set(host.families) - {4, 6}:
            yield ("hosts", name, "families"), "allowed: 4, 6 or both"
        reaches_origin = host.server is not None and host.server.program.access in {Access.REVERSE, Access.TRANSPARENT}
        if reaches_origin and scenario.host_running(Program.ORIGIN) is None:
            yield ("hosts", name, "server"), "needs a host that runs origin"


def _throttle_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    host = scenario.host_running(Program.THROTTLE)
    if (host is None) != (scenario.throttle is None):
        yield ("throttle",), "allowed: if and only if a host runs throttle"
    if host is not None and len(list(scenario.ports(host))) != 1:
        yield ("hosts", host, "run"), "throttle needs a host with one interface"
    if scenario.throttle is None:
        return
    networks = scenario.throttle.networks
    for name, network in networks.items():
        if network.link not in scenario.links:
            yield ("throttle", "networks", name, "link"), f"no such link; {_one_of_these(scenario.links)}"
    for name, device in scenario.throttle.devices.items():
        keys: KeyPath = ("throttle", "devices", name)
        if device.host not in scenario.hosts:
            yield (*keys, "host"), f"no such host; {_one_of_these(scenario.hosts)}"
        links = {link for _, link in scenario.ports(device.host)}
        there = [network for network, section in networks.items() if section.link in links]
        for name_there in device.networks:
            if name_there not in there:
                yield (*keys, "networks", name_there), f"no network of a link of the host; {_one_of_these(there)}"


def _switch_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    switches = scenario.switches
    if bool(switches) != (scenario.controller is not None):
        yield ("controller",), "allowed: if and only if a host is a switch (node: ovs)"
    for name in switches:
        host = scenario.hosts[name]
        if host != HostSection(node=Node.OVS):
            yield ("hosts", name), "a switch (node: ovs) has no other key"
    for name, link in scenario.links.items() if switches else ():
        if len(link.ends) != 2:
            yield ("links", name, "ends"), "allowed: two ends, where hosts are switches"
        if link.families != (4,):
            yield ("links", name, "families"), "allowed: [4], where hosts are switches"
    for name in () if not switches else scenario.hosts:
        if name not in switches and len(list(scenario.ports(name))) != 1:
            yield ("hosts", name), "allowed: one interface, where other hosts are switches"


def _flow_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    for name, flow in scenario.flows.items():
        keys: KeyPath = ("flows", name)
        for key, host in (("from", flow.sender), ("to", flow.receiver), ("via", flow.via)):
            if host is not None and host not in scenario.hosts:
                yield (*keys, key), f"no such host; {_one_of_these(scenario.hosts)}"
                return
        if flow.over is not None and flow.over not in scenario.links:
            yield (*keys, "over"), f"no such link; {_one_of_these(scenario.links)}"
        if flow.family not in {4, 6}:
            yield (*keys, "family"), "allowed: 4 or 6"
        if flow.via is not None:
            if scenario.hosts[flow.via].server is None:
                yield (*keys, "via"), "this host has no server"
            if Program.ORIGIN not in scenario.hosts[flow.sender].run + scenario.hosts[flow.receiver].run:
                yield (*keys, "from"), "neither this host nor the other host runs origin"
            rates = [scenario.links[link].rate for _, link in scenario.ports(flow.receiver)]
            if not flow.is_limited and None in rates:
                yield (*keys, "size"), "is required where a link of the receiver has no rate"
            if flow.size is None and scenario.is_upload(name):
                yield (*keys, "size"), "is required of an upload"
            if flow.protocol not in {Protocol.MPTCP, Protocol.TCP}:
                yield (*keys, "protocol"), "allowed with via: mptcp, tcp"
            yield from _socks_problems(scenario, name, flow.via)
        elif flow.check:
            yield (*keys, "check"), "needs via"
        if flow.video is not None:
            yield from _video_problems(scenario, name)
        if flow.size is not None and (flow.duration is not None or flow.protocol is Protocol.UDP):
            yield (*keys, "size"), "allowed: size or duration, and not for udp"
        if (flow.rate is None) != (flow.protocol is not Protocol.UDP):
            yield (*keys, "rate"), "is for udp, which needs it"
        if flow.start >= scenario.duration:
            yield (*keys, "start"), "is not before the end of the scenario (duration)"
        if flow.is_limited and scenario.until is not None:
            yield ("until",), f"allowed: only without flows with a size or a video, which {name} is"


def _video_problems(scenario: Scenario, name: str) -> Iterator[tuple[KeyPath, str]]:
    flow, keys = scenario.flows[name], ("flows", name)
    server = None if flow.via is None else scenario.hosts[flow.via].server
    if server is None or server.program.access is not Access.FORWARD or scenario.is_upload(name):
        yield (*keys, "video"), "allowed: from origin, via a server that is an HTTP proxy"
    if flow.size is not None or flow.duration is not None or flow.check:
        yield (*keys, "video"), "allowed: without size, duration and check"


def _socks_problems(scenario: Scenario, name: str, via: str) -> Iterator[tuple[KeyPath, str]]:
    """What a flow cannot choose where a program on the client connects to the server, once for all flows."""
    flow, kind = scenario.flows[name], scenario.hosts[via].server
    if kind is None or kind.program.access is not Access.SOCKS:
        return
    client = scenario.client_of(name)
    if any(f.via not in {None, via} and scenario.client_of(n) == client for n, f in scenario.flows.items()):
        yield ("flows", name, "via"), f"allowed where a flow goes through {kind}: all flows of the client through it"
    first = next((link for _, link in scenario.ports(client)), None)
    if flow.protocol is not Protocol.MPTCP or flow.family != 4 or flow.over not in {None, first}:
        yield ("flows", name, "via"), f"allowed through {kind}: protocol mptcp, family 4, over the client's first link"


def _moment_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    known = [] if scenario.throttle is None else [CAP]
    moments: list[tuple[KeyPath, Moment | None]] = []
    for number_, event in enumerate(scenario.events):
        if event.at.event is not None and event.at.event not in known:
            yield ("events", number_, "at"), f"no such event before this one; {_one_of_these(known)}"
        if event.name is not None and event.name in [CAP, *known]:
            yield ("events", number_, "name"), "is the name of another event"
        known += [event.name] if event.name is not None else []
    moments.append((("until",), scenario.until))
    for section, parts in (("windows", scenario.windows), ("report", scenario.report)):
        for name, part in parts.items():
            moments += [((section, name, "from"), part.begin), ((section, name, "to"), part.end)]
            same = part.end is not None and part.begin.event == part.end.event
            if same and part.end is not None and part.end.seconds <= part.begin.seconds:
                yield (section, name, "to"), "is not after from"
    for keys, moment in moments:
        if moment is not None and moment.event is not None and moment.event not in known:
            yield keys, f"no such event; {_one_of_these(known)}"


def _event_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    ports = _ports(scenario)
    for number_, event in enumerate(scenario.events):
        keys: KeyPath = ("events", number_)
        actions = [action for action in ACTIONS if getattr(event, action) is not None]
        if len(actions) != 1:
            yield keys, f"allowed: exactly one of {', '.join(ACTIONS)}"
            continue
        subject = getattr(event, actions[0])
        if isinstance(subject, Port) and subject not in ports:
            yield (*keys, actions[0]), f"no such end of a link; {_one_of_these(ports)}"
        shape = [key for key in SHAPE if getattr(event, key) is not None]
        if event.link is not None and (event.link not in scenario.links or not shape):
            yield (*keys, "link"), f"allowed: a link ({', '.join(scenario.links)}), with one of {', '.join(SHAPE)}"
        if event.link is None and shape:
            yield (*keys, shape[0]), "needs link"
        if isinstance(subject, Port) and subject.host in scenario.switches:
            yield (*keys, actions[0]), "is an end at a switch; allowed: outage"
        between = [
            n for n, link in scenario.links.items() if {port.host for port in link.ends} <= set(scenario.switches)
        ]
        if event.outage is not None and event.outage not in between:
            yield (*keys, "outage"), f"allowed: a link between switches; {_one_of_these(between)}"
        if (event.outage is None) != (event.seconds is None):
            yield keys, "allowed: outage and seconds together"
        if (event.endpoint is None) != (event.backup is None):
            yield keys, "allowed: endpoint and backup together"
        if event.throttle is not None and scenario.throttle is None:
            yield (*keys, "throttle"), "no host runs throttle"
        if event.clock is not None and (scenario.throttle is None or scenario.throttle.clock is None):
            yield (*keys, "clock"), "needs throttle.clock"


def _figure_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    for name, figure in scenario.report.items():
        keys: KeyPath = ("report", name)
        kinds = [kind for kind in UNITS if getattr(figure, kind) is not None]
        if len(kinds) != 1:
            yield keys, f"allowed: exactly one of {', '.join(UNITS)}"
            continue
        known: object = scenario.flows
        if kinds[0] in OF_NETWORKS:
            known = {} if scenario.throttle is None else scenario.throttle.networks
        elif kinds[0] == "outage_length":
            known = [event.name for event in scenario.events if event.outage is not None]
        elif kinds[0] == "restored":
            known = [host for host in [scenario.host_running(Program.THROTTLE)] if host is not None]
        wanted = getattr(figure, kinds[0])
        for key, text in (("counter", figure.counter), ("per", figure.per), ("without", figure.without)):
            if text is not None and (text.split(".")[0] not in scenario.hosts or text.count(".") != 1):
                yield (*keys, key), "allowed: HOST.COUNTER, such as proxy.TcpRetransSegs"
        if figure.without is not None and figure.per is None:
            yield (*keys, "without"), "needs per"
        if figure.completion is not None and all(flow.size is None for flow in scenario.flows.values()):
            yield (*keys, "completion"), "needs flows with a size"
        if figure.path_setup is not None and not scenario.switches:
            yield (*keys, "path_setup"), "needs a switch (node: ovs)"
        if figure.per is not None and figure.counter is None:
            yield (*keys, "per"), "needs counter"
        is_name = isinstance(wanted, str) and kinds[0] != "counter"
        if is_name and wanted not in known:  # type: ignore[operator]
            yield (*keys, kinds[0]), f"no such name; {_one_of_these(known)}"
        elif kinds[0] in OF_CAPTURES and not scenario.flows[wanted].has_mappings:
            yield (*keys, kinds[0]), "allowed: a flow without via, of the protocol mptcp"
        elif kinds[0] in OF_VIDEOS and scenario.flows[wanted].video is None:
            yield (*keys, kinds[0]), "allowed: a flow with a video"
        if figure.least_volume is not None and sum(link.trace is not None for link in scenario.links.values()) != 1:
            yield (*keys, "least_volume"), "needs one link with a trace"
        for key in ("rate", "volume", "over"):
            for link in getattr(figure, key) or ():
                if link not in scenario.links:
                    yield (*keys, key), f"no such link: {link}; {_one_of_these(scenario.links)}"
        if figure.over is not None and figure.kind not in OF_SUBFLOWS:
            yield (*keys, "over"), f"needs {', '.join(OF_SUBFLOWS[:-1])} or {OF_SUBFLOWS[-1]}"
        for link in figure.limit or ():
            if link not in scenario.links:
                yield (*keys, "limit"), f"no such link: {link}; {_one_of_these(scenario.links)}"
        if figure.seed is not None and scenario.seed is None:
            yield (*keys, "seed"), "needs the scenario's seed, whose line it names"
        if figure.window is not None and figure.window not in scenario.windows:
            yield (*keys, "window"), f"no such window; {_one_of_these(scenario.windows)}"
        if figure.window is not None and (figure.begin != Moment(0.0) or figure.end is not None):
            yield (*keys, "window"), "allowed: window, or from and to"
    for name, expectation in scenario.expect.items():
        for key, reference in (("of", expectation.of), ("to", expectation.to)):
            if isinstance(reference, str) and "/" not in reference and reference not in scenario.report:
                yield ("expect", name, key), f"no such figure; {_one_of_these(scenario.report)}"
        in_range = expectation.at_least is not None or expectation.at_most is not None
        if in_range == (expectation.near is not None):
            yield ("expect", name), "allowed: at_least, at_most or both; or near"


def _effect_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    if scenario.effects and scenario.seed is None:
        yield ("effects",), "needs seed"
    for name, effect in scenario.effects.items():
        keys: KeyPath = ("effects", name)
        for key, reference in (("of", effect.of), ("to", effect.to)):
            if reference is not None and "/" not in reference and reference not in scenario.report:
                yield (*keys, key), f"no such figure; {_one_of_these(scenario.report)}"
        in_range = effect.at_least is not None or effect.at_most is not None
        has_figures = effect.of is not None and effect.to is not None and in_range != (effect.apart is not None)
        has_none = effect.of is None and effect.to is None and not in_range and effect.apart is None
        if not has_figures and not (has_none and effect.not_comparable is not None):
            yield keys, "allowed: of and to, with at_least, at_most or both, or with apart; or not_comparable"
