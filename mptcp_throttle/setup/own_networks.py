"""The directory of the access networks: which files are those of the package, and whether new ones fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mptcp_throttle.config.load import load_config, network_files_in
from mptcp_throttle.config.schema import NETWORKS_DIRECTORY
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.setup.kept_files import read_present
from mptcp_throttle.setup.line_ends import without_carriage_returns
from mptcp_throttle.setup.shipped_files import NETWORK_FILES, shipped
from mptcp_throttle.setup.staged_files import staged


def networks_directory(config: Path, data: Mapping[str, object]) -> Path:
    """Where the access networks of a configuration file with these options are."""
    name = data.get("networks_directory", NETWORKS_DIRECTORY)
    return config.parent / (name if isinstance(name, str) else NETWORKS_DIRECTORY)


def shipped_examples(directory: Path) -> Iterator[Path]:
    """The files of access networks that are as the package has installed them. Raises UserError."""
    for name in NETWORK_FILES:
        present = read_present(directory / name)
        if present is not None and without_carriage_returns(present) == shipped(name):
            yield directory / name


def has_own_networks(directory: Path) -> bool:
    """Whether there is a file of an access network that somebody has written. Raises UserError."""
    examples = set(shipped_examples(directory))
    return any(file not in examples for file in _network_files(directory))


def check_together(config: Path, directory: Path, texts: Mapping[str, str], without: set[Path]) -> None:
    """Load the configuration with these files in the directory, and those `without` not in it.

    Raises ConfigError, and UserError if temporary files cannot be written.
    """
    others = [file for file in _network_files(directory) if file.name not in texts and file not in without]
    with staged(texts) as stage:
        files = [*others, *(stage / name for name in texts)]
        try:
            load_config(config, sorted(files, key=lambda path: path.name))
        except ConfigError as error:
            raise ConfigError([line.replace(str(stage), str(directory)) for line in error.problems]) from error


def _network_files(directory: Path) -> list[Path]:
    """Those of access networks that are there now; none if there is no such directory."""
    return network_files_in(directory) if directory.is_dir() else []
