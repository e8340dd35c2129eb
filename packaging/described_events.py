"""The kinds of events, and the fields of their lines in the journal, in Markdown."""

from __future__ import annotations

from markdown_text import code, table
from mptcp_throttled.vocabulary.events import FIELDS, EventKind


def events() -> dict[str, list[str]]:
    """The kinds, and the fields."""
    kinds = ((code(kind), kind.meaning, code(kind.message_id)) for kind in EventKind)
    fields = ((code(name), meaning) for name, meaning in FIELDS.items())
    return {
        "events": table(("kind", "when", "`MESSAGE_ID`"), kinds),
        "fields of events": table(("field", "what it says"), fields),
    }
