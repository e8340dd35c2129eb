"""Files that are only there to be loaded: the loader reads files, and what `setup` proposes is not written yet."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mptcp_throttle.errors import UserError


@contextmanager
def staged(texts: Mapping[str, str]) -> Iterator[Path]:
    """A temporary directory with files of these names and texts. Raises UserError if they cannot be written."""
    with ExitStack() as stack:
        try:
            directory = Path(stack.enter_context(TemporaryDirectory()))
            for name, text in texts.items():
                (directory / name).write_text(text, encoding="utf-8")
        except OSError as error:
            # Without a usable directory, the text is that of the module tempfile, which names those that it has tried.
            raise UserError(f"setup: temporary files cannot be written: {error.strerror}", os.EX_IOERR) from error
        yield directory
