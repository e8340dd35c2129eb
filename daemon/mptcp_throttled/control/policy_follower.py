"""Adopts the policies of the fleet: the newest that is signed and valid here is written, and then reloaded.

What cannot be adopted changes nothing: the policy in use stays, and so it does while the server is away, or empty.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Final

from mptcp_throttle.config.fleet_section import FleetPolicySection, FleetSection
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError, UserError, first_of
from mptcp_throttle.logs import with_fields
from mptcp_throttle.policy_bundle.bundle import CLIENTS, NETWORKS, Bundle, file_name_problem
from mptcp_throttle.policy_bundle.kept_policy import KeptPolicy, PolicyDirectory, number_of, read_kept
from mptcp_throttle.policy_bundle.published import Announcement, PublishedPolicies
from mptcp_throttle.rpc import Json
from mptcp_throttle.valkey.connect import connect
from mptcp_throttle.valkey.connection import ValkeyError
from mptcp_throttled.control.running_config import judge
from mptcp_throttled.reporting.instruments import count_errors
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.events import EventKind

_log = logging.getLogger("mptcp-throttled")

LOOK_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 20.0
"""A policy of 8 MiB, the most, arrives in that time at 4 Mb/s."""
ANNOUNCE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 60.0
"""Until a policy that was refused for another reason than its content is tried again."""

_REFUSED: Final = with_fields(EventKind.REFUSED.fields)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a policy was refused, and until when. `is_signed`: it is one of the fleet, and no older one may stand in.

    `beside` is the configuration with which its content was judged; with the same one it is not judged again.
    """

    problem: str
    is_signed: bool
    until: float = math.inf
    beside: Config | None = None


class PolicyAdoption:
    """Decides and adopts; `section` says which fleet, `running` is the present configuration, `load` has a policy's.

    `reload` makes the loop use what is on the disk, as it does for changed files.
    """

    def __init__(
        self,
        section: FleetPolicySection,
        directory: PolicyDirectory,
        running: Callable[[], Config],
        load: Callable[[KeptPolicy], Config],
        reload: Callable[[], Json],
        clock: Clock,
    ) -> None:
        self._fleet = str(section.fleet)
        self._keys = section.keys
        self._directory = directory
        self._running = running
        self._load = load
        self._reload = reload
        self._clock = clock
        self._refusals: dict[int, _Refusal] = {}
        self._quiet_until = -math.inf
        self.problem: str | None = None
        self.away: str | None = None

    def note_away(self, problem: str) -> None:
        """The server does not answer, or not what it should: the policy in use stays."""
        if self.away != problem:
            _log.warning("no policies of the fleet: %s", problem)
        self.away = problem

    def step(self, published: PublishedPolicies) -> None:
        """Read one policy at most, the newest that is not refused already, and adopt it if that is possible.

        Raises ValkeyError.
        """
        numbers = published.numbers()
        self.away = None
        written, in_use = self._written(), self._in_use()
        newer = [number for number in numbers if number > in_use and number >= written]
        # What is written is not in use if a reload was refused. A damaged one waits for the server or for the operator.
        is_unused = written > in_use and written not in newer and self._running().policy_problem is None
        waiting = [*newer, written] if is_unused else newer
        self._refusals = {number: self._refusals[number] for number in waiting if number in self._refusals}
        for number in waiting:
            before = self._refusals.get(number)
            if before is None or self._is_due(before):
                refusal = self._try(None if number not in newer or self._is_intact(number) else published, number)
                if refusal is not None:
                    self._note_refusal(number, refusal, before)
                break
            if before.is_signed:
                break
        self.problem = self._why_not(numbers, waiting)

    def _is_due(self, refusal: _Refusal) -> bool:
        """Whether to try again: what a policy lacks may be on this host after a reload."""
        if refusal.beside is not None:
            return refusal.beside is not self._running()
        return refusal.until <= self._clock.monotonic()

    def _note_refusal(self, number: int, refusal: _Refusal, before: _Refusal | None) -> None:
        now = self._clock.monotonic()
        self._refusals[number] = replace(refusal, until=now + RETRY_SECONDS)
        if before is not None and before.problem == refusal.problem:
            return
        count_errors("policy")
        # Whoever can write to the server can put any number of unsigned ones there.
        if refusal.is_signed or now >= self._quiet_until:
            _log.error("policy refused: %s", refusal.problem, extra=_REFUSED)
            self._quiet_until = self._quiet_until if refusal.is_signed else now + RETRY_SECONDS

    def _why_not(self, numbers: list[int], waiting: list[int]) -> str | None:
        """Why the newest policy is not in use; None: it is."""
        in_use, adopted = self._in_use(), self._written()
        for number in waiting:
            if number > in_use and number in self._refusals:
                return self._refusals[number].problem
        if numbers and numbers[0] < adopted:
            return f"policy {numbers[0]}, the newest on the server, is older than {adopted}; allowed: a newer one"
        return None

    def _in_use(self) -> int:
        return _number(self._running().policy)

    def _written(self) -> int:
        """The highest number that this proxy has adopted: nothing older is adopted again, even if that is damaged."""
        return max(self._directory.number(self._fleet), self._in_use())

    def _is_intact(self, number: int) -> bool:
        """Whether this policy is written, and can be used as it is."""
        directory = next(iter(self._directory.kept(self._fleet)), None)
        if directory is None or number_of(directory) != number:
            return False
        try:
            self._load(read_kept(directory, self._fleet))
        except ConfigError:
            return False
        return True

    def _try(self, published: PublishedPolicies | None, number: int) -> _Refusal | None:
        """Adopt a published policy, or with None reload the one that is written; why not, None if that was done."""
        is_signed = published is None
        try:
            if published is not None:
                bundle = published.read(number, self._keys)
                is_signed = True
                try:
                    self._adopt(bundle)
                except ValueError as error:
                    return _Refusal(f"policy {number}: {error}", is_signed, beside=self._running())
            _refuse_for(self._reload()["problems"])
            if self._in_use() < number:
                return _Refusal(self._running().policy_problem or f"policy {number}: is not in use", is_signed)
        except ValueError as error:
            return _Refusal(f"policy {number}: {error}", is_signed)
        except UserError as error:
            return _Refusal(f"policy {number}: {first_of(str(error).splitlines())}", is_signed=True)
        except OSError as error:
            return _Refusal(f"policy {number}: cannot be written: {error.strerror}", is_signed=True)
        return None

    def _adopt(self, bundle: Bundle) -> None:
        """Write a policy and name it as the current one. Raises ValueError and OSError if that cannot be."""
        directory = self._directory
        staged = directory.stage(bundle, self._clock.time())
        try:
            _refuse_for(judge(self._running(), self._load(staged)).problems)
        except ConfigError as error:
            directory.discard(staged)
            _refuse_for([problem.replace(f"{staged.directory}{os.sep}", "") for problem in error.problems])
        except ValueError:
            directory.discard(staged)
            raise
        directory.use(staged)
        _log.info("policy %s of %s is adopted", bundle.described, bundle.author)

    def status(self) -> Json:
        """`{fleet, in_use, problem, away}`: the policy in use, None for local files; why that is not the newest."""
        policy = self._running().policy
        in_use = None if policy is None else {**asdict(policy.version), "adopted_at": policy.adopted_at}
        problem = "; ".join(self._problems()) or None
        return {"fleet": self._fleet, "in_use": in_use, "problem": problem, "away": self.away}

    def _problems(self) -> list[str]:
        """Why this proxy does not use the policy that it has adopted, and why it adopts no newer one."""
        unused = self._running().policy_problem
        return [problem for problem in dict.fromkeys((unused, self.problem)) if problem is not None]

    def announcement(self) -> Announcement:
        """What this proxy says of itself."""
        policy, now = self._running().policy, self._clock.time()
        problem = "; ".join(map(_announced, self._problems())) or None
        if policy is None:
            return Announcement(None, None, None, problem, now)
        return Announcement(policy.version.number, policy.version.digest, policy.adopted_at, problem, now)


def _announced(problem: str) -> str:
    """A problem without what local files say: a `subnets_file` of a policy may name any, and so a password."""
    policy, _, rest = problem.partition(": ")
    place = rest.partition(":")[0]
    is_local_file = place.startswith(("/", f"{NETWORKS}/", f"{CLIENTS}/")) and file_name_problem(place) is not None
    return f"{policy}: {place}: the log of this proxy says why" if is_local_file else problem


def _number(policy: KeptPolicy | None) -> int:
    return 0 if policy is None else policy.version.number


def _refuse_for(problems: Sequence[str]) -> None:
    if problems:
        raise ValueError(first_of(problems))


class PolicyFollower(threading.Thread):
    """Looks for new policies until `stop()`, by a connection of its own: a long policy delays no totals."""

    def __init__(self, adoption: PolicyAdoption, fleet: FleetSection) -> None:
        super().__init__(name="policy", daemon=True)
        self._adoption = adoption
        self._fleet = fleet
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Stop soon; a policy that is being adopted is adopted."""
        self._stopping.set()

    def run(self) -> None:
        """Look, and connect again after an error."""
        if self._fleet.url is None or self._fleet.policy.fleet is None or self._fleet.name is None:
            return
        for attempt in count():
            try:
                with closing(connect(self._fleet.url, self._fleet.credentials, ANSWER_SECONDS, attempt)) as server:
                    self._follow(PublishedPolicies(server.ask, self._fleet.policy.fleet), self._fleet.name)
            except ValkeyError as error:
                self._adoption.note_away(str(error))
            except Exception as error:
                # Without this thread, no policy would be adopted until a restart.
                self._adoption.note_away(f"{type(error).__name__}: {error}")
            if self._stopping.wait(LOOK_SECONDS):
                return

    def _follow(self, published: PublishedPolicies, proxy: str) -> None:
        said: Announcement | None = None
        while not self._stopping.is_set():
            self._adoption.step(published)
            announcement = self._adoption.announcement()
            if said is None or is_news(said, announcement):
                published.announce(proxy, announcement)
                said = announcement
            self._stopping.wait(LOOK_SECONDS)


def is_news(said: Announcement, announcement: Announcement) -> bool:
    """Whether a proxy says something else than it has said, or has said nothing for some time."""
    if not 0 <= announcement.said_at - said.said_at < ANNOUNCE_SECONDS:
        return True
    return replace(said, said_at=0.0) != replace(announcement, said_at=0.0)
