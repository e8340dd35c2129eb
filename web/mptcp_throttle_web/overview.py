"""What the page shows first: is all well, and what each network has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mptcp_throttle.findings import Finding, daemon_findings
from mptcp_throttle.rpc import Json
from mptcp_throttle_web.questions import Ask

_DECISIONS: Final = 30
_CLOCK: Final = "`timedatectl status` shows the clock; `journalctl -u mptcp-throttled` what could not be read"
# A remedy has commands, and titles of documents, in backticks.
_COMMAND: Final = re.compile(r"`((?:mptcp-throttle|systemctl|journalctl|timedatectl|sysctl|apt|modprobe)(?: [^`]*)?)`")


def overview(ask: Ask, clock: Callable[[], float]) -> dict[str, Json]:
    """What the daemon has. `clock` gives seconds since the epoch. Raises RpcError, KeyError and TypeError."""
    status = ask("status")
    clients = ask("clients", 0)
    on_networks = {each["name"]: each["clients"] for each in clients["on_networks"]}
    networks = [{**each, "client_count": on_networks.get(each["name"], 0)} for each in status["networks"]]
    findings = [finding for finding in _findings(status) if finding.problem is not None]
    observed_at = status["daemon"]["observed_at"]
    return {
        "daemon": status["daemon"],
        "sniffer": status["sniffer"],
        "networks": networks,
        "clients": clients["total"],
        "rates_age": None if observed_at is None else max(clock() - observed_at, 0.0),
        "verdict": verdict(status, findings),
        "attention": [{**finding._asdict(), "commands": commands(finding.remedy)} for finding in findings],
        "decisions": ask("decisions", _DECISIONS)["decisions"],
    }


def _findings(status: Json) -> Iterator[Finding]:
    """What needs attention: what `doctor` finds in the daemon's status, and why periods of budgets do not begin."""
    yield from daemon_findings(status)
    if (problem := status["daemon"]["budget_problem"]) is not None:
        yield Finding("budgets", problem, _CLOCK, harm=False)


def verdict(status: Json, findings: Sequence[Finding]) -> Json:
    """In a word whether all is well: `away` (the sniffer), `problem`, `paused`, `note` or `ok`; and why."""
    problems = sum(finding.harm for finding in findings)
    sick = [network["name"] for network in status["networks"] if network["sick"]]
    is_paused = status["daemon"]["pause"] is not None
    # A pause is a finding, too.
    level = "problem" if problems > is_paused else "paused" if is_paused else "note" if findings or sick else "ok"
    return {
        "level": level if status["sniffer"]["connected"] else "away",
        "problems": problems,
        "notes": len(findings) - problems,
        "not_enforced": len(status["daemon"]["not_enforced"]),
        "sick": sick,
    }


def commands(remedy: str | None) -> list[str]:
    """The commands in a remedy, to copy."""
    return _COMMAND.findall(remedy or "")
