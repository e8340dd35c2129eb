"""The order in which insmod(8) can load kernel modules, from depmod(8)'s lists."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SUFFIX: Final = re.compile(r"\.ko(\.\w+)?$")


def name_of(path: str) -> str:
    """The module's name, as lsmod(8) shows it: `kernel/drivers/net/virtio-net.ko.xz` holds `virtio_net`."""
    return _SUFFIX.sub("", PurePosixPath(path).name).replace("-", "_")


def load_order(dependencies: str, builtin: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """The paths of the wanted modules and their dependencies, each after those it needs; without built-in ones.

    `dependencies` and `builtin` are the contents of modules.dep and modules.builtin. Raises ValueError if the kernel
    lacks a module.
    """
    needs = dict(_parse(dependencies))
    paths = {name_of(path): path for path in needs}
    present = {name_of(path) for path in builtin.split()}
    order: dict[str, None] = {}
    for name in wanted:
        if name in paths:
            path = paths[name]
            # modules.dep lists direct and indirect dependencies, the most basic last.
            order.update(dict.fromkeys((*reversed(needs[path]), path)))
        elif name not in present:
            raise ValueError(f"the kernel has no module {name}")
    return tuple(order)


def _parse(dependencies: str) -> Iterator[tuple[str, list[str]]]:
    for line in dependencies.splitlines():
        path, _, needed = line.partition(":")
        yield path, needed.split()
