"""`python -m mptcp_lab.guest`: ends with the command's exit status, or one that says why there is none."""

from __future__ import annotations

import sys

from mptcp_lab.guest import EX_NO_STATUS
from mptcp_lab.program import run_program


def main() -> int:
    """Run the guest; the exit status is described in `--help`."""

    def work() -> int:
        from mptcp_lab.guest.command import main as run

        return run("guest")

    # Every other status could be that of the command.
    return run_program("guest", work, failure=EX_NO_STATUS)


if __name__ == "__main__":
    sys.exit(main())
