"""What the operator does after `setup`: commands, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Final

from mptcp_throttle.setup.host_facts import HostFacts
from mptcp_throttle.setup.server_drop_in import DropIn
from mptcp_throttle.systemd_unit import SERVICES

_SERVICES: Final = " ".join(SERVICES)


def next_steps(
    facts: HostFacts,
    plain_servers: Sequence[str],
    drop_in: DropIn | None,
    *,
    needs_parameters: bool,
    has_own_networks: bool,
) -> Iterator[str]:
    """The commands; `plain_servers` are the services that listen with plain TCP.

    `needs_parameters`: the kernel parameters of the package do not apply yet.
    """
    if needs_parameters:
        yield "sysctl --system"
    for unit in plain_servers:
        if drop_in is None or unit != drop_in.unit:
            yield f"mptcp-throttle setup --server-drop-in {quote(unit.removesuffix('.service'))}"
    if drop_in is not None:
        yield from drop_in.apply
    yield f"systemctl restart {_SERVICES}" if facts.services_run else f"systemctl enable --now {_SERVICES}"
    if not has_own_networks:
        yield "mptcp-throttle setup networks --write [--expensive ADDRESS]"
        yield "mptcp-throttle reload"
    yield "mptcp-throttle doctor"
