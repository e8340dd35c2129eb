"""The key of the control group: made once and kept, so that a restart moves no connection to the other group."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttled.vocabulary.control_group import KEY_BYTES, NO_CONTROL_GROUP, ControlGroup

_log = logging.getLogger("mptcp-throttled")


def control_group(share: float | None, directory: Path) -> ControlGroup:
    """The control group with the key in `directory`; none for no share, which needs no key.

    If the key cannot be kept, the log says so, and the next instance has another one.
    """
    return ControlGroup(share, _key(directory / "control-group.key")) if share else NO_CONTROL_GROUP


def _key(path: Path) -> bytes:
    try:
        return _read_key(path) or _new_key(path)
    except OSError as error:
        _log.error("%s: %s: the next start chooses another control group", path, error.strerror)
        return secrets.token_bytes(KEY_BYTES)


def _read_key(path: Path) -> bytes | None:
    try:
        key = bytes.fromhex(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return None
    except ValueError:
        key = b""
    if len(key) == KEY_BYTES:
        return key
    _log.error("%s: is no key: another one chooses another control group", path)
    return None


def _new_key(path: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    write_atomically(path, key.hex(), mode=0o600)
    return key
