"""The logs of a lab's programs, saved before the lab is removed."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def kept(lab: Path, directory: Path) -> Iterator[None]:
    """At the end of the block, however it ends, leave the logs of all hosts of a lab's directory in `directory`."""
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for log in lab.glob("*/*.log"):
            shutil.copyfile(log, directory / log.name)
