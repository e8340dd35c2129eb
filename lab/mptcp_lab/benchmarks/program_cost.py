"""What the kernel's verifier says of each kernel program, beside what is recorded for this kernel.

`instructions`: those that the verifier has followed, at most 1 000 000. `stack`: in bytes. `milliseconds`: of the
check. `tests/integration/test_program_cost.py` fails if instructions or stack are more than 1.1 times what is recorded.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.program_cost import costs, record, recorded


def main() -> int:
    """Print a line per program."""
    parser = command_line("program-cost", __doc__)
    parser.add_argument("--record", action="store_true", help="replace what is recorded for this kernel")
    options = parser.parse_args()
    known, found = recorded(), costs()
    row = "{:24} {:>12} {:>9} {:>6} {:>9} {:>13}"
    print(row.format("program", "instructions", "recorded", "stack", "recorded", "milliseconds"))
    for cost in found:
        before = known.get((cost.kernel, cost.program))
        instructions, stack = ("-", "-") if before is None else (before.instructions, before.stack)
        print(row.format(cost.program, cost.instructions, instructions, cost.stack, stack, f"{cost.milliseconds:.1f}"))
    if options.record:
        record(found)
    write_json(options.json, [asdict(cost) for cost in found])
    return 0


if __name__ == "__main__":
    sys.exit(main())
