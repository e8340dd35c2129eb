"""Golden stories: networks and tables of connections in, the exact kernel operations out, as commands.

Each file in `golden/` tells a story in steps, one per point in time (`at 5s`, what happens). The control loop plays it
against a kernel in memory. The lines of a step:

    connection NUMBER CLIENT:PORT [(backup)|(stalled)] ...   a connection of the sniffer's table, or its change
    ended NUMBER ...                                         connections that are not there any more
    network NAME SUBNET ... KEY=VALUE ...                    a network; before the first step, or changed in it;
                                                             until then wifi and ethernet are those of `examples.py`
    daemon KEY=VALUE ...                                     mark_mask, linger, other_traffic, classifier; likewise
    paused                                                   by the operator, for this step
    by hand COMMAND                                          what another program has done to the kernel before
    refused COMMAND                                          the kernel refuses the operation with this command
    > COMMAND                                                what we do
    > # REMARK                                               an error that we report

Every step begins with the kernel as the step before has left it. The mark filter's program is shown as `FILTER`:
`test_commands.py` has it. Commands that always come together are a line, see `ABBREVIATED`. The classifier is `nft`
where a story names no other. After a wanted change, `python tests/unit/test_golden.py` rewrites the lines with `>`:
read the difference before it is committed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Final

import pytest
from examples import connection, subflow
from loops import LoopOnModels
from model_kernel import ModelKernel, dangling
from worlds import ManualClock

from mptcp_throttle.model import AccessNetwork, Connection, Per, RateKind, Subflow, Token
from mptcp_throttle.ports import Ports
from mptcp_throttle.units import Rate, parse_duration
from mptcp_throttled.answers.plan_commands.commands import as_commands
from mptcp_throttled.control.source import TableUpdate
from mptcp_throttled.kernel.htb.htb import filter_bytecode
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.kernel_state import AssignmentState, HtbState, KernelState, PacingState, QdiscState
from mptcp_throttled.vocabulary.operations import Operation
from mptcp_throttled.vocabulary.operator import Pause

FILES: Final = sorted((Path(__file__).parent / "golden").glob("*.txt"))
SUBFLOW: Final = re.compile(r"\[?([0-9a-f.:]+?)\]?:(\d+)(?:\((backup|stalled)\))?")
CLASSIFIER: Final = "nft"
ABBREVIATED: Final = {
    r"(tc class add dev eth0 parent 4d50: classid (\S+) .*)\n"
    r"tc qdisc add dev eth0 parent \2 pfifo limit 1000$": r"\1; pfifo",
    r"nft delete table (ip6?) mptcp-throttle  # if it exists\n"
    r"nft add table \1 mptcp-throttle\n"
    r"nft add map \1 mptcp-throttle subflows "
    r"'\{ type (ipv[46]_addr) \. inet_service \. \2 \. inet_service : classid; \}'\n"
    r"nft add chain \1 mptcp-throttle postrouting '\{ type filter hook postrouting priority mangle; \}'\n"
    r"nft add rule \1 mptcp-throttle postrouting "
    r"meta priority set \1 daddr \. tcp dport \. \1 saddr \. tcp sport map @subflows$": r"nft new table \1 of \2",
    r"(ip6?tables)-legacy -t mangle -N MPTCP-THROTTLE  # or -F, if it exists\n"
    r"\1-legacy -t mangle -I POSTROUTING -p tcp -j MPTCP-THROTTLE  # unless it exists$": r"\1-legacy new chain",
}
"""What stands for the commands of an operation that each of these expressions matches."""
UNPACED: Final = KernelState(pacing=PacingState(None, "stories are about tc and assignments"))


class Story(LoopOnModels):
    """The control loop that plays a story, and everything around it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, kernel=ModelKernel(UNPACED), clock=ManualClock(0.0))
        self.networks = {known.name: known for known in self.configured}
        self.table: dict[Token, Connection] = {}
        self.kernel.pacing.state = FeatureState(UNPACED.pacing.problem)
        self.kernel.classifier = CLASSIFIER

    @property
    def marking(self) -> MarkedTraffic:
        return MarkedTraffic(self.running.config.daemon.mark_mask, Ports.of([8080]))

    def commands(self, operations: Sequence[Operation]) -> Iterator[str]:
        for operation in operations:
            for command in as_commands(operation, ("eth0",), self.marking, self.kernel.classifier):
                yield command.replace(filter_bytecode(self.marking), "FILTER")

    def abbreviated(self, operation: Operation) -> list[str]:
        text = "\n".join(self.commands([operation]))
        for pattern, short in ABBREVIATED.items():
            text = re.sub(pattern, short, text, flags=re.MULTILINE)
        return text.splitlines()


def told(text: str) -> str:
    """The story with the operations that our code answers with, in place of those it had."""
    with tempfile.TemporaryDirectory() as directory:
        story = Story(Path(directory))
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("> ")]
        steps = [number for number, line in enumerate(lines) if line.startswith("at ")]
        for line in lines[: steps[0]]:
            _configure(story, line)
        # The first step tells the loop that sockets cannot be paced.
        story.loop.step()
        out = lines[: steps[0]]
        for begin, end in zip(steps, [*steps[1:], len(lines)], strict=True):
            step = "\n".join(lines[begin:end]).rstrip().splitlines()
            answers = _play(story, step)
            out += ["", *step, *(f"    > {answer}" for answer in answers)]
    return "\n".join(_without_double_blanks(out)) + "\n"


def _without_double_blanks(lines: Sequence[str]) -> Iterator[str]:
    return (line for before, line in zip(["", *lines], lines, strict=False) if before or line)


def _play(story: Story, step: Sequence[str]) -> Iterator[str]:
    story.clock.now = parse_duration(step[0].split()[1]) + 1.0
    story.kernel.applied.clear()
    story.kernel.refuse = ()
    paused = False
    for line in step[1:]:
        keyword, *words = line.split()
        if keyword == "connection":
            changed = _connection(words)
            story.table[changed.token] = changed
        elif keyword == "ended":
            for number in words:
                del story.table[Token(int(number))]
        elif keyword == "paused":
            paused = True
        elif keyword == "by":
            story.kernel.state = _by_hand(" ".join(words[1:]), story.kernel.state)
            story.loop.note_kernel_change()
        elif keyword == "refused":
            story.kernel.refuse = (_Command(story, " ".join(words)),)
        else:
            _configure(story, line)
    story.operator.pause(Pause(None) if paused else None)
    story.source.update = TableUpdate("epoch", 1, dict(story.table), True, None)
    story.loop.step()
    for operation in story.kernel.applied:
        yield from story.abbreviated(operation)
    yield from (f"# {error}" for error in story.loop.snapshot.errors)
    assert not dangling(story.kernel.state)


class _Command:
    """Equals the operation that has this command."""

    def __init__(self, story: Story, command: str) -> None:
        self._story = story
        self._command = command

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and self._command in self._story.commands([other])

    __hash__ = None  # type: ignore[assignment]


def _configure(story: Story, line: str) -> None:
    keyword, *words = line.split() or ["#"]
    values = dict(word.split("=") for word in words if "=" in word)
    if keyword == "network":
        name, *subnets = (word for word in words if "=" not in word)
        story.networks[name] = AccessNetwork(
            name,
            tuple(ip_network(subnet) for subnet in subnets),
            int(values["preference"]),
            {kind: Rate.parse(values[kind]) for kind in RateKind if kind in values},
            Per(values.get("per", Per.CLIENT)),
        )
    elif keyword == "daemon":
        story.kernel.classifier = values.get("classifier", CLASSIFIER)
        changes = {
            "mark_mask": int(values.get("mark_mask", "0xffff0000"), 16),
            "linger": parse_duration(values.get("linger", "5s")),
            "other_traffic": Rate.parse(values["other_traffic"]) if "other_traffic" in values else None,
        }
        # Not validated: a story may have a mark mask of two bits.
        daemon = story.running.config.daemon.model_copy(update=changes)
        story.running.config = replace(story.running.config, daemon=daemon)
    else:
        assert keyword.startswith("#"), line
    story.running.config = replace(story.running.config, networks=tuple(story.networks.values()))


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


def _chain(change: Callable[[AssignmentState], AssignmentState]) -> Callable[..., KernelState]:
    def effect(kernel: KernelState, v6: str) -> KernelState:
        version = 6 if v6 else 4
        return replace(kernel, assignments={**kernel.assignments, version: change(kernel.assignments[version])})

    return effect


def _class(htb: HtbState, minor: str, rate: Rate | None) -> HtbState:
    return replace(htb, classes={**htb.classes, int(minor, 16): rate})


def _foreign(kernel: KernelState, kind: str) -> KernelState:
    obstacle = f"eth0: root qdisc {kind} 9: cannot be restored exactly"
    return replace(kernel, qdisc=replace(kernel.qdisc, htb=None, obstacle=obstacle))


def _renamed(kernel: KernelState, name: str) -> KernelState:
    return replace(kernel, qdisc=QdiscState(pending_elsewhere=(name,)))


BY_HAND: Final[dict[str, Callable[..., KernelState]]] = {
    r"tc qdisc del dev eth0 root": _htb(lambda _: None),
    r"tc filter del dev eth0 parent 4d50:": _htb(lambda htb: replace(htb, classifies=False)),
    r"tc qdisc del dev eth0 parent 4d50:(\w+)": _htb(lambda htb, minor: _class(htb, minor, None)),
    r"tc class change dev eth0 classid 4d50:(\w+) htb rate (\w+)": _htb(
        lambda htb, minor, rate: _class(htb, minor, Rate.parse(rate))
    ),
    r"tc class add dev eth0 parent 4d50: classid 4d50:(\w+) htb rate (\w+)": _htb(
        lambda htb, minor, _: _class(htb, minor, None)
    ),
    r"tc qdisc replace dev eth0 root handle 9: (\w+)": _foreign,
    r"ip link set eth0 name (\w+); ip link add eth0 type dummy": _renamed,
    r"ip(6?)tables-legacy -t mangle -F": _chain(lambda _: AssignmentState({}, altered=True)),
    r"ip(6?)tables-legacy -t mangle -F MPTCP-THROTTLE": _chain(lambda _: AssignmentState({})),
    r"ip(6?)tables-legacy -t mangle -D POSTROUTING -p tcp -j MPTCP-THROTTLE": _chain(
        lambda chain: replace(chain, altered=True)
    ),
    r"ip(6?)tables-legacy -t mangle -A MPTCP-THROTTLE -j RETURN": _chain(lambda chain: replace(chain, altered=True)),
}
"""What the kernel layer reads after a command by hand; tests/integration do the same to a real kernel."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_story_has_exactly_these_operations(file: Path) -> None:
    text = file.read_text(encoding="ascii")
    assert told(text) == text


def _main() -> None:
    for file in FILES:
        file.write_text(told(file.read_text(encoding="ascii")), encoding="ascii")


if __name__ == "__main__":
    _main()
