"""Our services beside a selftest: in each network namespace where it listens, from before it listens until it ends.

A selftest makes namespaces with names that only it knows, and begins to transfer a moment later. Our services take
seconds to start in a guest. So a script replaces `mptcp_connect`, the program with which all selftests listen. Before
it listens, it asks this module, and waits. Until then the selftest stands still, since its control group is frozen, and
so do its own time limits. The scripts of the selftests are as the kernel has them.

    selftests             our kernel program is attached to this control group, as to that of a proxy
      script              the selftest, frozen while our services start
      listeners           the programs that listen
"""

from __future__ import annotations

import os
import select
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.background import Background
from mptcp_lab.host import Host
from mptcp_lab.lab_errors import LabError
from mptcp_lab.namespaces import path
from mptcp_lab.process import run, wait_until
from mptcp_lab.services import Services
from mptcp_throttle.model import AccessNetwork, Per, RateKind
from mptcp_throttle.rpc import RpcError
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from mptcp_throttle.model import Network

_GROUP: Final = Path("/sys/fs/cgroup/selftests")
_POLL_SECONDS: Final = 0.2
_READY_SECONDS: Final = 15.0
_LISTEN: Final = "0A"  # TCP_LISTEN (include/net/tcp_states.h), as in /proc/net/tcp
_PROGRAM: Final = "mptcp_connect"
_LOOPBACK: Final = "lo"
_PORTS: Final = range(10_000, 21_000)
"""All ports that the scripts use."""

_LIMIT: Final = Rate(1_000_000_000)
"""More than an emulated processor carries: all subflows are in classes and have a pace, and none is slowed down."""

_INSTEAD: Final = """\
#!/bin/sh
# In the place of mptcp_connect: before it listens, it waits until our services run in its network namespace.
for word; do
    if [ "$word" = -l ]; then
        mkfifo "{directory}/$$"
        echo $$ >"{directory}/requests"
        read -r answer <"{directory}/$$"
        break
    fi
done
exec "{directory}/{program}" "$@"
"""


def networks(cap: Rate, *, uplinks: bool) -> tuple[AccessNetwork, ...]:
    """The subnets of the selftests: the first is the most preferred, and the others have the cap.

    With `uplinks` what clients send has the same rates.
    """
    limits = {RateKind.LIMIT: _LIMIT, **({RateKind.UPLINK_LIMIT: _LIMIT} if uplinks else {})}
    caps = {RateKind.CAP: cap, **({RateKind.UPLINK_CAP: cap} if uplinks else {})}
    return (
        AccessNetwork("first", _subnets(1), 1, limits, Per.CLIENT),
        AccessNetwork("others", _subnets(2, 3, 4), 2, limits | caps, Per.CLIENT),
    )


def _subnets(*numbers: int) -> tuple[Network, ...]:
    return tuple(
        ip_network(subnet) for number in numbers for subnet in (f"10.0.{number}.0/24", f"dead:beef:{number}::/64")
    )


class ControlGroups:
    """The control groups of a selftest; see above. At the end of the block all processes in them have ended."""

    def __init__(self) -> None:
        self.script = _GROUP / "script"
        self.listeners = _GROUP / "listeners"

    def __enter__(self) -> Self:
        for group in (self.script, self.listeners):
            group.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        for group in (self.script, self.listeners):
            (group / "cgroup.kill").write_text("1", encoding="ascii")
            wait_until(partial(_is_empty, group), f"rid of the processes in {group}")
            group.rmdir()
        _GROUP.rmdir()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside the block the script stands still."""
        freeze = self.script / "cgroup.freeze"
        freeze.write_text("1", encoding="ascii")
        try:
            yield
        finally:
            freeze.write_text("0", encoding="ascii")


def let_ask(program: Path, directory: Path) -> int:
    """Put a script in the place of the program, which asks before the program listens; where its requests arrive.

    That is a file that does not block, with a line of each process that asks, its id. It waits for a line in the file
    of `directory` with the id as name. The program itself is in `directory` from then on.
    """
    program.rename(directory / program.name)
    program.write_text(_INSTEAD.format(directory=directory, program=program.name), encoding="utf-8")
    program.chmod(0o755)
    os.mkfifo(directory / "requests")
    return os.open(directory / "requests", os.O_RDWR | os.O_NONBLOCK)


class Beside(Background):
    """As a context manager: inside the block, our services run wherever a selftest listens.

    `selftests` is the directory with the scripts; what stands there for mptcp_connect is ours from now on. `directory`
    is for configurations and logs.
    """

    def __init__(
        self,
        selftests: Path,
        directory: Path,
        groups: ControlGroups,
        access_networks: Sequence[AccessNetwork],
        settings: Mapping[str, object],
    ) -> None:
        super().__init__("beside")
        self._directory = directory
        self._groups = groups
        self._networks = access_networks
        self._settings = {"cgroup": str(_GROUP), **settings}
        self._running: dict[tuple[str, int], Services] = {}
        self._counted: dict[Services, Mapping[str, int]] = {}
        self._listening: dict[int, Services] = {}
        self._failure: LabError | None = None
        self._requests = let_ask(selftests / _PROGRAM, directory)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        for services in self._running.values():
            services.stop()
        os.close(self._requests)

    @property
    def counters(self) -> dict[str, int]:
        """The sums of what our programs had counted when listeners ended, such as `steering.as_backup`.

        `log.cap` and `log.limit`: how often the daemon has said that a subflow has one.
        """
        total: Counter[str] = Counter()
        for services, counters in self._counted.items():
            total.update(counters)
            total.update({f"log.{word}": services.log().count(f" INFO {word} ") for word in ("cap", "limit")})
        return dict(total)

    @property
    def started(self) -> int:
        """How often our services were started."""
        return len(self._counted)

    def check(self) -> None:
        """Raise LabError if our services did not run wherever the selftest has listened."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while not self._stop.is_set():
            readable, _, _ = select.select([self._requests, *self._listening], [], [], _POLL_SECONDS)
            for descriptor in readable:
                if descriptor == self._requests:
                    for line in os.read(self._requests, select.PIPE_BUF).split():
                        self._let_listen(int(line))
                else:
                    self._count(descriptor)

    def _let_listen(self, pid: int) -> None:
        """Answer the program that asks, once our services run in its namespace; returns once it listens."""
        (self._groups.listeners / "cgroup.procs").write_text(f"{pid}", encoding="ascii")
        with self._groups.frozen():
            try:
                self._listening[os.pidfd_open(pid)] = self._services_beside(pid)
            except LabError as error:
                self._failure = self._failure or error
            # Opened for reading, too: that does not wait for a reader, which may have been killed.
            answer = os.open(self._directory / f"{pid}", os.O_RDWR)
            with suppress(OSError, LabError):
                before = _listeners(pid)
                os.write(answer, b"go on\n")
                wait_until(lambda: _listeners(pid) > before, "listening")
            os.close(answer)

    def _services_beside(self, pid: int) -> Services:
        """Our services in the namespace of a process, started if need be; stops those of removed namespaces."""
        namespace = run(["ip", "netns", "identify", f"{pid}"]).stdout.strip()
        key = namespace, path(namespace).stat().st_ino
        for (name, number), services in [*self._running.items()]:
            file = path(name)
            # The scripts of Linux 6.12 end all programs in a namespace before they remove it.
            has_ended = services.exit_statuses != (None, None)
            if has_ended or not file.exists() or file.stat().st_ino != number:
                self._running.pop((name, number)).stop()
        if key not in self._running:
            host = Host(namespace, namespace, self._directory / f"{len(self._counted):03d}-{namespace}")
            services = Services(
                host,
                self._networks,
                interfaces=_interfaces(pid) or [_LOOPBACK],
                ports=(f"{_PORTS[0]}-{_PORTS[-1]}",),
                daemon=self._settings,
            )
            self._counted[services] = {}
            self._running[key] = services
            services.start_sniffer()
            services.start_daemon()
            services.wait_ready()
            _check_features(services)
            wait_until(services.captures, "capturing", _READY_SECONDS)
        return self._running[key]

    def _count(self, descriptor: int) -> None:
        """Keep what our programs have counted until now, since a listener has ended."""
        services = self._listening.pop(descriptor)
        os.close(descriptor)
        with self._groups.frozen(), suppress(RpcError):
            features = services.status()["daemon"]["features"]
            self._counted[services] = {
                f"{feature}.{name}": count
                for feature, state in features.items()
                for name, count in (state["counters"] or {}).items()
            }


def _is_empty(group: Path) -> bool:
    return "populated 0" in (group / "cgroup.events").read_text(encoding="ascii")


def _check_features(services: Services) -> None:
    """Raise LabError if one of our programs that change packets or sockets is not in place."""
    features = services.status()["daemon"]["features"]
    for name in ("pacing", "steering", "uplinks"):
        if (problem := features[name]["problem"]) is not None:
            raise LabError(f"mptcp-throttled: {name}: {problem}")


def _interfaces(pid: int) -> list[str]:
    """The interfaces in a process's network namespace that the selftest has made, such as `ns1eth1`."""
    lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return [name for name in (line.split(":")[0].strip() for line in lines) if name.startswith("ns")]


def _listeners(pid: int) -> int:
    """How many sockets listen at `_PORTS` in a process's network namespace. Raises OSError if the process has ended."""
    files = [Path(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6")]
    lines = [line.split() for file in files for line in file.read_text(encoding="ascii").splitlines()[1:]]
    return sum(state == _LISTEN and int(local.rsplit(":")[1], 16) in _PORTS for _, local, _, state, *_ in lines)
