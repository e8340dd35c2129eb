"""Checks of both services: what they answer."""

from __future__ import annotations

from collections.abc import Iterator

from mptcp_throttle.cli.doctor.finding import Finding, Host


def sniffer(host: Host) -> Iterator[Finding]:
    """What the sniffer says of its capture and of the kernel list."""
    status = host.sniffer
    if isinstance(status, str):
        yield Finding("mptcp-sniffer", status)
        return
    yield Finding("mptcp-sniffer")
    if not status["capturing"]:
        yield Finding("capture", "none: the interface is missing or down", "set the interface up, or proxy.interface")
    dropped, view = status["dropped"], status["kernel_view"]
    if dropped:
        problem = f"{dropped} frames dropped since its start: it cannot keep up"
        yield Finding("capture", problem, "a larger sniffer.capture_buffer", harm=False)
    if view["enabled"] and view["problem"]:
        yield Finding("kernel's list", view["problem"], harm=False)


def daemon(host: Host) -> Iterator[Finding]:
    """What the daemon says: errors, rates that are not enforced, and who decides."""
    status = host.daemon
    if isinstance(status, str):
        yield Finding("mptcp-throttled", status)
        return
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
