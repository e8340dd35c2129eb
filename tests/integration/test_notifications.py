"""Traffic control over netlink: notifications of changes by others on our interface, and batches of our own changes."""

from __future__ import annotations

import json
from typing import Final

from proxy_world import EXECUTABLES

from mptcp_lab.process import run

COMMANDS: Final = {
    "tc qdisc add dev ours root handle 4d50: htb default 0": True,
    "tc class add dev ours parent 4d50: classid 4d50:2 htb rate 1mbit": True,
    "tc qdisc add dev ours parent 4d50:2 pfifo limit 7": True,
    "tc filter add dev ours parent 4d50: protocol all prio 1 bpf bytecode '1,6 0 0 0' flowid 4d50:2": True,
    "tc class change dev ours parent 4d50: classid 4d50:2 htb rate 2mbit": True,
    "tc qdisc add dev theirs root pfifo": False,
    "ip address add 10.9.0.1/24 dev ours": True,
    "ip address add 10.9.1.1/24 dev theirs": False,
    "ip link set ours down": True,
    "ip link set ours up": True,
    "ip link set ours name away": True,
    "ip link set away mtu 1400": False,
    "ip link set away name ours": True,
    "tc qdisc replace dev ours root pfifo limit 3": True,
    "ip link delete ours": True,
    "ip link add ours type veth peer name theirs": True,
    "tc qdisc add dev ours root pfifo limit 4": True,
}

SCRIPT: Final = """
import json, subprocess, sys, threading, time
from mptcp_throttled.kernel.interfaces import find_interface
from mptcp_throttled.kernel.tc import TrafficControl
from mptcp_throttled.kernel.watch import Notifications
subprocess.run("ip link add ours up type veth peer name theirs; ip link set theirs up", shell=True, check=True)
changed, tc = threading.Event(), TrafficControl()
def settle():
    while changed.wait(0.5):
        changed.clear()
Notifications(("ours",), tc.ports, changed.set).start()
for attempt in range(100):
    subprocess.run(["ip", "link", "set", "ours", "mtu", str(1300 + attempt)], check=True)
    if changed.wait(0.1):
        break
settle()
noticed = {}
for command in json.loads(sys.argv[1]):
    subprocess.run(command, shell=True, check=True)
    noticed[command] = changed.wait(0.3)
    settle()
ours = find_interface("ours")
(root,) = tc.qdiscs()[ours.index]
tc.delete_qdisc(ours, root)
noticed["by ourselves"] = changed.wait(0.3)
print(json.dumps(noticed))
"""


def test_notifications_report_only_foreign_changes_of_our_interface() -> None:
    script = (EXECUTABLES / "python", "-c", SCRIPT, json.dumps(list(COMMANDS)))
    done = run(["unshare", "--net", *script])
    assert done.stderr == ""
    assert json.loads(done.stdout) == {**COMMANDS, "by ourselves": False}


BATCHES: Final = """
import json, subprocess
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import tc
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.kernel.interfaces import find_interface
from mptcp_throttled.vocabulary import class_ids
subprocess.run("ip link set lo up", shell=True, check=True)
lo, control, rate = find_interface("lo"), tc.TrafficControl(), Rate(1_000_000)
control.add_qdisc(lo, htb.root_qdisc(0), replace=True)
def add(minor):
    return tc.add_class(lo, class_ids.classid(minor), htb.class_options(rate), rate)
batches = [
    [add(2), add(2), tc.delete_class(lo, class_ids.classid(9)), add(3)],
    [add(number) for number in range(2, 200)],
    [add(200), add(200)],
]
refusals = [[refusal and refusal.number for refusal in control.carry_out(batch)] for batch in batches]
print(json.dumps([refusals, sorted(class_ids.minor_of(classid) for classid in control.htb_classes(lo))]))
"""


def test_each_refusal_in_a_batch_is_noticed_and_all_else_carried_out() -> None:
    found = run(["unshare", "--net", EXECUTABLES / "python", "-c", BATCHES]).stdout
    (mixed, many, last), classes = json.loads(found)
    assert mixed == [None, 17, 2, None]  # EEXIST, ENOENT
    assert many == [17, 17] + 196 * [None]
    assert last == [None, 17]
    assert classes == list(range(2, 201))


RATES: Final = """
import json, subprocess
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import tc
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.kernel.interfaces import find_interface
from mptcp_throttled.vocabulary import class_ids
subprocess.run("ip link set lo up", shell=True, check=True)
lo, control = find_interface("lo"), tc.TrafficControl()
control.add_qdisc(lo, htb.root_qdisc(0), replace=True)
rates = [Rate.parse(text) for text in ("1kbit", "34gbit", "40gbit", "100gbit", "1mbit")]
def request(rate, change):
    return tc.add_class(lo, class_ids.classid(2), htb.class_options(rate), rate, change=change)
found = []
for number, rate in enumerate(rates):
    assert control.carry_out([request(rate, number > 0)]) == [None]
    found += [str(htb.rate_of(options)) for options in control.htb_classes(lo).values()]
print(json.dumps(found))
"""


def test_kernel_has_each_rate_that_is_allowed_also_after_another_one() -> None:
    found = run(["unshare", "--net", EXECUTABLES / "python", "-c", RATES]).stdout
    assert json.loads(found) == ["1kbit", "34gbit", "40gbit", "100gbit", "1mbit"]
