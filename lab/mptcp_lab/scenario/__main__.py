"""`mptcp-lab`, or `python -m mptcp_lab.scenario`: the exit status is described in `--help`."""

from __future__ import annotations

import sys

from mptcp_lab.program import run_program


def main() -> int:
    """Run the command line."""

    def work() -> int:
        from mptcp_lab.scenario.lab_cli import run

        return run("mptcp-lab")

    return run_program("mptcp-lab", work)


if __name__ == "__main__":
    sys.exit(main())
