"""A policy as it is published: the files of access networks and devices, with a version that only grows.

`networks.d/` has the access networks and what their `subnets_file` names, `clients.d/` the devices. Everything else of
a configuration stays with each proxy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

from mptcp_throttle.config.validation import is_name, is_text
from mptcp_throttle.errors import shown

NETWORKS: Final = "networks.d"
CLIENTS: Final = "clients.d"

MAX_VERSION: Final = 10**9
MAX_FILES: Final = 12_000
"""10 000 devices, and 2000 networks and files of subnets."""
MAX_ENCODED: Final = 8 << 20
"""Twice what 10 000 devices and 65 535 subnets take, and as much as a proxy reads of a server."""

_FORMAT: Final = 1
MAX_TIME: Final = 2**40
_MAX_AUTHOR: Final = 100
# One folder, and no hidden file: such a name leads nowhere else.
_FILE_NAME: Final = re.compile(rf"({re.escape(NETWORKS)}|{re.escape(CLIENTS)})/[A-Za-z0-9_][A-Za-z0-9._-]{{0,99}}")
_KEYS: Final = ("author", "files", "fleet", "format", "published_at", "version")


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """What tells one policy of a fleet from another; `published_at` is in seconds since the epoch.

    `digest` is that of the files alone: a roll-back has another number, and the digest of the version it returns to.
    Raises ValueError if it is none.
    """

    number: int
    digest: str
    published_at: int
    author: str

    def __post_init__(self) -> None:
        _require_whole("version", self.number, 1, MAX_VERSION)
        _require_whole("published_at", self.published_at, 0, MAX_TIME)
        if not is_text(self.author) or len(self.author) > _MAX_AUTHOR:
            raise ValueError(f"author: {shown(self.author)}: allowed: text of up to {_MAX_AUTHOR} characters")
        if not is_text(self.digest):
            raise ValueError(f"digest: {shown(self.digest)}: is none")

    def __str__(self) -> str:
        return f"{self.number} ({self.digest[:12]})"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A policy of a fleet: its files by their names, such as `networks.d/lte.yaml`. Raises ValueError if it is none."""

    fleet: str
    version: int
    published_at: int
    author: str
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if not isinstance(self.fleet, str) or not is_name(self.fleet):
            raise ValueError(f"fleet: {shown(self.fleet)}: is no name of a fleet")
        _check_files(self.files)
        _ = self.described  # raises ValueError for the number, the time and the author
        if len(self.encode()) > MAX_ENCODED:
            raise ValueError(f"has {len(self.encode())} bytes; allowed: up to {MAX_ENCODED}")

    @property
    def described(self) -> PolicyVersion:
        """It without the files."""
        return PolicyVersion(self.version, digest_of(self.files), self.published_at, self.author)

    def encode(self) -> bytes:
        """The only encoding that `decode` reads."""
        values = self.author, dict(self.files), self.fleet, _FORMAT, self.published_at, self.version
        return _canonical(dict(zip(_KEYS, values, strict=True)))

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """The bundle in these bytes. Raises ValueError with the reason if they are none."""
        if len(content) > MAX_ENCODED:
            raise ValueError(f"has {len(content)} bytes; allowed: up to {MAX_ENCODED}")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError("is no JSON") from error
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError(f"has another format; allowed: {_FORMAT}")
        if sorted(document) != list(_KEYS):
            raise ValueError(f"has other keys; allowed: {', '.join(_KEYS)}")
        bundle = cls(*(document[key] for key in ("fleet", "version", "published_at", "author", "files")))
        if bundle.encode() != content:
            raise ValueError("is not in canonical form")
        return bundle


def digest_of(files: Mapping[str, str | None]) -> str:
    """The SHA-256 of the files with their names, in hexadecimal digits; with None, it is that of no policy."""
    return hashlib.sha256(_canonical(dict(files))).hexdigest()


def file_name_problem(name: str) -> str | None:
    """Why a policy can have no file of this name; None if it can."""
    if _FILE_NAME.fullmatch(name) is not None:
        return None
    return (
        f"{shown(name)}: is no name for a file of a policy; allowed: {NETWORKS}/NAME and {CLIENTS}/NAME,"
        " with up to 100 of a-z, A-Z, 0-9, ., _ and -, no . or - first"
    )


def _check_files(files: object) -> None:
    if not isinstance(files, Mapping) or not 1 <= len(files) <= MAX_FILES:
        raise ValueError(f"files: allowed: 1 to {MAX_FILES} files")
    for name, text in files.items():
        problem = file_name_problem(name) if isinstance(name, str) else "is no name"
        if problem is not None:
            raise ValueError(f"files: {problem}")
        if not isinstance(text, str):
            raise ValueError(f"files: {name}: {shown(text)}: is no text")
        if not _is_unicode(text):
            raise ValueError(f"files: {name}: has half a character of UTF-16")
    if not any(name.startswith(f"{NETWORKS}/") for name in files):
        raise ValueError(f"files: has no access network; allowed: a file in {NETWORKS} or more")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_whole(name: str, value: object, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"{name}: {shown(value)}: allowed: a whole number from {lowest} to {highest}")


def _canonical(document: Mapping[str, object]) -> bytes:
    """JSON with sorted keys, without spaces, in UTF-8."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return text.encode()


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """The names of the files that come, go or change, each with what becomes of it."""
    for name in sorted({*before, *after}):
        if name not in before:
            yield f"{name}: new"
        elif name not in after:
            yield f"{name}: removed"
        elif before[name] != after[name]:
            yield f"{name}: changed"
