"""A scenario's hosts and links, in network namespaces of this machine."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from mptcp_lab import namespaces
from mptcp_lab.host import Host
from mptcp_lab.interrupts import postponed
from mptcp_lab.process import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mptcp_lab.scenario.plan import Command, Plan


@dataclass(frozen=True, slots=True)
class World:
    """What was built. `directory` holds everything its programs write; it goes when the world goes."""

    directory: Path
    hosts: dict[str, Host]

    def execute(self, commands: Iterable[Command]) -> None:
        """Run commands in their order, as few processes as possible. Raises LabError at the first failure."""
        for (host, tool, optional), lines in groupby(commands, key=lambda c: (c.host, c.tool, c.optional)):
            batch = "".join(f"{self._named(command.line)}\n" for command in lines)
            force = ["-force"] if optional else []
            argv = [*tool.split(), *force, "-netns", self.hosts[host].namespace, "-batch", "-"]
            run(argv, stdin=batch, check=not optional)

    def _named(self, line: str) -> str:
        return " ".join(self.hosts[word[1:]].namespace if word.startswith("@") else word for word in line.split())


@contextmanager
def build(plan: Plan) -> Iterator[World]:
    """Build the hosts; at the end of the block, end what runs in them and remove them, whatever happened.

    Raises LabError if this machine cannot have them.
    """
    with namespaces.owned() as prefix:
        directory = namespaces.make_directory(prefix)
        world = World(directory, {})
        try:
            for name in plan.hosts:
                run(["ip", "netns", "add", prefix + name])
                world.hosts[name] = Host(name, prefix + name, directory / name)
            for name, parameters in plan.parameters.items():
                world.hosts[name].sysctl(parameters)
            world.execute(plan.commands)
            yield world
        finally:
            with postponed():
                for host in reversed(world.hosts.values()):
                    host.stop()
