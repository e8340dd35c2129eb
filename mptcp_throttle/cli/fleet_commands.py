"""`mptcp-throttle fleet`: publish a policy, return to an older one, and show who uses which."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Final

from mptcp_throttle.config.fleet_section import FleetSection
from mptcp_throttle.config.load import find_fleet, load_with_policy
from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttle.policy_bundle.bundle import MAX_VERSION, Bundle, changed_files, digest_of
from mptcp_throttle.policy_bundle.policy_files import files_to_publish
from mptcp_throttle.policy_bundle.published import KEPT, PublishedPolicies
from mptcp_throttle.policy_bundle.signature import PrivateKey, PublicKey
from mptcp_throttle.rpc import Json
from mptcp_throttle.valkey.connect import connect
from mptcp_throttle.valkey.connection import Connection, ValkeyError

_ANSWER_SECONDS: Final = 20.0
_RECENT_SECONDS: Final = 60.0


def run(options: argparse.Namespace) -> Json:
    """The answer of the command. Raises UserError."""
    return _COMMANDS[options.fleet_command](options)


def _new_key(options: argparse.Namespace) -> Json:
    key = PrivateKey.new()
    key.write(options.file)
    return {"file": str(options.file), "public_key": str(key.public)}


def _publish(options: argparse.Namespace) -> Json:
    load_with_policy(options.config, None)
    files, fleet = files_to_publish(options.config), find_fleet(options.config)
    with _published(fleet, writes=True) as published:
        stored = _Stored.of(published, fleet)
        if stored.latest is not None and stored.latest.described.digest == digest_of(files):
            return {"published": None, "latest": asdict(stored.latest.described), "changes": [], "notes": stored.notes}
        return _add(options, fleet, published, stored, files)


def _roll_back(options: argparse.Namespace) -> Json:
    fleet = find_fleet(options.config)
    with _published(fleet, writes=True) as published:
        stored = _Stored.of(published, fleet)
        return _add(options, fleet, published, stored, stored.older(options.number).files)


def _add(
    options: argparse.Namespace,
    fleet: FleetSection,
    published: PublishedPolicies,
    stored: _Stored,
    files: Mapping[str, str],
) -> Json:
    """Publish these files, unless it is a dry run."""
    key = PrivateKey.read(options.key)
    name, keys = _section(fleet)
    if key.public not in keys:
        raise UserError(f"{options.key}: its public key {key.public} is not in fleet.policy.keys; allowed: one there")
    number = stored.next_number(options.new_number)
    try:
        bundle = Bundle(name, number, int(time.time()), options.author or _user(), files)
    except ValueError as error:
        raise UserError(f"policy {number}: {error}", os.EX_CONFIG) from error
    if not options.dry_run:
        if not published.add(number, key.sign(bundle)):
            raise UserError(f"policy {number} was published in this moment; allowed: again, if yours is still needed")
        # Higher numbers may be there that are not signed: the new policy is not one of those to remove.
        with suppress(ValkeyError):  # it is published, and the next time removes what stays
            published.remove(stored.numbers[KEPT - 1 :])
    before = {} if stored.latest is None else stored.latest.files
    return {
        "published": None if options.dry_run else asdict(bundle.described),
        "latest": None if stored.latest is None else asdict(stored.latest.described),
        "changes": list(changed_files(before, files)),
        "notes": stored.notes,
    }


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is on the server: numbers, the highest first, and what each of them is; and what proxies say they use."""

    numbers: tuple[int, ...]
    bundles: Mapping[int, Bundle]
    notes: tuple[str, ...]
    used: Mapping[str, int]

    @classmethod
    def of(cls, published: PublishedPolicies, fleet: FleetSection) -> _Stored:
        """Read all of it."""
        _, keys = _section(fleet)
        numbers, bundles, notes = published.numbers(), {}, []
        for number in numbers:
            try:
                bundles[number] = published.read(number, keys)
            except ValueError as error:
                notes.append(f"policy {number} on the server {error}")
        said = published.announcements().items()
        used = {name: announcement.number for name, announcement in said if announcement.number is not None}
        return cls(tuple(numbers), bundles, tuple(notes), used)

    @property
    def latest(self) -> Bundle | None:
        """The newest policy that is signed."""
        return self.bundles[max(self.bundles)] if self.bundles else None

    def next_number(self, wanted: int | None) -> int:
        """The number of the next policy. Raises UserError if there is none that all proxies take for newer."""
        latest = 0 if self.latest is None else self.latest.version
        # What proxies say is not proved: an operator decides.
        proxy, highest = max(self.used.items(), key=lambda item: item[1], default=("", 0))
        if wanted is None and highest > latest:
            raise UserError(
                f"{proxy} says that it uses policy {highest}, and the server has no policy after {latest}: it has lost"
                f" some, or the proxy is mistaken; allowed: --number {highest + 1}"
            )
        free = (number for number in range(latest + 1, MAX_VERSION + 1) if number not in self.numbers)
        number = wanted or next(free, None)
        if number is None:
            raise UserError(f"policy {latest}: none has a higher number; allowed: another name in fleet.policy.fleet")
        if number <= latest:
            raise UserError(f"--number {number}: is not above {latest}, the latest; allowed: {latest + 1} or higher")
        return number

    def older(self, number: int | None) -> Bundle:
        """The policy to return to. Raises UserError if there is none."""
        latest = self.latest
        older = [] if latest is None else [each for each in self.bundles.values() if each is not latest]
        if number is None:
            wanted = (each for each in older if latest and each.described.digest != latest.described.digest)
        else:
            wanted = (each for each in older if each.version == number)
        found = next(wanted, None)
        if found is None:
            allowed = ", ".join(str(each.version) for each in older) or "none: the server has no older one"
            raise UserError(f"no such policy to return to; allowed: {allowed}")
        return found


def _status(options: argparse.Namespace) -> Json:
    fleet = find_fleet(options.config)
    name, _ = _section(fleet)
    with _published(fleet) as published:
        stored, now = _Stored.of(published, fleet), time.time()
        proxies = published.announcements()
    return {
        "fleet": name,
        "policies": [{**asdict(bundle.described), "files": len(bundle.files)} for bundle in stored.bundles.values()],
        "proxies": [
            {"name": proxy, **asdict(said), "recent": abs(now - said.said_at) < _RECENT_SECONDS}
            for proxy, said in proxies.items()
        ],
        "notes": stored.notes,
    }


def _forget(options: argparse.Namespace) -> Json:
    notes: list[str] = []
    with _published(find_fleet(options.config), writes=True) as published:
        try:
            shared = published.forget_name(options.proxy)
        except ValueError as error:
            raise UserError(f"{options.proxy}: {error}; allowed: a proxy that is gone") from error
        except ValkeyError as error:
            shared = False
            notes.append(f"its name stays among those that share rates: {error}")
        if not published.forget(options.proxy) and not shared:
            allowed = ", ".join(published.announcements()) or "none: no proxy has said anything"
            raise UserError(f"{options.proxy}: no such proxy; allowed: {allowed}")
    return {"forgotten": options.proxy, "notes": notes}


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], Json]]] = {
    "status": _status,
    "publish": _publish,
    "rollback": _roll_back,
    "new-key": _new_key,
    "forget": _forget,
}


def _section(fleet: FleetSection) -> tuple[str, tuple[PublicKey, ...]]:
    if fleet.policy.fleet is None:
        raise ConfigError(["fleet.policy.fleet: is required; allowed: the name of the fleet, and fleet.policy.keys"])
    return fleet.policy.fleet, fleet.policy.keys


@contextmanager
def _published(fleet: FleetSection, *, writes: bool = False) -> Iterator[PublishedPolicies]:
    """The policies of the fleet on its server; on that of several which takes writes, if so. Raises UserError."""
    name, _ = _section(fleet)
    try:
        with closing(_server(fleet, name, writes=writes)) as server:
            yield PublishedPolicies(server.ask, name)
    except ValkeyError as error:
        raise UserError(f"fleet: {error}", os.EX_UNAVAILABLE) from error


def _server(fleet: FleetSection, name: str, *, writes: bool) -> Connection:
    """A connection to it. Raises ValkeyError."""
    url = fleet.url
    if url is None:
        raise ConfigError(["fleet.url: is required"])
    problem = ValkeyError("no server")
    for attempt in range(len(url.servers)):
        server = connect(url, fleet.credentials, _ANSWER_SECONDS, attempt)
        try:
            if writes:
                PublishedPolicies(server.ask, name).require_writes()
        except ValkeyError as error:
            problem = error
            server.close()
        else:
            return server
    raise problem


def _user() -> str:
    name = os.environ.get("SUDO_USER", "")
    with suppress(KeyError, OSError):
        name = name or getpass.getuser()
    return f"{name or 'unknown'}@{socket.gethostname()}"[:100]
