"""The command lines of the programs in Markdown, from their argparse parsers."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from markdown_text import code, sentences, with_named_units
from packaged_programs import packaged_programs

_ONCE: Final = {"help", "version", "config", "json"}
"""Options of every program or command; the page describes them once."""

_PAGE_OF_UNITS: Final = "configuration.md"


def programs() -> dict[str, list[str]]:
    """Each program and each command, such as `mptcp-throttle set-rate`, by its name."""
    described: dict[str, list[str]] = {}
    for program in packaged_programs(Path()):
        described |= _described(importlib.import_module(program.module).parser(), program.name)
    return described


def _described(parser: argparse.ArgumentParser, name: str) -> dict[str, list[str]]:
    arguments = list(_arguments(parser))
    lines = [code(f"{name} {' '.join(_synopsis(parser))}".rstrip()), "", *sentences(_sentence(parser))]
    if arguments:
        lines += ["", *arguments]
    described = {name: lines}
    for commands in _subcommands(parser):
        for command, choice in commands.choices.items():
            described |= _described(choice, f"{name} {command}")
    return described


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _sentence(parser: argparse.ArgumentParser) -> str:
    text = (parser.description or "").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _synopsis(parser: argparse.ArgumentParser) -> Iterator[str]:
    """As argparse prints it: options, then what has no option; but without what the page describes once."""
    for action in parser._actions:
        if action.option_strings and action.dest not in _ONCE:
            yield _typed(action) if action.required else f"[{_typed(action)}]"
    for action in parser._actions:
        if not action.option_strings:
            yield f"[{_typed(action)}]" if action.nargs == "?" else _typed(action)


def _typed(action: argparse.Action) -> str:
    if action.nargs == 0:
        return action.option_strings[-1]
    value = str(action.metavar or "|".join(map(str, action.choices or ())))
    return f"{action.option_strings[-1]} {value}" if action.option_strings else value


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.dest not in _ONCE and not isinstance(action, argparse._SubParsersAction):
            if not action.help:
                raise ValueError(f"{parser.prog}: {action.dest}: has no help")
            text = action.help % {**vars(action), "prog": parser.prog}
            yield f"* {code(_typed(action))}: {with_named_units(text, _PAGE_OF_UNITS)}"
