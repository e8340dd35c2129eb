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

lab_end() {
    if [[ -n $lab_pid ]]; then
        exec {LAB[1]}>&-
        wait "$lab_pid" || true
        lab_pid=
    fi
}
