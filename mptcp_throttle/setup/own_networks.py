"""The directory of the access networks: which files are those of the package, and whether new ones fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from mptcp_throttle.config.load import load_config
from mptcp_throttle.config.schema import NETWORKS_DIRECTORY
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.setup.kept_files import read_present
from mptcp_throttle.setup.shipped_files import NETWORK_FILES, shipped
from mptcp_throttle.setup.yaml_edit import set_value

_SUFFIXES: Final = (".yaml", ".yml")


def networks_directory(config: Path, data: Mapping[str, object]) -> Path:
    """Where the access networks of a configuration file with these options are."""
    name = data.get("networks_directory", NETWORKS_DIRECTORY)
    return config.parent / (name if isinstance(name, str) else NETWORKS_DIRECTORY)


def shipped_examples(directory: Path) -> Iterator[Path]:
    """The files of access networks that are as the package has installed them. Raises UserError."""
    for name in NETWORK_FILES:
        if read_present(directory / name) == shipped(name):
            yield directory / name


def has_own_networks(directory: Path) -> bool:
    """Whether there is a file of an access network that somebody has written. Raises UserError."""
    if not directory.is_dir():
        return False
    examples = set(shipped_examples(directory))
    return any(file.suffix in _SUFFIXES and file not in examples for file in directory.iterdir())


def check_together(config: Path, directory: Path, texts: Mapping[str, str], without: set[Path]) -> None:
    """Load the configuration with these files in the directory, and those `without` not in it. Raises ConfigError."""
    with TemporaryDirectory() as name:
        staged = Path(name) / "networks"
        staged.mkdir()
        for file in directory.iterdir() if directory.is_dir() else ():
            if file.name not in texts and file not in without:
                (staged / file.name).symlink_to(file.absolute())
        for file_name, text in texts.items():
            (staged / file_name).write_text(text, encoding="utf-8")
        main = config.read_text(encoding="utf-8")
        changed = set_value(main, ("networks_directory",), str(staged), "")
        if changed is None:
            raise ConfigError([f"{config}: is in a style that setup cannot change; allowed: `option: value` on lines"])
        copy = Path(name) / config.name
        copy.write_text(changed, encoding="utf-8")
        try:
            load_config(copy)
        except ConfigError as error:
            lines = (
                line.replace(str(staged), str(directory)).replace(str(copy), str(config)) for line in error.problems
            )
            raise ConfigError([*lines]) from error
