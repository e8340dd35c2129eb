"""Golden: networks and tables of connections in, the exact kernel operations out, as commands.

Each file in `golden/` tells a story in steps, one to a time (`at 5s`, what happens). The lines below a time:

    connection NUMBER CLIENT:PORT [(backup)|(stalled)] ...   all such lines are the sniffer's table
    network NAME SUBNET ... KEY=VALUE ...                    a network; before the first step, or changed in it
    daemon KEY=VALUE ...                                     mark_mask, linger, other_traffic; likewise
    paused                                                   the operator has said so, for this step
    by hand COMMAND                                          what somebody else has done to the kernel before
    > COMMAND                                                what we do
    > # REMARK                                               what we cannot do

Every step begins with the kernel as the step before has left it. The mark filter's program is shown as `FILTER`:
`test_commands.py` has it. After a wanted change, `python tests/unit/test_golden.py` writes the lines with `>` anew:
read the difference before it is committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Final

import model_kernel
import pytest
from tables import connection, subflow

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import AccessNetwork, Connection, Per, Subflow
from mptcp_throttle.units import Rate, parse_duration
from mptcp_throttled.desired.kernel_plan import PlanSettings
from mptcp_throttled.desired.planner import Planner
from mptcp_throttled.kernel.htb import Marking, filter_bytecode, max_minor
from mptcp_throttled.policy.decision_table import DecisionTable
from mptcp_throttled.reconcile.commands import as_commands
from mptcp_throttled.reconcile.kernel_state import ChainState, HtbState, KernelState, QdiscState, QuickCheck
from mptcp_throttled.reconcile.operations import ClassOperation, Operation
from mptcp_throttled.reconcile.reconciler import Reconciler

FILES: Final = sorted((Path(__file__).parent / "golden").glob("*.txt"))
SUBFLOW: Final = re.compile(r"\[?([0-9a-f.:]+?)\]?:(\d+)(?:\((backup|stalled)\))?")


@dataclass
class Story:
    """All that a step hands on to the next."""

    networks: dict[str, AccessNetwork] = field(default_factory=dict)
    mark_mask: int = 0xFFFF0000
    linger: float = 5.0
    other_traffic: Rate | None = None
    decisions: DecisionTable = field(default_factory=DecisionTable)
    planner: Planner = field(default_factory=Planner)
    kernel: KernelState = field(default_factory=KernelState)

    @property
    def marking(self) -> Marking:
        return Marking(self.mark_mask, (8080,))


@dataclass
class RecordingKernel:
    """A kernel in memory that keeps what it is told to do."""

    state: KernelState
    applied: list[Operation] = field(default_factory=list)

    def read(self) -> KernelState:
        return replace(self.state, chains=dict(sorted(self.state.chains.items())))

    def quick_check(self) -> QuickCheck:
        raise AssertionError("told to converge")

    def apply(self, operation: Operation) -> None:
        self.state = model_kernel.apply(self.state, operation)
        self.applied.append(operation)

    def change_classes(self, operations: Sequence[ClassOperation]) -> list[KernelError | None]:
        for operation in operations:
            self.apply(operation)
        return [None] * len(operations)

    def fail_open(self) -> None:
        raise AssertionError("a kernel that can always be read")


def told(text: str) -> str:
    """The story with the operations that our code answers with, in place of those it had."""
    story, lines = Story(), [line for line in text.splitlines() if not line.lstrip().startswith("> ")]
    steps = [number for number, line in enumerate(lines) if line.startswith("at ")]
    for line in lines[: steps[0]]:
        _configure(story, line)
    out = lines[: steps[0]]
    for begin, end in zip(steps, [*steps[1:], len(lines)], strict=True):
        step = "\n".join(lines[begin:end]).rstrip().splitlines()
        answers = _play(story, step)
        out += ["", *step, *(f"    > {answer}" for answer in answers)]
    return "\n".join(_without_double_blanks(out)) + "\n"


def _without_double_blanks(lines: Sequence[str]) -> Iterator[str]:
    return (line for before, line in zip(["", *lines], lines, strict=False) if before or line)


def _play(story: Story, step: Sequence[str]) -> Iterator[str]:
    now = parse_duration(step[0].split()[1])
    table, paused = [], False
    for line in step[1:]:
        keyword, *words = line.split()
        if keyword == "connection":
            table.append(_connection(words))
        elif keyword == "paused":
            paused = True
        elif keyword == "by":
            story.kernel = _by_hand(" ".join(words[1:]), story.kernel)
        else:
            _configure(story, line)
    former = story.decisions.reconfigure(tuple(story.networks.values()), paused=paused)
    former = {**story.decisions.replace({c.token: c for c in table}), **former}
    rules = PlanSettings(max_minor(story.mark_mask), story.linger, story.other_traffic)
    story.planner.update(former, story.decisions.decisions, now, rules)
    plan = story.planner.plan
    kernel = RecordingKernel(story.kernel)
    outcome = Reconciler(kernel).converge(plan)
    for operation in kernel.applied:
        for command in as_commands(operation, "eth0", story.marking, "rules"):
            yield command.replace(filter_bytecode(story.marking), "FILTER")
    for share in story.planner.without_class:
        yield f"# no class is left for the {share.rule} of {share.who}"
    if plan.htb and outcome.obstacle is not None:
        yield f"# {outcome.obstacle}"
    assert outcome.errors == ()
    assert not model_kernel.dangling(kernel.state)
    story.kernel = kernel.state


def _configure(story: Story, line: str) -> None:
    keyword, *words = line.split() or ["#"]
    values = dict(word.split("=") for word in words if "=" in word)
    if keyword == "network":
        name, *subnets = (word for word in words if "=" not in word)
        story.networks[name] = AccessNetwork(
            name,
            tuple(ip_network(subnet) for subnet in subnets),
            int(values["preference"]),
            Rate.parse(values["cap"]) if "cap" in values else None,
            Rate.parse(values["limit"]) if "limit" in values else None,
            Per(values.get("per", Per.CLIENT)),
        )
    elif keyword == "daemon":
        story.mark_mask = int(values.get("mark_mask", "0xffff0000"), 16)
        story.linger = parse_duration(values.get("linger", "5s"))
        story.other_traffic = Rate.parse(values["other_traffic"]) if "other_traffic" in values else None
    else:
        assert keyword.startswith("#"), line


def _connection(words: Sequence[str]) -> Connection:
    number, *subflows = words
    return connection(int(number), *(_subflow(word) for word in subflows))


def _subflow(word: str) -> Subflow:
    match = SUBFLOW.fullmatch(word)
    assert match is not None, word
    client, port, state = match.groups()
    return replace(subflow(client, int(port), backup=state == "backup"), stalled=state == "stalled")


def _by_hand(command: str, kernel: KernelState) -> KernelState:
    for pattern, effect in BY_HAND.items():
        if match := re.fullmatch(pattern, command):
            return effect(kernel, *match.groups())
    raise AssertionError(f"by hand {command}: not in BY_HAND")


def _htb(change: Callable[..., HtbState | None]) -> Callable[..., KernelState]:
    return lambda kernel, *words: replace(
        kernel, qdisc=replace(kernel.qdisc, htb=change(kernel.qdisc.htb, *words), obstacle=None)
    )


def _chain(change: Callable[[ChainState], ChainState]) -> Callable[..., KernelState]:
    def effect(kernel: KernelState, v6: str) -> KernelState:
        version = 6 if v6 else 4
        return replace(kernel, chains={**kernel.chains, version: change(kernel.chains[version])})

    return effect


def _class(htb: HtbState, minor: str, rate: Rate | None) -> HtbState:
    return replace(htb, classes={**htb.classes, int(minor, 16): rate})


def _foreign(kernel: KernelState, kind: str) -> KernelState:
    obstacle = f"eth0: root qdisc {kind} 9: cannot be put back as it is"
    return replace(kernel, qdisc=replace(kernel.qdisc, htb=None, obstacle=obstacle))


def _renamed(kernel: KernelState, name: str) -> KernelState:
    return replace(kernel, qdisc=QdiscState(pending_elsewhere=(name,)))


BY_HAND: Final[dict[str, Callable[..., KernelState]]] = {
    r"tc qdisc del dev eth0 root": _htb(lambda _: None),
    r"tc filter del dev eth0 parent 4d50:": _htb(lambda htb: replace(htb, filtered=False)),
    r"tc qdisc del dev eth0 parent 4d50:(\w+)": _htb(lambda htb, minor: _class(htb, minor, None)),
    r"tc class change dev eth0 classid 4d50:(\w+) htb rate (\w+)": _htb(
        lambda htb, minor, rate: _class(htb, minor, Rate.parse(rate))
    ),
    r"tc class add dev eth0 parent 4d50: classid 4d50:(\w+) htb rate (\w+)": _htb(
        lambda htb, minor, _: _class(htb, minor, None)
    ),
    r"tc qdisc replace dev eth0 root handle 9: (\w+)": _foreign,
    r"ip link set eth0 name (\w+); ip link add eth0 type dummy": _renamed,
    r"ip(6?)tables-legacy -t mangle -F": _chain(lambda _: ChainState({}, altered=True)),
    r"ip(6?)tables-legacy -t mangle -F MPTCP-THROTTLE": _chain(lambda _: ChainState({})),
    r"ip(6?)tables-legacy -t mangle -D POSTROUTING -p tcp -j MPTCP-THROTTLE": _chain(
        lambda chain: replace(chain, altered=True)
    ),
    r"ip(6?)tables-legacy -t mangle -A MPTCP-THROTTLE -j RETURN": _chain(lambda chain: replace(chain, altered=True)),
}
"""What the kernel layer reads after a command of somebody else; tests/integration do the same to a real kernel."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_operations_are_those_of_the_story(file: Path) -> None:
    text = file.read_text(encoding="ascii")
    assert told(text) == text


def _main() -> None:
    for file in FILES:
        file.write_text(told(file.read_text(encoding="ascii")), encoding="ascii")


if __name__ == "__main__":
    _main()
