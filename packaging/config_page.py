"""Manual pages, section 5, from configuration files that explain each key in a comment above it."""

from __future__ import annotations

from commented_yaml import parse
from roff import escaped, paragraphs


def config_page(text: str) -> str:
    """The sections DESCRIPTION, from the comment that begins the file, and OPTIONS, in the order of the file."""
    description, entries = parse(text)
    lines = [
        ".SH DESCRIPTION",
        *paragraphs(description, ".PP"),
        ".SH OPTIONS",
        "The values are those of the file as installed.",
    ]
    for entry in entries:
        for number, setting in enumerate(entry.settings):
            value = "" if setting.value is None else f": {setting.value}"
            lines += [".TQ" if number else ".TP", rf"\fB{escaped(setting.path)}\fR{escaped(value)}"]
        lines += paragraphs(entry.lines, ".IP")
    return "\n".join(lines) + "\n"
