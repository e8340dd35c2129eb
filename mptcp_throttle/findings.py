"""What is found about the services and their host, and what the daemon's own status says that needs attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mptcp_throttle.rpc import Json


class Finding(NamedTuple):
    """About one `subject`: the `problem` in one line, None if there is none, and what to do about it.

    `harm`: the problem prevents caps. `unchecked`: why this could not be checked.
    """

    subject: str
    problem: str | None = None
    remedy: str | None = None
    harm: bool = True
    unchecked: str | None = None


def daemon_findings(status: Json) -> Iterator[Finding]:
    """In the daemon's answer to `status`: errors, rates that are not enforced, and who decides."""
    answer, table = status["daemon"], status["sniffer"]
    problems = [] if table["connected"] else [f"has no table of connections: {table['problem']}"]
    problems += [f"a rate is not enforced: {line}" for line in answer["not_enforced"]]
    problems += [*answer["errors"], *(f"reload refused: {problem}" for problem in answer["config"]["problems"])]
    yield from [Finding("mptcp-throttled", problem) for problem in problems]
    if answer["pause"] is not None:
        yield Finding("mptcp-throttled", "is paused", "`mptcp-throttle resume`")
    elif not problems:
        yield Finding("mptcp-throttled")
    unpaced = answer["unpaced"]
    cost = None if unpaced is None else f"none, so that a cap slows down the whole connection: {unpaced}"
    yield Finding("pacing", cost, harm=False)
    problem = answer["deciding_problem"]
    if unpaced is None:
        cost = None if problem is None else f"does not decide; caps begin milliseconds later: {problem}"
        yield Finding("kernel program", cost, harm=False)
