"""Runs the switches of a network, one Open vSwitch in each of these hosts, and their controller."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab.lab_errors import LabError
from mptcp_lab.scenario.world import execute
from mptcp_lab.sdn import open_vswitch
from mptcp_lab.sdn.switch_plan import CONTROLLER, CONTROLLER_ADDRESS, fabric_of, port_number, switch_shapes
from mptcp_throttle.rpc import RpcClient, RpcError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.host import Host
    from mptcp_lab.process import Process
    from mptcp_lab.scenario.scenario_schema import ControllerSection, Scenario
    from mptcp_lab.scenario.world import World

_BRIDGE: Final = "bridge"
_OPENFLOW_PORT: Final = 6653
_START_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 30.0


class Switches:
    """The running switches, as their controller knows them.

    `setups` and `outage` raise LabError if it does not answer, or if a switch has refused a rule.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def connected(self) -> list[str]:
        """The switches that have their first rules; none while the controller does not answer."""
        try:
            return list(RpcClient(self._socket).call("state")["switches"])
        except RpcError:
            return []

    def setups(self) -> list[float]:
        """Seconds from each first packet of a flow that came to the controller until it went on."""
        state = self._call("state", seconds=0.0)
        if state["refusals"]:
            raise LabError(f"controller: {state['refusals'][0]}")
        return [float(seconds) for seconds in state["setups"]]

    def outage(self, link: str, seconds: float) -> tuple[float, float]:
        """Let a link drop everything; when that began and ended, by the monotonic clock. Returns when it is over."""
        answer = self._call("outage", link, seconds, seconds=seconds)
        return float(answer["began"]), float(answer["ended"])

    def _call(self, method: str, *parameters: object, seconds: float) -> Any:  # noqa: ANN401
        try:
            return RpcClient(self._socket, timeout=seconds + _GRACE_SECONDS).call(method, *parameters)
        except RpcError as error:
            raise LabError(f"controller: {error}") from error


@contextmanager
def running(scenario: Scenario, world: World) -> Iterator[Switches | None]:
    """The switches, and their controller, connected; None if the scenario has none. They end with their hosts.

    Raises LabError.
    """
    section = scenario.controller
    if section is None:
        yield None
        return
    controller, switches = _start_controller(scenario, section, world.hosts[CONTROLLER])
    for number, name in enumerate(scenario.switches, 1):
        _start(scenario, name, number, world.hosts[name])
    for name in scenario.hosts:
        if name not in scenario.switches:
            (port, _), *_ = scenario.ports(name)
            # The userspace datapath takes packets from a socket, without the checksum that is still to be computed.
            world.hosts[name].run("ethtool", "--offload", port.interface, "tx", "off")
    execute(world.hosts, switch_shapes(scenario))
    controller.wait_until(lambda: switches.connected() == sorted(scenario.switches), "connected", _START_SECONDS)
    yield switches


def _start_controller(scenario: Scenario, section: ControllerSection, host: Host) -> tuple[Process, Switches]:
    settings, socket = host.directory / "settings.json", host.directory / "controller.sock"
    settings.write_text(
        json.dumps(
            {
                "fabric": fabric_of(scenario).to_json(),
                "primary": section.primary,
                "recovery": section.recovery,
                "detection": section.detection,
                "port": _OPENFLOW_PORT,
            }
        ),
        encoding="utf-8",
    )
    process = host.start("controller", sys.executable, "-m", "mptcp_lab.sdn.controller", settings, socket)
    return process, Switches(socket)


def _start(scenario: Scenario, name: str, number: int, host: Host) -> None:
    """Start a switch; `number` is its datapath id."""
    open_vswitch.start(host, name).run(*_bridge(scenario, name, number))


def _bridge(scenario: Scenario, name: str, number: int) -> list[str]:
    """One transaction of ovs-vsctl(8): the bridge with its ports and its controller."""
    words = ["--", "add-br", _BRIDGE]
    # secure: without a controller it forwards nothing. A learning switch would let packets go round in a mesh.
    settings = [f"datapath_type={open_vswitch.datapath()}", "fail_mode=secure", "protocols=OpenFlow13"]
    settings += [f"other-config:datapath-id={number:016x}", "other-config:disable-in-band=true"]
    words += ["--", "set", "Bridge", _BRIDGE, *settings]
    # Open vSwitch removes the root qdisc of a port unless that is said not to be its own.
    words += ["--", "--id=@foreign", "create", "QoS", "type=linux-noop"]
    for port, _ in scenario.ports(name):
        words += ["--", "add-port", _BRIDGE, port.interface, "--", "set", "Port", port.interface, "qos=@foreign"]
        words += ["--", "set", "Interface", port.interface, f"ofport_request={port_number(scenario, port)}"]
    return [*words, "--", "set-controller", _BRIDGE, f"tcp:{CONTROLLER_ADDRESS}:{_OPENFLOW_PORT}"]
