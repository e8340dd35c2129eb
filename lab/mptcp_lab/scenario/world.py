"""A network of hosts and links, in network namespaces of this machine."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from mptcp_lab import namespaces
from mptcp_lab.host import Host
from mptcp_lab.interrupts import postponed
from mptcp_lab.process import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from mptcp_lab.scenario.plan import Command, Plan


@dataclass(frozen=True, slots=True)
class World:
    """What was built. `directory` holds everything its programs write; it is removed with the world."""

    directory: Path
    hosts: dict[str, Host]


def execute(hosts: Mapping[str, Host], commands: Iterable[Command]) -> None:
    """Run commands in their order, in as few processes as possible. Raises LabError at the first failure."""
    for (host, tool, optional), lines in groupby(commands, key=lambda c: (c.host, c.tool, c.optional)):
        batch = "".join(f"{_resolved(hosts, command.line)}\n" for command in lines)
        force = ["-force"] if optional else []
        argv = [*tool.split(), *force, "-netns", hosts[host].namespace, "-batch", "-"]
        run(argv, stdin=batch, check=not optional)


def _resolved(hosts: Mapping[str, Host], line: str) -> str:
    return " ".join(hosts[word[1:]].namespace if word.startswith("@") else word for word in line.split())


@contextmanager
def build(plan: Plan, make_host: Callable[[str, str, Path], Host] = Host) -> Iterator[World]:
    """Build the hosts; at the end of the block, end what runs in them and remove them, whatever happened.

    `make_host` makes a host of its name, namespace and directory. Raises LabError if this machine cannot have them.
    """
    with namespaces.owned() as prefix:
        directory = namespaces.make_directory(prefix)
        world = World(directory, {})
        try:
            for name in plan.hosts:
                run(["ip", "netns", "add", prefix + name])
                world.hosts[name] = make_host(name, prefix + name, directory / name)
            for name, parameters in plan.parameters.items():
                world.hosts[name].sysctl(parameters)
            execute(world.hosts, plan.commands)
            if plan.in_order:
                for number, host in enumerate(world.hosts.values()):
                    _receive_in_order(host, number % min(os.cpu_count() or 1, 32))
            yield world
        finally:
            with postponed():
                for host in reversed(world.hosts.values()):
                    host.stop()


def _receive_in_order(host: Host, processor: int) -> None:
    """Let one processor receive all packets of a host (receive packet steering).

    A wire keeps the order of packets. A veth does not: each packet waits for the processor that sent it. If the sender
    moves to another processor, later packets overtake earlier ones, which TCP takes for loss. So it is where a qdisc
    begins to hold packets back, and sends them from its timer.
    """
    mask = f"{1 << processor:x}"
    host.run("sh", "-c", f"for queue in /sys/class/net/*/queues/rx-0/rps_cpus; do echo {mask} > $queue; done")
