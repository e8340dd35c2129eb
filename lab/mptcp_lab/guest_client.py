"""A client with the MPTCP of a stock Debian kernel: its programs run in a guest that has the client's interfaces.

Each interface in the client's network namespace is bridged with a tap device, which is the guest's interface. The
addresses, routes, MPTCP endpoints and qdiscs are the guest's.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.process import run
from mptcp_lab.scenario import plan
from mptcp_lab.topology import Client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mptcp_lab.process import Process
    from mptcp_lab.scenario.plan import Command
    from mptcp_lab.topology import Lab

_GUEST: Final = Path(__file__).parents[1] / "guest" / "run"
_SET_UP_SECONDS: Final = 900.0
_BRIDGE: Final = "bridge-"
_TAP: Final = "tap-"

# The guest ends with the command: a connection that has not been closed by then would stay open at the proxy.
_RUN: Final = """\
status=0
"$@" || status=$?
for attempt in $(seq 50); do
    [ -n "$(ss -Htn state connected exclude time-wait)" ] || break
    sleep 0.1
done
exit $status
"""


class GuestClient(Client):
    """The first client of `lab`, on `kernel` (kernels.NAMES), with these kernel parameters by path below /proc/sys.

    Each program is started in a guest of its own, one at a time. `run` still runs commands in the namespace.
    Raises LabError.
    """

    def __init__(self, lab: Lab, kernel: str, parameters: Mapping[str, str]) -> None:
        own = lab.client
        super().__init__(own.spec, lab.description, own.name, own.namespace, own.directory / "guest")
        # Installs and downloads what is missing, which the namespace has no network for.
        run([_GUEST, "--kernel", kernel, "--timeout", f"{_SET_UP_SECONDS:g}", "--", "true"], timeout=_SET_UP_SECONDS)
        self._interfaces = [port.interface for port, _ in lab.description.ports(own.name)]
        self._take_over_interfaces()
        network = plan.make_plan(lab.description)
        commands = [command for command in network.commands if command.host == own.name]
        self._script = self.directory / "guest.sh"
        lines = _set_up(self._interfaces, network.parameters[own.name] | dict(parameters), commands)
        self._script.write_text("".join(f"{line}\n" for line in lines) + _RUN, encoding="utf-8")
        taps = [word for tap in self._taps() for word in ("--tap", tap)]
        self._guest: tuple[str | Path, ...] = (_GUEST, "--kernel", kernel, *taps, "--", "sh", self._script)

    def start(self, name: str, *argv: str | Path, output: Path | None = None, machine_files: bool = False) -> Process:
        """As `Host.start`, in a guest."""
        return super().start(name, *self._guest, *argv, output=output, machine_files=machine_files)

    def _taps(self) -> list[str]:
        return [_TAP + interface for interface in self._interfaces]

    def _take_over_interfaces(self) -> None:
        self.ip(["mptcp endpoint flush"])
        for interface, tap in zip(self._interfaces, self._taps(), strict=True):
            bridge = _BRIDGE + interface
            self.run("tc", "qdisc", "del", "dev", interface, "root", check=False)
            self.ip(
                [
                    f"address flush dev {interface}",
                    f"link add {bridge} type bridge stp_state 0 mcast_snooping 0",
                    f"tuntap add dev {tap} mode tap",
                    f"link set {tap} master {bridge} up",
                    f"link set {interface} master {bridge}",
                    f"link set {bridge} up",
                ]
            )


def _set_up(interfaces: Sequence[str], parameters: Mapping[str, str], commands: Sequence[Command]) -> Iterator[str]:
    """The shell commands that make the guest the client."""
    yield "set -e"
    yield "modprobe virtio_net"
    for number, interface in enumerate(interfaces):
        if interface != f"eth{number}":
            yield f"ip link set eth{number} name {interface}"
    yield from (f"echo {shlex.quote(value)} >/proc/sys/{path}" for path, value in parameters.items())
    for command in commands:
        yield f"{command.tool} {command.line}{' || :' if command.optional else ''}"
