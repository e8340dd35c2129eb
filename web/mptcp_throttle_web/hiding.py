"""Replaces addresses of clients by names, for visitors who may not see them and for screenshots of the page."""

from __future__ import annotations

import hmac
import re
import secrets
import threading
from collections import OrderedDict
from ipaddress import ip_address
from typing import Final

from mptcp_throttle.rpc import Json

_KEPT: Final = 10_000
_NAME_DIGITS: Final = 8
_HIDDEN_KEYS: Final = frozenset({"token", "client_port", "device"})
_RUN: Final = re.compile(r"[0-9a-fA-F:.]{2,}")
_MAX_RUN: Final = 100
_PORT_AFTER_NAME: Final = re.compile(r"\[?(host-[0-9a-f]{8})\]?:\d{1,5}\b")
_DEVICE: Final = "[a-z0-9][a-z0-9_-]*"
# As `mptcp_throttle.devices.named` writes it, and as the log does.
_DEVICE_AFTER_NAME: Final = re.compile(rf"(host-[0-9a-f]{{8}})(?: \({_DEVICE}\)| device={_DEVICE})")
# As `mptcp_throttle.devices.alone` writes it. Texts of the kernel have the word, too: "No such device or address".
_DEVICE_ALONE: Final = re.compile(rf"\bdevice {_DEVICE}(?=:| added| removed)")


class Hider:
    """Names for addresses, stable until the end of this process. An address cannot be computed from its name."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._addresses: OrderedDict[str, str] = OrderedDict()
        self._naming = threading.Lock()

    def hidden(self, data: Json) -> Json:
        """The data with a name in place of each address, wherever it is in a text; no tokens, ports and devices."""
        match data:
            case str():
                text = _PORT_AFTER_NAME.sub(r"\1", _RUN.sub(self._replace, data))
                return _DEVICE_ALONE.sub("a device", _DEVICE_AFTER_NAME.sub(r"\1", text))
            case list():
                return [self.hidden(item) for item in data]
            case dict():
                return {key: None if key in _HIDDEN_KEYS else self.hidden(value) for key, value in data.items()}
        return data

    def address(self, name: str) -> str | None:
        """The address with this name, None if the name is unknown or no longer kept."""
        return self._addresses.get(name)

    def _replace(self, run: re.Match[str]) -> str:
        """The text with a name for each address in it, whatever characters are around the address."""
        text, parts, start = run[0], [], 0
        if len(text) > _MAX_RUN:
            return "(hidden)"
        while start < len(text):
            end, name = self._first(text, start)
            parts.append(text[start:end] if name is None else name)
            start = end
        return "".join(parts)

    def _first(self, text: str, start: int) -> tuple[int, str | None]:
        """End and name of the longest address that begins at `start`; else the next position and None."""
        for end in range(len(text), start + 1, -1):
            try:
                return end, self._name(str(ip_address(text[start:end])))
            except ValueError:
                continue
        return start + 1, None

    def _name(self, address: str) -> str:
        digest = hmac.digest(self._key, address.encode(), "sha256").hex()
        name = f"host-{digest[:_NAME_DIGITS]}"
        with self._naming:
            self._addresses[name] = address
            self._addresses.move_to_end(name)
            if len(self._addresses) > _KEPT:
                self._addresses.popitem(last=False)
        return name
