"""Compiles the BPF programs before the package is built; everything else is in pyproject.toml."""

import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithPrograms(build_py):
    """`build_py`, after `make` in the directory of the programs."""

    def run(self) -> None:
        """Compile, then build."""
        subprocess.run(["make", "-C", "daemon/mptcp_throttled/kernel/bpf"], check=True)
        super().run()


setup(cmdclass={"build_py": BuildWithPrograms})
