"""Log-in by a password, and the sessions that it starts. They end with this process."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from mptcp_throttle.config.password_hash import PasswordHash

SESSION_SECONDS: Final = 12 * 3600.0
_MAX_SESSIONS: Final = 32
_ATTEMPTS: Final = 5
_ATTEMPT_SECONDS: Final = 6.0


class TooManyAttempts(Exception):
    """No log-in is tried now; `seconds` until the next attempt is allowed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Session:
    """A request with its `cookie` and its `secret` is of the page after a log-in; `name` is for the log.

    A browser sends the cookie to every server of the same host, whatever its port (RFC 6265, section 8.5), and also for
    their pages. Only the page has the secret: it keeps it in storage that the browser separates by port, and sends it
    with each request.
    """

    cookie: str
    secret: str
    name: str
    expires_at: float


class Attempts:
    """The attempts to log in at a listener: five at once, then one every six seconds.

    They are not counted per client address: behind a tunnel all clients have the same address.
    """

    def __init__(self) -> None:
        self._left = float(_ATTEMPTS)
        self._at = time.monotonic()

    def take(self) -> None:
        """Count an attempt. Raises TooManyAttempts."""
        now = time.monotonic()
        self._left = min(_ATTEMPTS, self._left + (now - self._at) / _ATTEMPT_SECONDS)
        self._at = now
        if self._left < 1:
            raise TooManyAttempts((1 - self._left) * _ATTEMPT_SECONDS)
        self._left -= 1

    def give_back(self) -> None:
        """Do not count the last attempt: its password was right."""
        self._left = min(_ATTEMPTS, self._left + 1)


class Sessions:
    """The sessions that began with the password of `password_hash`; of more than 32 the latest are kept."""

    def __init__(self, password_hash: PasswordHash) -> None:
        self._password_hash = password_hash
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._trying = asyncio.Lock()

    async def log_in(self, password: str, attempts: Attempts) -> Session | None:
        """A new session; None if the password is wrong. Raises TooManyAttempts."""
        attempts.take()
        async with self._trying:  # one at a time: each takes 16 MB of memory
            is_right = await asyncio.to_thread(self._password_hash.matches, password)
        if not is_right:
            return None
        attempts.give_back()
        cookie, secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        session = Session(cookie, secret, secrets.token_hex(4), time.monotonic() + SESSION_SECONDS)
        self._sessions[cookie] = session
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def find(self, cookie: str, secret: str) -> Session | None:
        """The session with this cookie and this secret; None if there is none or it has expired."""
        session = self._sessions.get(cookie)
        if session is None or not hmac.compare_digest(session.secret.encode(), secret.encode()):
            return None
        if time.monotonic() < session.expires_at:
            return session
        self.log_out(session)
        return None

    def log_out(self, session: Session) -> None:
        """End a session."""
        self._sessions.pop(session.cookie, None)
