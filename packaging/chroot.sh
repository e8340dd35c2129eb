# Chroots for packaging/build and packaging/test, which source this file. Each base is a tar archive in $cache. The host's
# archive, certificates and pip configuration are used, and none is named here.

cache=/var/cache/mptcp-throttle
packaging=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
work=

say() { echo "$name: $*" >&2; }
fail() { say "$1"; exit "${2:-1}"; }

clean_up() {
    local status=$?
    if declare -F shut_down >/dev/null; then shut_down; fi
    # The mounts of in_chroot have ended with its command, so nothing of the host is below.
    if [[ -n $work ]]; then rm -rf --one-file-system -- "$work"; fi
    exit "$status"
}

# begin: the checks and the directory $work that both scripts need.
begin() {
    ((EUID == 0)) || fail "must be run as root: it makes a chroot" 77
    command -v debootstrap >/dev/null || fail "debootstrap is missing: apt install debootstrap"
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    mkdir -p -- "$cache"
    # Only one process at a time may write the cache. The lock ends with this process.
    exec 9<"$cache"
    flock 9
    find "$cache" -name '*.tmp' -delete
    # Beside the cache, since /tmp may be small or without device files.
    work=$(mktemp -d -- "$cache/work.XXXXXX")
    # A user of the chroot, such as that of apt, must get through.
    chmod 755 -- "$work"
    log=$work/log
}

# quietly COMMAND...: its output is shown only if it fails.
quietly() {
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 60 -- "$log" >&2
        fail "failed: $*"
    fi
}

# in_chroot ROOT COMMAND...: the command's mounts are in a namespace of their own, which ends with it.
in_chroot() {
    local root=$1 variable environment=()
    shift
    for variable in http_proxy https_proxy no_proxy; do
        if [[ -n ${!variable-} ]]; then environment+=("$variable=${!variable}"); fi
    done
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "${environment[@]}" \
        unshare --mount sh -ec '
            root=$1
            shift
            mount -t proc proc "$root/proc"
            mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
            exec chroot "$root" "$@"
        ' sh "$root" "$@" 9<&-
}

# The archive that this host uses for Debian itself.
archive() {
    apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' 'Created-By: Packages' |
        awk '$2 == "Debian" && $3 == "Debian" && !found { print $1; found = 1 }'
}

# save ROOT BASE: a base is complete or does not exist.
save() {
    quietly tar --create --one-file-system --numeric-owner --file "$2.tmp" --directory "$1" .
    mv -- "$2.tmp" "$2"
}

unpack() {
    mkdir -- "$2"
    quietly tar --extract --numeric-owner --same-permissions --file "$1" --directory "$2"
    # Names and certificates are those of the host.
    cp -- /etc/resolv.conf /etc/hosts "$2/etc/"
}

is_recent() { [[ -n $(find "$1" -mtime -7 2>/dev/null) ]]; }

# minimal_base RELEASE: the path of a base with Debian's essential packages and apt, a week old at most.
minimal_base() {
    local base=$cache/minimal-$1.tar root=$work/minimal url
    if ! is_recent "$base"; then
        say "making a minimal Debian ($1)"
        url=$(archive)
        [[ -n $url ]] || fail "apt knows no Debian archive: run apt-get update"
        quietly unshare --mount debootstrap --variant=minbase "$1" "$root" "$url"
        # A service that starts in the chroot would be one of the host.
        printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
        chmod 755 -- "$root/usr/sbin/policy-rc.d"
        rm -f -- "$root"/var/cache/apt/archives/*.deb
        save "$root" "$base"
        rm -rf --one-file-system -- "$root"
    fi
    echo "$base"
}
