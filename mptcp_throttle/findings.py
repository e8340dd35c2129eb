"""Findings about the services and their host, what a check of `doctor` is given, and what the daemon's own status says
that needs attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.config.schema import Config
from mptcp_throttle.features import DOCUMENTS, FEATURE_TEXTS
from mptcp_throttle.rpc import Json

_NO_TABLE: Final = "`systemctl status mptcp-sniffer`"
_NOT_ENFORCED: Final = f"{DOCUMENTS}/howto/repair.md says what may be the cause, under `A rate is not enforced`"
_REFUSED: Final = "it is retried automatically; `journalctl -u mptcp-throttled` says since when"
_POLICY: Final = f"{DOCUMENTS}/howto/publish-policy.md says what refuses a policy; the one in use stays"
_INVALID: Final = "correct the files, then `mptcp-throttle reload`, or restart where a line says so"
_FLEET: Final = f"{DOCUMENTS}/explanation/fleet.md says what holds meanwhile, and what each problem means"
_WRITERS: Final = (
    "find out who else writes there: each proxy needs a user of its own (`ACL SETUSER`), and a name of its own"
)


class Finding(NamedTuple):
    """About one `subject`: the `problem` in one line, None if there is none, and what to do about it.

    `harm`: the problem prevents caps, or is a refused reload. `unchecked`: why this could not be checked. `remark`:
    what is good to know though it is no problem.
    """

    subject: str
    problem: str | None = None
    remedy: str | None = None
    harm: bool = True
    unchecked: str | None = None
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """What is examined: this host with its configuration, and what each service answers to `status`, or why it does
    not."""

    config_file: Path
    config: Config
    sniffer: Json | str
    daemon: Json | str


Check = Callable[[Host], Iterable[Finding]]
"""It changes nothing, takes no longer than seconds, and says what it could not check."""


def of_the_proxy(subject: str) -> Callable[[Check], Check]:
    """A check of the host on which connections end: with `sniffer.kernel_view: false` that is another one."""

    def limit(check: Check) -> Check:
        @wraps(check)
        def limited(host: Host) -> Iterable[Finding]:
            if host.config.sniffer.kernel_view:
                return check(host)
            return [Finding(subject, remark="connections end on another host: sniffer.kernel_view is false")]

        return limited

    return limit


def note(subject: str, *, is_well: bool, problem: str, remedy: str) -> Finding:
    """A problem that does not prevent caps, unless all `is_well`."""
    return Finding(subject) if is_well else Finding(subject, problem, remedy, harm=False)


def or_ok(subject: str, findings: Iterable[Finding]) -> list[Finding]:
    """The findings; if there are none, that the subject has no problem."""
    return list(findings) or [Finding(subject)]


def not_captured(status: Json) -> str | None:
    """Of the sniffer's answer to `status`: on which interfaces it does not capture, and why; None if on all."""
    missing = [name for name in status["interfaces"] if name not in status["captured"]]
    return f"none on {', '.join(missing)}: missing or down" if missing else None


def daemon_findings(status: Json) -> Iterator[Finding]:
    """In the daemon's answer to `status`: errors, rates that are not enforced, and features that are not in place."""
    answer, table = status["daemon"], status["sniffer"]
    lines = [] if table["connected"] else [(f"has no table of connections: {table['problem']}", _NO_TABLE)]
    lines += [(f"a rate is not enforced: {line}", _NOT_ENFORCED) for line in answer["not_enforced"]]
    lines += [(error, _REFUSED) for error in answer["errors"]]
    lines += [(f"reload refused: {problem}", _INVALID) for problem in answer["config"]["problems"]]
    problems = [Finding("mptcp-throttled", problem, remedy) for problem, remedy in lines]
    yield from problems
    if answer["pause"] is not None:
        yield Finding("mptcp-throttled", "is paused", "`mptcp-throttle resume`")
    elif not problems:
        yield Finding("mptcp-throttled")
    # Missing while an earlier version runs.
    yield from _fleet(answer.get("fleet"))
    leases = answer.get("leases")
    if leases is not None and leases["problem"] is not None:
        yield Finding("shared rates", f"cannot be leased: {leases['problem']}", _FLEET)
    yield from _policy(answer.get("policy"))
    for feature, texts in FEATURE_TEXTS.items():
        problem = answer["features"][feature]["problem"]
        switched_off = answer["features"][feature].get("switched_off")  # missing while an earlier version runs
        if switched_off is not None:
            yield Finding(feature, remark=f"switched off: {switched_off}")
        else:
            yield note(feature, is_well=problem is None, problem=f"{texts.drawback}: {problem}", remedy=texts.remedy)


def _policy(policy: Json) -> Iterator[Finding]:
    """In the part of the status about the policy of the fleet, if it is used: why it is no newer one."""
    if policy is None:
        return
    if policy["problem"] is not None:
        yield Finding("fleet policy", policy["problem"], _POLICY)
    else:
        away = f"no newer one would be adopted now: {policy['away']}"
        yield note("fleet policy", is_well=policy["away"] is None, problem=away, remedy=_FLEET)


def _fleet(fleet: Json) -> Iterator[Finding]:
    """What keeps this proxy from sharing totals, and values at the server that are not believed."""
    if fleet is None:
        return
    age = "never" if fleet["age"] is None else f"{fleet['age']:.0f} s ago"
    problem = f"{fleet['problem']}; totals were last shared {age}"
    yield note("fleet", is_well=fleet["problem"] is None, problem=problem, remedy=_FLEET)
    if fleet.get("list_problem") is not None:  # missing while an earlier version runs
        unknown = f"the list of proxies {fleet['list_problem']}: proxies that join are not seen, and states may be old"
        yield Finding("fleet", unknown, _FLEET, harm=False)
    if fleet["refused"]:
        refused = f"{fleet['refused']} values at its server were refused, such as: {fleet['refusal']}"
        yield Finding("fleet", refused, _WRITERS, harm=False)
