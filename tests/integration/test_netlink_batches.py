"""A batch of changes in one datagram: the kernel carries out each by itself, and answers what it refuses."""

from __future__ import annotations

import json
from typing import Final

from proxy_world import EXECUTABLES

from mptcp_lab.process import run

SCRIPT: Final = """
import json, subprocess
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.htb import htb, tc
subprocess.run("ip link set lo up", shell=True, check=True)
lo, control, rate = tc.find_interface("lo"), tc.TrafficControl(), Rate(1_000_000)
control.add_qdisc(lo, htb.root_qdisc(0), replace=True)
def add(minor):
    return tc.add_class(lo, htb.classid(minor), htb.class_options(rate), rate)
batches = [
    [add(2), add(2), tc.delete_class(lo, htb.classid(9)), add(3)],
    [add(number) for number in range(2, 200)],
    [add(200), add(200)],
]
refusals = [[refusal and refusal.number for refusal in control.carry_out(batch)] for batch in batches]
print(json.dumps([refusals, sorted(htb.minor_of(classid) for classid in control.htb_classes(lo))]))
"""


def test_each_refusal_in_a_batch_is_noticed_and_all_else_carried_out() -> None:
    found = run(["unshare", "--net", EXECUTABLES / "python", "-c", SCRIPT]).stdout
    (mixed, many, last), classes = json.loads(found)
    assert mixed == [None, 17, 2, None]  # EEXIST, ENOENT
    assert many == [17, 17] + 196 * [None]
    assert last == [None, 17]
    assert classes == list(range(2, 201))
