"""`python -m mptcp_lab.demo`: the exit status is described in `--help`."""

from __future__ import annotations

import sys

from mptcp_lab.program import run_program


def main() -> int:
    """Run the demo."""

    def work() -> int:
        from mptcp_lab.demo.command import run

        return run("run-demo")

    return run_program("run-demo", work)


if __name__ == "__main__":
    sys.exit(main())
