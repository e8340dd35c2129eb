# A real client with two access networks, a router and an origin server around a booted chroot, for the tests in this
# directory, which source this file after checks.sh. The lab is that of the test suite: lab/bootstrap makes it.

lab_pid=
answer=

# lab_begin: sets $namespace, the network namespace in which to boot.
lab_begin() {
    local python=$packaging/../.venv/bin/python
    [[ -x $python ]] || fail "the lab is missing: run lab/bootstrap"
    coproc LAB { exec "$python" -m mptcp_lab.package_network 2>"$work/lab.log" 9<&-; }
    lab_pid=$LAB_PID
    read -r -t 60 namespace <&"${LAB[0]}" || fail_of_lab "the lab does not start"
}

fail_of_lab() {
    cat -- "$work/lab.log" >&2
    fail "$1"
}

# lab REQUEST...: sets $answer.
lab() {
    echo "$*" >&"${LAB[1]}" || fail_of_lab "$*"
    read -r -t 120 answer <&"${LAB[0]}" || fail_of_lab "$*"
}

# held WHEN: the cap of 1 Mb/s holds on a network, and the uncapped network carries the load.
held() {
    local capped uncapped
    lab rates 3
    read -r capped uncapped <<<"$answer"
    between "$1: Mb/s on the capped network" "$capped" 0.6 1.3
    between "$1: Mb/s on the uncapped network" "$uncapped" 10 60
}

# no_gap WHEN SECONDS: since the last call nothing was missing for longer than that.
no_gap() {
    lab gap
    between "$1: seconds without delivery, at most" "$answer" 0 "$2"
}

lab_end() {
    if [[ -n $lab_pid ]]; then
        exec {LAB[1]}>&-
        wait "$lab_pid" || true
        lab_pid=
    fi
}
