"""The controller: an os-ken application that gives switches the rules for the path of each flow (OpenFlow 1.3).

`python -m mptcp_lab.sdn.controller SETTINGS.json SOCKET`. The settings are `{fabric, primary, recovery, detection,
port}`; on the socket JSON-RPC serves the methods of `Controller`. Each SYN, SYN/ACK and first datagram that enters at a
host's port comes here; `steering` chooses the path, and the packet goes on when all its switches have their rules.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from os_ken import cfg
from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.ofproto import ofproto_v1_3

from mptcp_lab.sdn.fabric import Fabric, Hop
from mptcp_lab.sdn.fabric import Path as FlowPath
from mptcp_lab.sdn.steering import TCP, UDP, Flow, Steering
from mptcp_sniffer.segment import Flag, Malformed, parse_ip_header, parse_tcp
from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import RpcServer

_DROP, _TO_CONTROLLER, _FLOW, _DATAGRAMS = 65_000, 300, 200, 100
"""Priorities of rules."""

_ETHERNET_BYTES: Final = 14
_ETHERTYPE_IPV4: Final = 0x0800
_BARRIER_SECONDS: Final = 5.0


class Controller(app_manager.OSKenApp):  # type: ignore[misc]
    """Steers flows; the methods without an underscore are those of JSON-RPC.

    os-ken calls the handlers of events one after the other, in one thread: none of them waits for an answer.
    """

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]  # noqa: RUF012

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **named)
        settings = _settings()
        self._fabric = Fabric.from_json(settings["fabric"])
        self._reroutes: bool = settings["recovery"] == "reroute"
        self._detection: float = settings["detection"]
        self._steering = Steering(self._fabric, settings["primary"])
        self._switches: dict[str, Any] = {}
        self._ready: set[str] = set()
        self._refusals: list[str] = []
        self._barriers: dict[tuple[int, int], Any] = {}
        self._setups: list[float] = []
        self._lock = threading.RLock()
        methods: dict[str, Callable[..., Any]] = {"state": self.state, "outage": self.outage}
        self._server = RpcServer(Path(sys.argv[2]), methods, None)

    def state(self) -> dict[str, Any]:
        """`{switches, setups, subflows, refusals}`.

        `switches` are those that have their rules. `setups`: seconds from the first packet of each flow until it went
        on. `subflows`: their paths, by token. `refusals`: the rules that switches have refused.
        """
        with self._lock:
            subflows = {
                f"{token:08x}": [[hop.switch for hop in self._steering.paths[flow]] for flow in flows]
                for token, flows in self._steering.subflows.items()
            }
            return {
                "switches": sorted(self._ready),
                "setups": self._setups.copy(),
                "subflows": subflows,
                "refusals": self._refusals.copy(),
            }

    def outage(self, link: str, seconds: float) -> dict[str, float]:
        """Let a link drop all packets: `{began, ended}` by the monotonic clock, when the switches said that they did.

        If the controller reroutes, flows are led around it once it is detected, and back when it is over.
        """
        if link not in self._fabric.links:
            raise UserError(f"{link}: no such link; allowed: {', '.join(self._fabric.links)}")
        ends = self._fabric.links[link]
        for switch, port in ends:
            self._set_rule(switch, _DROP, {"in_port": port}, None)
        began = max(self._barrier(switch) for switch, _ in ends)
        if self._reroutes and self._detection < seconds:
            time.sleep(max(began + self._detection - time.monotonic(), 0.0))
            with self._lock:
                self._install_all(self._steering.fail(link))
        time.sleep(max(began + seconds - time.monotonic(), 0.0))
        for switch, port in ends:
            self._delete_rule(switch, _DROP, {"in_port": port})
        ended = max(self._barrier(switch) for switch, _ in ends)
        with self._lock:
            self._install_all(self._steering.repair(link))
        return {"began": began, "ended": ended}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)  # type: ignore[untyped-decorator]
    def _switch_connected(self, event: Any) -> None:  # noqa: ANN401
        datapath = event.msg.datapath
        name = self._fabric.switches[datapath.id - 1]
        with self._lock:
            self._switches[name] = datapath
        for port in {end.port for end in self._fabric.hosts.values() if end.switch == name}:
            # Open vSwitch's field for TCP flags is of Nicira's class. The fields that it depends on must be, too: else
            # the switch refuses the rule.
            syn = {
                "in_port": port,
                "eth_type_nxm": _ETHERTYPE_IPV4,
                "ip_proto_nxm": TCP,
                "tcp_flags_nxm": (Flag.SYN, Flag.SYN),
            }
            to_controller = (ofproto_v1_3.OFPP_CONTROLLER,)
            self._set_rule(name, _TO_CONTROLLER, syn, to_controller)
            datagrams = {"in_port": port, "eth_type": _ETHERTYPE_IPV4, "ip_proto": UDP}
            self._set_rule(name, _DATAGRAMS, datagrams, to_controller)
        self._when_done(name, lambda: self._ready.add(name))

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])  # type: ignore[untyped-decorator]
    def _refused(self, event: Any) -> None:  # noqa: ANN401
        # Nothing else tells of a rule that the switch has not taken.
        name = self._fabric.switches[event.msg.datapath.id - 1]
        self._refusals.append(f"{name}: refused: type {event.msg.type}, code {event.msg.code}")

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def _packet_came(self, event: Any) -> None:  # noqa: ANN401
        came, message = time.monotonic(), event.msg
        try:
            first_packet = _flow_of(message.data[_ETHERNET_BYTES:])
        except Malformed:
            return
        with self._lock:
            if first_packet is None:
                return
            is_first = first_packet[0] not in self._steering.paths
            path = self._steering.path_of_first_packet(*first_packet)
            if path is None:
                return
            self._install(first_packet[0], path)

        def go_on() -> None:
            datapath, parser = message.datapath, message.datapath.ofproto_parser
            datapath.send_msg(
                parser.OFPPacketOut(
                    datapath=datapath,
                    buffer_id=ofproto_v1_3.OFP_NO_BUFFER,
                    in_port=path[0].enters,
                    actions=[parser.OFPActionOutput(path[0].leaves)],
                    data=message.data,
                )
            )
            if is_first:
                self._setups.append(time.monotonic() - came)

        left = itertools.count(len(path) - 1, -1)

        def one_is_done() -> None:
            if next(left) == 0:
                go_on()

        for hop in path:
            self._when_done(hop.switch, one_is_done)

    def _install_all(self, paths: Mapping[Flow, FlowPath]) -> None:
        for flow, path in paths.items():
            self._install(flow, path)

    def _install(self, flow: Flow, path: FlowPath) -> None:
        """Rules on every switch of the path, the last one first."""
        for hop in reversed(path):
            self._set_rule(hop.switch, _FLOW, _match(flow, hop), (hop.leaves,))

    def _set_rule(self, switch: str, priority: int, match: dict[str, Any], ports: tuple[int, ...] | None) -> None:
        datapath = self._switches[switch]
        parser = datapath.ofproto_parser
        actions = [parser.OFPActionOutput(port, ofproto_v1_3.OFPCML_NO_BUFFER) for port in ports or ()]
        apply = [parser.OFPInstructionActions(ofproto_v1_3.OFPIT_APPLY_ACTIONS, actions)] if actions else []
        rule = parser.OFPMatch(**match)
        datapath.send_msg(parser.OFPFlowMod(datapath=datapath, priority=priority, match=rule, instructions=apply))

    def _delete_rule(self, switch: str, priority: int, match: dict[str, Any]) -> None:
        datapath = self._switches[switch]
        parser = datapath.ofproto_parser
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath=datapath,
                command=ofproto_v1_3.OFPFC_DELETE_STRICT,
                priority=priority,
                match=parser.OFPMatch(**match),
                out_port=ofproto_v1_3.OFPP_ANY,
                out_group=ofproto_v1_3.OFPG_ANY,
            )
        )

    def _barrier(self, switch: str) -> float:
        """When the switch had carried out what was sent before; not for handlers of events.

        Raises UserError if it does not answer, or if a switch has refused a rule.
        """
        done, at = threading.Event(), 0.0

        def note() -> None:
            nonlocal at
            at = time.monotonic()
            done.set()

        self._when_done(switch, note)
        if not done.wait(_BARRIER_SECONDS):
            raise UserError(f"{switch}: does not answer")
        if self._refusals:
            raise UserError(self._refusals[0])
        return at

    def _when_done(self, switch: str, then: Any) -> None:  # noqa: ANN401
        """Call `then` when the switch has carried out what was sent before."""
        datapath = self._switches[switch]
        request = datapath.ofproto_parser.OFPBarrierRequest(datapath)
        # Two threads may ask for a transaction id at the same time, and os-ken has no lock for that.
        with self._lock:
            datapath.set_xid(request)
            self._barriers[datapath.id, request.xid] = then
        datapath.send_msg(request)

    @set_ev_cls(ofp_event.EventOFPBarrierReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])  # type: ignore[untyped-decorator]
    def _barrier_reached(self, event: Any) -> None:  # noqa: ANN401
        then = self._barriers.pop((event.msg.datapath.id, event.msg.xid), None)
        if then is not None:
            then()


def _settings() -> dict[str, Any]:
    return dict(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


def _match(flow: Flow, hop: Hop) -> dict[str, Any]:
    kind = "tcp" if flow.protocol == TCP else "udp"
    return {
        "in_port": hop.enters,
        "eth_type": _ETHERTYPE_IPV4,
        "ip_proto": flow.protocol,
        "ipv4_src": flow.source,
        "ipv4_dst": flow.destination,
        f"{kind}_src": flow.source_port,
        f"{kind}_dst": flow.destination_port,
    }


def _flow_of(packet: bytes) -> tuple[Flow, int, bytes] | None:
    """The flow of an IP packet, with TCP's flags and options. Raises Malformed."""
    header = parse_ip_header(packet)
    if header is None or header[0] not in (TCP, UDP):
        return None
    protocol, start, source, destination = header
    sender, receiver = str(ip_address(source)), str(ip_address(destination))
    if protocol == UDP:
        ports = (int.from_bytes(packet[start + at : start + at + 2]) for at in (0, 2))
        return Flow(UDP, sender, next(ports), receiver, next(ports)), 0, b""
    segment = parse_tcp(packet, start, source, destination)
    flow = Flow(TCP, sender, segment.source.port, receiver, segment.destination.port)
    return flow, segment.flags, segment.options


def main() -> None:
    """Run until a signal."""
    cfg.CONF(args=["--ofp-tcp-listen-port", str(_settings()["port"])], project="os_ken", version="lab")
    app_manager.AppManager.run_apps(["os_ken.controller.ofp_handler", __name__])


if __name__ == "__main__":
    # os-ken finds its applications by the name of their module.
    from mptcp_lab.sdn import controller

    controller.main()
