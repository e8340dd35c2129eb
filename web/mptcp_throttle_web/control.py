"""Changes after a log-in: the same as those of the CLI, each attempt logged."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.logs import about
from mptcp_throttle.rpc import ChangeNotYetAppliedError, Json, RpcError
from mptcp_throttle_web.changes import CHANGES, Call, Change, Undo, calls, in_words, is_as_asked, undo_of

if TYPE_CHECKING:
    from mptcp_throttle_web.hiding import Hider

_log = logging.getLogger("mptcp-throttle-web.changes")
_MALFORMED: Final = about("malformed changes")


class Control:
    """Makes changes through `call`, which calls a method of the daemon and raises RpcError.

    Clients may have the names that `hider` has given them.
    """

    def __init__(self, call: Call, hider: Hider) -> None:
        self._call = call
        self._hider = hider
        # Each attempt is logged, whatever `log_level` is.
        _log.setLevel(logging.INFO)

    def note_malformed(self, method: str, who: str, problem: Exception) -> None:
        """Log an attempt that is refused because it cannot be parsed."""
        _log.info("%s by %s: refused: %s", shown(method), who, problem, extra=_MALFORMED)

    async def change(self, method: str, body: Json, who: str) -> Json:
        """What was done, what the daemon answers, and what undoes it.

        Raises RpcError if it refuses, after what it has done of the change is undone, or if it is not known whether it
        has made the change; UserError if the request is malformed.
        """
        try:
            change = self._parsed(method, body)
        except UserError as error:
            self.note_malformed(method, who, error)
            raise
        values = change.model_dump(exclude_unset=True, exclude={"hidden"})
        asked = " ".join((method, *(f"{key}={value}" for key, value in values.items())))
        try:
            undo = await undo_of(change, self._call)
            answer, unconfirmed = await self._all_of(change, undo)
        except RpcError as error:
            refused = "" if error.status == os.EX_UNAVAILABLE else "refused: "
            _log.info("%s by %s: %s%s", asked, who, refused, error)
            raise
        remark = "" if unconfirmed is None else f"; {unconfirmed}"
        _log.info("%s by %s: done%s", asked, who, remark)
        done = {
            "did": f"{in_words(change)}{remark}",
            "answer": answer,
            "undo": [{"method": name, "body": body} for name, body in undo.steps] or None,
            "undo_problem": undo.problem,
        }
        return self._hider.hidden(done) if change.hidden else done

    async def _all_of(self, change: Change, undo: Undo) -> tuple[Json, RpcError | None]:
        """Make all calls of a change, or none. Raises RpcError.

        Returns the answer to the last one, and why a call is unconfirmed.
        """
        answer, unconfirmed = None, None
        for done, call in enumerate(calls(change)):
            try:
                answer = await self._call(*call)
            except RpcError as error:
                if done == 0 and error.status == os.EX_UNAVAILABLE:
                    await self._look_again(change, error)
                elif not isinstance(error, ChangeNotYetAppliedError):
                    if done == 0:
                        raise
                    raise RpcError(f"{error}; {await self._undone(undo)}") from error
                unconfirmed = error
        return answer, unconfirmed

    async def _look_again(self, change: Change, error: RpcError) -> None:
        """Returns if a change has been made although the daemon has not answered. Raises RpcError."""
        try:
            is_made = await is_as_asked(change, self._call)
        except RpcError:
            is_made = None
        if not is_made:
            what = "whether it was done is not known" if is_made is None else "nothing of it is seen so far"
            raise RpcError(f"{error}; {what}", os.EX_UNAVAILABLE) from error

    async def _undone(self, undo: Undo) -> str:
        """Undo a change of which a part was made; how that went, in words."""
        try:
            for method, body in undo.steps:
                for call in calls(CHANGES[method].model_validate(body)):
                    await self._call(*call)
        except RpcError as error:
            return f"undoing what was changed before that failed: {error}"
        return "what was changed before that is undone"

    def _parsed(self, method: str, body: Json) -> Change:
        """Raises UserError."""
        try:
            kind = CHANGES[method]
        except KeyError as error:
            raise UserError(f"{shown(method)}: no such change; allowed: {', '.join(CHANGES)}") from error
        try:
            change = kind.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            keys = ".".join(map(str, first["loc"])) or "request"
            # An unknown key may be any text.
            where = keys if keys.isidentifier() else shown(keys)
            raise UserError(f"{where}: {shown(first['input'])}: {first['msg']}") from error
        named = {key: self._hider.address(getattr(change, key) or "") for key in kind.names}
        return change.model_copy(update={key: name for key, name in named.items() if name is not None})
