"""The policies that a proxy has adopted: directories in `state_directory`, of which `current` names one.

A policy is written under another name, and then named in one step: a crash leaves the old one or the new one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mptcp_throttle.config.text_file import read_text_file
from mptcp_throttle.durable_file import synchronise
from mptcp_throttle.errors import ConfigError, first_of, shown
from mptcp_throttle.policy_bundle.bundle import (
    CLIENTS,
    MAX_ENCODED,
    MAX_TIME,
    NETWORKS,
    Bundle,
    PolicyVersion,
    changed_files,
    digest_of,
    file_name_problem,
)

_CURRENT: Final = "current"
_STAGED: Final = "staged"
_REPLACED: Final = "replaced"
_DESCRIPTION: Final = "policy.json"
_DIGESTS: Final = "digests.json"
"""The digest of each file, which only names the one that differs: policies adopted by earlier builds have none."""
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

    def kept(self, fleet: str) -> list[Path]:
        """The directories of policies of this fleet, damaged or not: the current one, then the others, newest first.

        Empty if no policy of this fleet was adopted.
        """
        current = self._current(fleet)
        if current is None:
            return []
        earlier = (path for path in self._path.glob(f"{fleet}.*") if path != current)
        return [current, *sorted(earlier, key=number_of, reverse=True)]

    def number(self, fleet: str) -> int:
        """The number of the current policy of this fleet, damaged or not; 0 if there is none.

        If it cannot be read which one is the current policy, the highest number counts.
        """
        directories = self.kept(fleet)
        if not directories:
            return 0
        return number_of(directories[0]) or max(map(number_of, directories))

    def _current(self, fleet: str) -> Path | None:
        link = self._path / _CURRENT
        try:
            name = link.readlink().name
        except FileNotFoundError:
            return None
        except OSError:
            return link  # reading a policy there says what is wrong
        # A name of a fleet has no point.
        return self._path / name if name.rpartition(".")[0] == fleet else None

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
        digests = {name: digest_of({name: text}) for name, text in bundle.files.items()}
        _write(kept.directory / _DIGESTS, json.dumps(digests))
        description = {**asdict(kept.version), "fleet": kept.fleet, "adopted_at": kept.adopted_at}
        _write(kept.directory / _DESCRIPTION, json.dumps(description))
        for directory in (*(kept.directory / folder for folder in folders), kept.directory):
            synchronise(directory)

    @staticmethod
    def discard(staged: KeptPolicy) -> None:
        """Remove a policy that is staged and not used."""
        shutil.rmtree(staged.directory, ignore_errors=True)

    def use(self, staged: KeptPolicy) -> None:
        """Name a staged policy as the current one. Raises OSError."""
        link, new_link = self._path / _CURRENT, self._path / f"{_CURRENT}.new"
        directory, replaced = self._path / f"{staged.fleet}.{staged.version.number}", self._path / _REPLACED
        shutil.rmtree(replaced, ignore_errors=True)
        # It may be the current one, if that is damaged: to remove all its files would take longer.
        with suppress(FileNotFoundError):
            directory.rename(replaced)
        staged.directory.rename(directory)
        synchronise(self._path)
        before = link.readlink().name if link.is_symlink() else None
        new_link.unlink(missing_ok=True)
        new_link.symlink_to(directory.name)
        new_link.replace(link)
        synchronise(self._path)
        # The one before stays, also for whoever has looked up its name just now.
        stay = {before, *(path.name for path in self.kept(staged.fleet)[:2])}
        for entry in self._path.iterdir():
            if entry.is_dir() and not entry.is_symlink() and entry.name not in stay:
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


def number_of(directory: Path) -> int:
    """The number in the name of a policy's directory; 0 if it has none."""
    number = directory.name.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else 0


def read_kept(directory: Path, fleet: str) -> KeptPolicy:
    """The policy of this fleet in a directory; `require_as_signed` reads its other files.

    Raises ConfigError if it is damaged.
    """
    path = directory / _DESCRIPTION
    try:
        document = json.loads(read_text_file(path, _MOST_BYTES))
        number, digest, published_at, author = (document[key] for key in ("number", "digest", "published_at", "author"))
        version = PolicyVersion(number, digest, published_at, author)
        adopted_at = float(document["adopted_at"])
        if not 0 <= adopted_at < MAX_TIME:
            raise ValueError("adopted_at: is no time")
        if document["fleet"] != fleet:
            raise ValueError(f"fleet: {shown(document['fleet'])}: allowed: {fleet}")
    except (KeyError, TypeError, RecursionError, OverflowError, json.JSONDecodeError) as error:
        raise ConfigError([f"{path}: is damaged"]) from error
    except ValueError as error:
        raise ConfigError([f"{path}: {error}"]) from error
    return KeptPolicy(directory, version, fleet, adopted_at)


def require_as_signed(policy: KeptPolicy) -> None:
    """Raise ConfigError unless the files of a policy are those of its digest, all of them and no others."""
    files = _files_of(policy)
    if digest_of(files) != policy.version.digest:
        changes = _changes(policy, files)
        problem = first_of(changes) if changes else f"{_DESCRIPTION}: digest: is not that of the files beside it"
        raise ConfigError([f"{policy.directory / problem}; allowed: files as they were signed"])


def _files_of(policy: KeptPolicy) -> dict[str, str | None]:
    """What is in a policy's directory, but for hidden files, which nothing reads; None: it cannot be read."""
    files = dict[str, str | None]()
    for folder in (policy.networks, policy.clients):
        with suppress(OSError):
            for path in folder.iterdir():
                if not path.name.startswith("."):
                    # A name that a policy can have stays as it is.
                    files[f"{folder.name}/{path.name.encode('unicode_escape').decode()}"] = _text_of(path)
    return files


def _text_of(path: Path) -> str | None:
    try:
        return read_text_file(path, MAX_ENCODED)
    except ValueError:
        return None


def _changes(policy: KeptPolicy, files: Mapping[str, str | None]) -> list[str]:
    """What has become of files since they were written; empty if that is not known."""
    try:
        written = json.loads(read_text_file(policy.directory / _DIGESTS, MAX_ENCODED))
    except (ValueError, RecursionError):
        return []
    if not isinstance(written, dict) or any(map(file_name_problem, written)):
        return []
    return list(changed_files(written, {name: digest_of({name: text}) for name, text in files.items()}))


def in_policy(directory: Path, problems: Sequence[str]) -> str:
    """The first of the problems with the policy in a directory, with the names that its files have in the policy."""
    return f"policy {directory.name.rpartition('.')[2]}: {first_of(problems).replace(f'{directory}{os.sep}', '')}"
