"""Which network namespace the proxy is in, as `proxy.namespace` says it: that of a container, or one with a path."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from mptcp_throttle.errors import UserError

KEPT_AT: Final = Path("/run/netns/mptcp-throttle")
"""Where `mptcp-throttle-namespace` keeps it: `ip netns exec mptcp-throttle` runs commands in it."""

OWN_NAMESPACE: Final = Path("/proc/self/ns/net")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
"""Of containers (Docker: daemon/names/names.go). It is an argument of their programs, so no hyphen in front."""


class Engine(StrEnum):
    """What runs a container."""

    DOCKER = "docker"
    PODMAN = "podman"
    LXC = "lxc"


@dataclass(frozen=True, slots=True)
class Container:
    """A container by its name."""

    engine: Engine
    name: str

    def __str__(self) -> str:
        return f"{self.engine}:{self.name}"


def parse_namespace(text: str) -> Container | Path:
    """From `docker:NAME`, `podman:NAME`, `lxc:NAME` or an absolute path. Raises ValueError."""
    engine, _, name = text.partition(":")
    if engine in set(Engine) and _NAME.fullmatch(name):
        return Container(Engine(engine), name)
    if os.path.isabs(text) and text.isprintable() and not _is_unfit(Path(text)):
        return Path(text)
    raise ValueError("allowed: docker:NAME, podman:NAME, lxc:NAME, a path such as /run/netns/NAME, or null")


def _is_unfit(path: Path) -> bool:
    """Nothing tells when the process behind a path in /proc ends; and what is kept is none to be kept."""
    with suppress(OSError):
        path = Path(os.path.realpath(path.parent), path.name)
    return ".." in path.parts or path == KEPT_AT or path.is_relative_to("/proc")


def is_entered(path: Path = KEPT_AT) -> bool:
    """Whether this process is in the network namespace at `path`."""
    try:
        return os.path.samestat(path.stat(), OWN_NAMESPACE.stat())
    except OSError:
        return False


def require_entered(source: Container | Path | None) -> None:
    """Raise UserError unless this process is in the network namespace of the proxy; None: it may be in any."""
    if source is not None and not is_entered():
        problem = f"proxy.namespace: {source}: this service is not in {KEPT_AT}"
        raise UserError(f"{problem}; allowed: null, or a start by its unit with namespace.conf", os.EX_CONFIG)
