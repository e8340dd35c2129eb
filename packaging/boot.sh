# systemd in a chroot, for the tests in this directory, which source this file after chroot.sh. It has a network, processes,
# mounts and a cgroup of its own, so that nothing in it changes this host.

init=
cgroup=

# $1: the chroot.
boot_script='
root=$1
mount --bind "$root" "$root"
mount --bind "$root/dev" "$root/dev"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t proc proc "$root/proc"
# Kernel parameters outside of the network namespace are those of this host.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
for inside in ipv4/conf ipv4/neigh ipv4/ip_forward ipv6/conf ipv6/neigh mptcp; do
    mount --bind "$root/proc/sys/net/$inside" "$root/proc/sys/net/$inside"
    mount -o remount,bind,rw "$root/proc/sys/net/$inside"
done
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
ip link set lo up
if ! ip link show eth0 >/dev/null 2>&1; then
    ip link add eth0 type veth peer name eth1
    ip link set eth0 up
fi
cd "$root"
mkdir -p .host
pivot_root . .host
umount --lazy /.host
rmdir /.host
export container=packaging
exec /lib/systemd/systemd --unit=basic.target --show-status=no
'

# boot ROOT [NAMESPACE]: returns when systemd runs. Its network is the named network namespace, or one of its own.
boot() {
    local mount network=(unshare --net)
    if (($# > 1)); then network=(nsenter "--net=/run/netns/$2"); fi
    mount=$(findmnt --noheadings --first-only --output TARGET --types cgroup2)
    cgroup=$mount/mptcp-throttle-packaging-$$
    mkdir -- "$cgroup"
    sh -ec '
        echo $$ >"$1/cgroup.procs"
        script=$2 root=$3
        shift 3
        exec "$@" unshare --cgroup --mount --pid --fork --kill-child=SIGKILL --uts --ipc sh -ec "$script" sh "$root"
    ' sh "$cgroup" "$boot_script" "$1" "${network[@]}" </dev/null >"$work/systemd.log" 2>&1 9<&- &
    init=$!
    for _ in {1..60}; do
        if booted systemctl is-active --quiet basic.target 2>/dev/null; then return; fi
        sleep 0.5
    done
    cat -- "$work/systemd.log" >&2
    fail "systemd does not start in the chroot"
}

# booted COMMAND...: where systemd runs.
booted() {
    local first
    first=$(<"/proc/$init/task/$init/children")
    first=${first%% *}
    [[ -n $first ]] || return
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        nsenter --target "$first" --mount --pid --net --root --wd "$@" 9<&-
}

shut_down() {
    if [[ -n $init ]]; then
        kill -KILL "$init" 2>/dev/null || true
        wait "$init" 2>/dev/null || true
        init=
    fi
    if [[ -n $cgroup ]]; then
        # Processes take a moment to end.
        for _ in {1..50}; do
            if find "$cgroup" -depth -type d -exec rmdir -- {} + 2>/dev/null; then break; fi
            sleep 0.1
        done
        cgroup=
    fi
}
