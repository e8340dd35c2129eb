"""The layout that docs/contribute/architecture.md describes: file names, imports, dependencies, and names of tests."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

REPOSITORY = Path(__file__).parents[2]
ARCHITECTURE: Final = (REPOSITORY / "docs/contribute/architecture.md").read_text(encoding="utf-8")
FOLDERS: Final = ("mptcp_throttle", "sniffer", "daemon", "web", "lab", "packaging", "tests")
MODULES: Final = sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py"))
OURS: Final = {"mptcp_throttle", "mptcp_sniffer", "mptcp_throttled", "mptcp_throttle_web", "mptcp_lab"}
MAY_IMPORT: Final = {
    "mptcp_throttle": {"mptcp_throttle"},
    "sniffer/mptcp_sniffer": {"mptcp_throttle", "mptcp_sniffer"},
    "daemon/mptcp_throttled": {"mptcp_throttle", "mptcp_throttled"},
    "web/mptcp_throttle_web": {"mptcp_throttle", "mptcp_throttle_web"},
}
DAEMON: Final = REPOSITORY / "daemon/mptcp_throttled"
MAY_IMPORT_IN_DAEMON: Final = {
    "vocabulary": set[str](),
    "reporting": {"vocabulary"},
    "policy": {"vocabulary"},
    "fleet": {"vocabulary"},
    "accounting": {"vocabulary", "reporting"},
    "kernel": {"vocabulary"},
    "plan": {"vocabulary"},
    "enforcing": {"vocabulary", "plan"},
    "observing": {"vocabulary", "reporting", "policy", "accounting", "kernel"},
    "control": {"vocabulary", "reporting", "policy", "plan", "enforcing"},
    "answers": {"vocabulary", "reporting", "policy", "accounting", "kernel", "enforcing", "observing", "control"},
    "lifecycle": {
        *("vocabulary", "reporting", "fleet", "accounting", "kernel"),
        *("enforcing", "observing", "control", "answers"),
    },
    "main": {"lifecycle", "control"},
}
"""By the parts of the daemon, the lowest first: a part imports from itself, and from each of these."""

NO_NAMES: Final = {
    *("one", "found", "other", "others", "those", "these", "more"),
    *("somebody", "nobody", "everybody", "anybody"),
}
"""They do not say what they name."""

MAY_BE_CALLED: Final = {
    "mptcp_throttle/cli": {"found"},
    "daemon/mptcp_throttled/kernel": {"one", "found", "others"},
}
"""The exceptions, by folder."""


def _imported(module: Path) -> Iterator[str]:
    """Modules and names of all imports, those for type checking included."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_architecture_names_files_and_folders_that_exist() -> None:
    everything = [f"/{path.relative_to(REPOSITORY)}" for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*")]
    everything += [f"/{folder}" for folder in FOLDERS] + ["/config/mptcp-throttle.yaml"]
    text = re.sub(r"\]\([^)]*\)", "]", ARCHITECTURE)  # Links are checked with those of the other documents.
    named = set(re.findall(r"(?:[\w-]+/)*[\w-]+\.py\b|(?:[\w-]+/)+", text))
    assert len(named) > 40
    assert not {name for name in named if not any(path.endswith(f"/{name.rstrip('/')}") for path in everything)}


def test_architecture_gives_a_reason_for_each_dependency() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    section = ARCHITECTURE.partition("## Why these libraries\n")[2].partition("\n## ")[0]
    explained = [name for row in re.findall(r"^\| (.*?) \| ", section, re.MULTILINE)[1:] for name in row.split(", ")]
    assert sorted(explained) == sorted(re.split(r"[<>=!~\[; ]", requirement)[0] for requirement in requirements)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_stay_inside_one_service_or_go_to_what_is_shared(package: str) -> None:
    modules = list((REPOSITORY / package).rglob("*.py"))
    assert modules
    wrong = {
        str(module.relative_to(REPOSITORY)): foreign
        for module in modules
        if (foreign := {name.partition(".")[0] for name in _imported(module)} & OURS - MAY_IMPORT[package])
    }
    assert not wrong


def test_parts_of_the_daemon_import_what_is_named_and_below_them() -> None:
    parts = list(MAY_IMPORT_IN_DAEMON)
    for position, part in enumerate(parts):
        assert MAY_IMPORT_IN_DAEMON[part] <= {*parts[:position]}, f"{part} would import upward"
    used: dict[str, set[str]] = {part: set() for part in parts}
    for module in DAEMON.rglob("*.py"):
        part = module.relative_to(DAEMON).parts[0].removesuffix(".py")
        names = {name.split(".")[1] for name in _imported(module) if name.startswith("mptcp_throttled.")}
        used.setdefault(part, set()).update(names - {part})
    assert used == {**MAY_IMPORT_IN_DAEMON, "__init__": set()}


def test_proxy_alone_imports_nothing_of_fleets() -> None:
    code = "import sys, mptcp_throttled.lifecycle.serve as _; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "mptcp_throttled.lifecycle.daemon" in loaded
    assert not {"mptcp_throttle.valkey.connection", "mptcp_throttled.fleet"} & {*loaded}


def test_imports_of_setup_know_no_command_line() -> None:
    for module in (REPOSITORY / "mptcp_throttle/setup").rglob("*.py"):
        assert "mptcp_throttle.cli" not in module.read_text(encoding="utf-8"), module


def test_names_of_tests_are_short_and_independent_of_history() -> None:
    wrong = [
        f"{module.relative_to(REPOSITORY)}::{node.name}"
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if len(node.name) > 70 or re.search(r"issue_?\d|_(?=\w*\d)[0-9a-f]{7,40}(_|$)", node.name)
    ]
    assert not wrong, "\n".join(wrong)


def _names(module: Path) -> Iterator[str]:
    """The arguments, variables and attributes that a module names, without leading underscores."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                yield name.lstrip("_")


def test_names_in_product_code_say_what_they_name() -> None:
    modules = {module: module.relative_to(REPOSITORY).as_posix() for module in MODULES}
    wrong = [
        f"{path}: {name}"
        for module, path in modules.items()
        if any(path.startswith(f"{package}/") for package in MAY_IMPORT)
        for name in NO_NAMES.intersection(_names(module))
        if not any(path.startswith(f"{folder}/") and name in names for folder, names in MAY_BE_CALLED.items())
    ]
    assert not wrong, "\n".join(wrong)
