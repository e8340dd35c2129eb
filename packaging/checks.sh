# What the tests in this directory have in common; they source this file after boot.sh.

ok() { say "ok: $*"; }

# expect WHAT COMMAND...
expect() {
    local what=$1
    shift
    "$@" >"$log" 2>&1 </dev/null || {
        cat -- "$log" >&2
        if [[ -n $init ]]; then booted journalctl --no-pager --lines=30 >&2 || true; fi
        fail "$what: $*"
    }
    ok "$what"
}

# eventually WHAT SECONDS COMMAND...
eventually() {
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until "$@" >"$log" 2>&1 </dev/null; do
        ((SECONDS < end)) || {
            cat -- "$log" >&2
            if [[ -n $init ]]; then booted journalctl --no-pager --lines=30 >&2 || true; fi
            fail "not within time: $what: $*"
        }
        sleep 0.1
    done
    ok "$what"
}

# between WHAT VALUE LEAST MOST
between() {
    awk -v value="$2" -v least="$3" -v most="$4" 'BEGIN { exit !(value >= least && value <= most) }' ||
        fail "$1: $2; allowed: $3 to $4"
    ok "$1: $2"
}

apt() { quietly in_chroot "$chroot" apt-get "$@" --yes --no-install-recommends; }

# release_of DEB
release_of() {
    [[ -f $1 ]] || fail "$1: no such package" 2
    case $(dpkg-deb --field "$1" Version) in
        *+deb12*) echo bookworm ;;
        *+deb13*) echo trixie ;;
        *) fail "$1: its version names no Debian release; allowed: what packaging/build writes" 2 ;;
    esac
}

# next_version DEB NEXT: the same package with the next version.
next_version() {
    local unpacked=$work/next
    quietly dpkg-deb --raw-extract "$1" "$unpacked"
    sed -i '/^Version: /s/$/.1/' "$unpacked/DEBIAN/control"
    quietly dpkg-deb --root-owner-group --build "$unpacked" "$2"
    rm -r -- "$unpacked"
}

# fresh_chroot RELEASE: sets $chroot.
fresh_chroot() {
    local minimal
    minimal=$(minimal_base "$1")
    chroot=$work/chroot
    unpack "$minimal" "$chroot"
    mkdir -- "$chroot/build"
}
