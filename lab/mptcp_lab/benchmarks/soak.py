"""The long haul: clients come and go, services are reloaded, restarted and killed, and nothing may grow without end.

In each round clients use the proxy, a tenth of them in hostile ways, and something happens to the services. Then all
connections end, and memory, descriptors, threads, kernel objects, the log and files are sampled. At the end of the run
each of these has a slope, with a 95 % confidence interval. It is `within` its bound
if all of the interval is, and `BEYOND` it if nothing of it is. Memory and descriptors are compared within the life of a
process, without its first third. When the services have ended, the proxy must be as it was before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.adversary.attack import CLIENTS, Site, prepare
from mptcp_lab.adversary.escapes import raw_attack
from mptcp_lab.argument_types import checked
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.download import reset_subflows
from mptcp_lab.interrupts import Interrupted, raise_on_signals
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import endless, start_origin
from mptcp_lab.soak.bounds import CONNECTIONS_PER_SECOND, Judgement, Snapshot, judge_all
from mptcp_lab.soak.bpf_objects import ids_of
from mptcp_lab.soak.customers import VANISHED
from mptcp_lab.soak.leaks import LEAKS
from mptcp_lab.soak.proxy import Proxy
from mptcp_lab.soak.sampling import (
    LineCount,
    differences,
    file_values,
    kernel_values,
    machine_values,
    process_values,
)
from mptcp_lab.soak.schedule import events_of_round, parts
from mptcp_lab.soak.slopes import Verdict
from mptcp_lab.squid import PORT, start_squid
from mptcp_lab.topology import ETHERNET, Lab, build
from mptcp_throttle.errors import EX_FAILURE, EX_INTERRUPTED, UserError
from mptcp_throttle.linux.kernel_error import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mptcp_lab.origin import Origin
    from mptcp_lab.process import Process

EX_UNDECIDED: Final = 3
"""The exit status if nothing was found and an interval reaches over its bound."""

_CUSTOMERS: Final = ("victim", "reserve")
_ROUND_SECONDS: Final = 20.0
_SHORT_BYTES: Final = 100_000
_LAST_SECONDS: Final = 15.0
_SETTLING_SECONDS: Final = 3.0
_HEADING: Final = (
    f"{'':20} {'first':>10} {'last':>10} {'most':>10} {'per hour':>10} {'95 % interval':>23} {'of':>4} {'bound':>10}"
)
_STATUSES: Final = f"""\
exit status: 0: all quantities are within their bounds, and nothing is left behind.
1: one is beyond its bound, something is left behind, a service has ended by itself, or a round has failed.
{EX_UNDECIDED}: none of these, and the run is too short or the machine too busy to decide.

A run of some minutes shows that the benchmark works; memory needs two hours. A week, on a machine that does nothing
else, with a table whenever it is interrupted (kill -INT), and 60 MB of samples:

  nohup benchmarks/soak --hours 168 --samples week.jsonl --json week.json > week.txt 2>&1 &
"""


@dataclass
class Findings:
    """What a run has found. `problems` and `left_behind` are lines; `begun` counts connections by their use."""

    snapshots: list[Snapshot] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    begun: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)


class _Soak:
    """A run in a lab that stands, until `seconds` are over."""

    def __init__(self, lab: Lab, origin: Origin, options: argparse.Namespace, stack: ExitStack) -> None:
        self.findings = Findings()
        self._lab = lab
        self._options = options
        self._seconds = 3600 * options.hours
        self._origin = origin
        self._documents = f"{lab.origin_address(4)}/{origin.add(_SHORT_BYTES).name}/{endless(origin).name}"
        self._samples = None if options.samples is None else stack.enter_context(options.samples.open("w"))
        self._lines = LineCount()
        self._original = kernel_state(lab.proxy), self._settled_values()
        self._proxy = Proxy(lab, options.seed)

    def carry_out(self) -> None:
        """Carry out all rounds, and end the services."""
        self._proxy.start()
        self._proxy.services.check_kernel_program()
        began = time.monotonic()
        part = self._seconds / parts(self._seconds)
        number = 0
        try:
            while (elapsed := time.monotonic() - began) < self._seconds:
                self._round(number, elapsed % part / part)
                self._note(number, "sampling", partial(self._sample, began))
                number += 1
        except Interrupted:
            print("interrupted: what was sampled until now is judged", flush=True)
        finally:
            self._end()

    def _round(self, number: int, share: float) -> None:
        self._note(number, "clients", partial(self._serve, number, share))
        if self._options.leak is not None:
            LEAKS[self._options.leak](self._lab.proxy, number)
        self._note(number, "the end of the round", self._proxy.check_running)
        self._note(number, "the end of the round", self._proxy.become_quiet)

    def _serve(self, number: int, share: float) -> None:
        """Let clients come, and the events happen."""
        seconds, seed = self._options.round, self._options.seed
        site = Site(self._lab, self._origin, self._proxy.services)
        with ExitStack() as stack:
            stack.callback(self._end_connections)
            customers = list(self._start_customers(number, seconds))
            for customer in customers:
                stack.callback(customer.stop)
            stack.enter_context(stack.enter_context(raw_attack("unfinished", [ETHERNET])(site))())
            began = time.monotonic()
            for planned in events_of_round(seed, number, share):
                time.sleep(max(0.0, began + planned.at * seconds - time.monotonic()))
                self._note(number, planned.event, partial(self._proxy.happen, planned.event))
                self.findings.events[planned.event] += 1
            for customer in customers:
                if customer.wait(seconds + _LAST_SECONDS) != 0:
                    raise LabError(f"customers: {customer.log_text().splitlines()[-1]}")
                self.findings.begun.update(json.loads(customer.log_text().splitlines()[-1]))

    def _note(self, number: int, what: str, act: Callable[[], None]) -> None:
        """Do it; what goes wrong is a problem, and the run goes on."""
        try:
            act()
        except (UserError, KernelError, OSError) as error:
            self.findings.problems.append(f"round {number}, {what}: {error}")
            print(self.findings.problems[-1], flush=True)
            with suppress(UserError):
                self._proxy.start()

    def _start_customers(self, number: int, seconds: float) -> Iterator[Process]:
        rate = CONNECTIONS_PER_SECOND / len(_CUSTOMERS)
        for place, name in enumerate(_CUSTOMERS):
            client = self._lab.clients[name]
            addresses = [str(self._lab.proxy_address(family)) for family in client.spec.families]
            seed = 1000 * self._options.seed + len(_CUSTOMERS) * number + place
            arguments = (PORT, rate, seconds, seed, self._documents, *addresses)
            yield client.start("customers", sys.executable, "-m", "mptcp_lab.soak.customers", *map(str, arguments))

    def _end_connections(self) -> None:
        for name in _CUSTOMERS:
            reset_subflows(self._lab.clients[name], PORT)

    def _kernel_values(self, *services: Process) -> dict[str, float]:
        # With the objects of this process, such as those of a `leak`.
        return kernel_values(self._lab.proxy, ids_of([os.getpid(), *(service.pid for service in services)]))

    def _settled_values(self) -> dict[str, float]:
        """The kernel values of a new network, once the routes that it has for some seconds are gone."""
        values, before = self._kernel_values(), None
        while values != before:
            time.sleep(_SETTLING_SECONDS)
            before, values = values, self._kernel_values()
        return values

    def _sample(self, began: float) -> None:
        services, running = self._proxy.services, self._proxy.running
        values = {**self._kernel_values(*running), **machine_values(), **self._lines.count(running)}
        values |= file_values(services.directory / "state", services.directory / "run")
        for name, process in zip(self._proxy.lives, running, strict=True):
            values |= process_values(name, process.pid)
        snapshot = Snapshot((time.monotonic() - began) / 3600, values, dict(self._proxy.lives))
        self.findings.snapshots.append(snapshot)
        if self._samples is not None:
            self._samples.write(json.dumps(asdict(snapshot)) + "\n")
            self._samples.flush()

    def _end(self) -> None:
        """End the services; then all must be as before."""
        self._proxy.end_connections()
        self._proxy.services.stop()
        state, values = self._original
        self.findings.left_behind += differences(values, self._kernel_values())
        now = kernel_state(self._lab.proxy)
        self.findings.left_behind += [
            f"{what}: {now[what]!r} was {text!r}" for what, text in state.items() if now[what] != text
        ]
        self.findings.left_behind += self._proxy.services.records
        if any("Traceback" in process.log_text() for process in self._proxy.running):
            self.findings.problems.append("a traceback in a log")


def measure(options: argparse.Namespace) -> Findings:
    """Carry out a run."""
    with ExitStack() as stack:
        lab = stack.enter_context(build(CLIENTS))
        prepare(lab)
        start_squid(lab.proxy)
        for name in _CUSTOMERS:
            for tool in ("iptables-legacy", "ip6tables-legacy"):
                lab.clients[name].run(tool, "-A", "OUTPUT", "-m", "mark", "--mark", str(VANISHED), "-j", "DROP")
        soak = _Soak(lab, start_origin(lab.origin), options, stack)
        soak.carry_out()
        return soak.findings


def row(judged: Judgement) -> str:
    """A line of the table."""
    slope = judged.slope
    values = f"{judged.name:20} {judged.first:10.0f} {judged.last:10.0f} {judged.most:10.0f}"
    if slope is None:
        return f"{values} {'-':>10} {'-':>23} {0:4d} {judged.bound:10.0f}  {judged.verdict}"
    interval = f"{slope.low:.1f} to {slope.high:.1f}"
    return f"{values} {slope.per_hour:10.1f} {interval:>23} {slope.samples:4d} {judged.bound:10.0f}  {judged.verdict}"


def main() -> int:
    """Print a row for each quantity."""
    parser = command_line("soak", __doc__)
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _STATUSES
    positive = checked(float, "a number above 0", lambda value: value > 0)
    parser.add_argument("--hours", type=positive, default=2.0, metavar="N", help="default: %(default)g")
    parser.add_argument(
        "--round", type=positive, default=_ROUND_SECONDS, help="seconds of a round; default: %(default)g"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what happens; default: %(default)s")
    parser.add_argument(
        "--samples", type=Path, metavar="FILE", help="write each sample to FILE at once, a line of JSON"
    )
    parser.add_argument(
        "--leak",
        choices=list(LEAKS),
        help="let the benchmark itself leave such an object behind in each round, which it must then report",
    )
    options = parser.parse_args()
    raise_on_signals()
    try:
        findings = measure(options)
    except Interrupted:  # before or after the rounds
        return EX_INTERRUPTED
    judged = judge_all(findings.snapshots) if findings.snapshots else []
    print(_HEADING)
    print(*map(row, judged), sep="\n")
    print("connections: " + ", ".join(f"{number} {use}" for use, number in sorted(findings.begun.items())))
    print("events: " + ", ".join(f"{number} {event}" for event, number in sorted(findings.events.items())))
    print(
        *(f"problem: {line}" for line in findings.problems),
        *(f"left behind: {line}" for line in findings.left_behind),
        sep="\n",
    )
    verdicts = Counter(each.verdict for each in judged)
    print(f"{len(findings.snapshots)} rounds: {', '.join(f'{verdicts[each]} {each}' for each in Verdict)}")
    write_json(
        options.json,
        {
            "rounds": len(findings.snapshots),
            "begun": findings.begun,
            "events": findings.events,
            "quantities": [asdict(each) for each in judged],
            "problems": findings.problems,
            "left_behind": findings.left_behind,
        },
    )
    if not judged or verdicts[Verdict.BEYOND] or findings.problems or findings.left_behind:
        return EX_FAILURE
    return EX_UNDECIDED if verdicts[Verdict.UNDECIDED] else os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
