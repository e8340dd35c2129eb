"""The policies that a proxy has adopted: directories in `state_directory`, of which `current` names one.

A policy is written under another name, and then named in one step: a crash leaves the old one or the new one.
"""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mptcp_throttle.config.text_file import read_text_file
from mptcp_throttle.durable_file import synchronise
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.policy_bundle.bundle import CLIENTS, MAX_TIME, NETWORKS, Bundle, PolicyVersion

_CURRENT: Final = "current"
_STAGED: Final = "staged"
_DESCRIPTION: Final = "policy.json"
_MOST_BYTES: Final = 10_000
_WRITERS: Final = 16
"""File systems with a journal make one entry of what several threads wait for: ten times as fast, with many devices."""

# The services run as users of their own, and each of them reads the configuration.
_DIRECTORY_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class KeptPolicy:
    """A policy in a directory of this host; `adopted_at` is in seconds since the epoch."""

    directory: Path
    version: PolicyVersion
    fleet: str
    adopted_at: float

    @property
    def networks(self) -> Path:
        """The directory of the access networks."""
        return self.directory / NETWORKS

    @property
    def clients(self) -> Path:
        """The directory of the devices; it may not exist."""
        return self.directory / CLIENTS

    def __str__(self) -> str:
        return str(self.version)


class PolicyDirectory:
    """All of them; only the daemon writes there."""

    def __init__(self, state_directory: Path) -> None:
        self._path = state_directory / "policy"

    def current(self, fleet: str) -> KeptPolicy | None:
        """The policy of this fleet in use; None if there is none. Raises ConfigError if it cannot be read."""
        link = self._path / _CURRENT
        try:
            directory = self._path / link.readlink().name
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError([f"{link}: cannot be read: {error.strerror}"]) from error
        kept = _described(directory)
        return kept if kept.fleet == fleet else None

    def usable(self, fleet: str) -> tuple[KeptPolicy | None, str | None]:
        """The policy of this fleet to start with, and why it is not the current one, if that is damaged.

        Then it is the one before, if that is still there. The next one that is adopted takes the place of both.
        """
        try:
            return self.current(fleet), None
        except ConfigError as error:
            kept = self._before(fleet)
            instead = "local files are" if kept is None else f"policy {kept} is"
            return kept, f"{error.problems[0]}; {instead} used instead"

    def _before(self, fleet: str) -> KeptPolicy | None:
        """The newest policy of a fleet that can be read."""
        kept = []
        for path in self._path.glob(f"{fleet}.*/{_DESCRIPTION}"):
            with suppress(ConfigError):
                kept.append(_described(path.parent))
        return max((each for each in kept if each.fleet == fleet), key=lambda each: each.version.number, default=None)

    def stage(self, bundle: Bundle, now: float) -> KeptPolicy:
        """Write a policy to the disk, in place of an earlier one that was staged. Raises OSError."""
        kept = KeptPolicy(self._path / _STAGED, bundle.described, bundle.fleet, now)
        self._make(self._path)
        synchronise(self._path.parent)
        self.discard(kept)
        try:
            self._write(kept, bundle)
        except OSError:
            self.discard(kept)  # on a full disk it would need space
            raise
        return kept

    def _write(self, kept: KeptPolicy, bundle: Bundle) -> None:
        folders = sorted({Path(name).parent.name for name in bundle.files})
        for directory in (kept.directory, *(kept.directory / folder for folder in folders)):
            self._make(directory)
        with ThreadPoolExecutor(_WRITERS) as pool:
            paths = [kept.directory / name for name in bundle.files]
            list(pool.map(_write, paths, bundle.files.values()))
        description = {**asdict(kept.version), "fleet": kept.fleet, "adopted_at": kept.adopted_at}
        _write(kept.directory / _DESCRIPTION, json.dumps(description))
        for directory in (*(kept.directory / folder for folder in folders), kept.directory):
            synchronise(directory)

    @staticmethod
    def discard(staged: KeptPolicy) -> None:
        """Remove a policy that is staged and not used."""
        shutil.rmtree(staged.directory, ignore_errors=True)

    def use(self, staged: KeptPolicy) -> None:
        """Name a staged policy, which is not the current one, as the current one. Raises OSError."""
        link, new_link = self._path / _CURRENT, self._path / f"{_CURRENT}.new"
        # A name of a fleet has no point.
        directory = self._path / f"{staged.fleet}.{staged.version.number}"
        shutil.rmtree(directory, ignore_errors=True)
        staged.directory.rename(directory)
        synchronise(self._path)
        before = link.readlink().name if link.is_symlink() else None
        new_link.unlink(missing_ok=True)
        new_link.symlink_to(directory.name)
        new_link.replace(link)
        synchronise(self._path)
        # The one before stays for whoever has looked up its name just now.
        for entry in self._path.iterdir():
            if entry.is_dir() and not entry.is_symlink() and entry.name not in (directory.name, before):
                shutil.rmtree(entry, ignore_errors=True)

    @staticmethod
    def _make(directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        directory.chmod(_DIRECTORY_MODE)


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o644)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _described(directory: Path) -> KeptPolicy:
    path = directory / _DESCRIPTION
    try:
        document = json.loads(read_text_file(path, _MOST_BYTES))
        number, digest, published_at, author = (document[key] for key in ("number", "digest", "published_at", "author"))
        version = PolicyVersion(number, digest, published_at, author)
        adopted_at = float(document["adopted_at"])
        if not 0 <= adopted_at < MAX_TIME:
            raise ValueError("adopted_at: is no time")
        return KeptPolicy(directory, version, str(document["fleet"]), adopted_at)
    except (KeyError, TypeError, RecursionError, OverflowError, json.JSONDecodeError) as error:
        raise ConfigError([f"{path}: is damaged"]) from error
    except ValueError as error:
        raise ConfigError([f"{path}: {error}"]) from error
