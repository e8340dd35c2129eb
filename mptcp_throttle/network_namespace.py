"""Which network namespace the proxy is in, as `proxy.namespace` says it: that of a container, or one with a path."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

KEPT_AT: Final = Path("/run/netns/mptcp-throttle")
"""Where `mptcp-throttle-namespace` keeps it: `ip netns exec mptcp-throttle` runs commands in it."""

_OWN: Final = Path("/proc/self/ns/net")
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
    # Nothing tells when the process behind a path in /proc ends; and what is kept is none to be kept.
    if os.path.isabs(text) and not text.startswith("/proc/") and Path(text) != KEPT_AT:
        return Path(text)
    raise ValueError("allowed: docker:NAME, podman:NAME, lxc:NAME, a path such as /run/netns/NAME, or null")


def is_entered(path: Path = KEPT_AT) -> bool:
    """Whether this process is in the network namespace at `path`."""
    try:
        return os.path.samestat(path.stat(), _OWN.stat())
    except OSError:
        return False
