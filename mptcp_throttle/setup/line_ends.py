"""Line ends of configuration files: those of other systems (CR LF) are kept, and are no difference."""

from __future__ import annotations

from difflib import SequenceMatcher


def without_carriage_returns(text: str) -> str:
    """The text with LF at the ends of its lines."""
    return text.replace("\r\n", "\n")


def with_line_ends_of(before: str, text: str) -> str:
    """A text with LF, changed from `before`: its lines end as they did before, new ones as most did."""
    old, new = before.split("\n"), text.split("\n")
    most = "\r" if 2 * before.count("\r\n") > before.count("\n") else ""
    result: list[str] = []
    matcher = SequenceMatcher(None, [line.removesuffix("\r") for line in old], new, autojunk=False)
    for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        result += old[old_from:old_to] if kind == "equal" else [line + most for line in new[new_from:new_to]]
    return "\n".join(result)
