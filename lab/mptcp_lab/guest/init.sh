#!/bin/busybox sh
# The first program of the guest, in the initramfs: puts the host's file system, read-only, below a layer in memory.
/bin/busybox mkdir /proc
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
. /settings

die() {
    echo "guest: $1"
    poweroff -f
}

mkdir -p /sys /dev /lower /layer /host
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in $load_order; do
    insmod "/modules/$module" || die "cannot load the module $module"
done
mount -t virtiofs -o ro host /lower || die "cannot mount the host's file system"
mount -t tmpfs -o size=75% tmpfs /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work overlay /host ||
    die "cannot put a layer above the host's file system"

for directory in proc sys dev; do
    mount --move "/$directory" "/host/$directory"
done
cd /host
mkdir -p dev/pts dev/shm dev/net
# As systemd makes it from the modules' lists (kmod static-nodes): who opens it loads the module.
mknod -m 666 dev/net/tun c 10 200
mount -t devpts devpts dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755,size=75% tmpfs run
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t bpf bpf sys/fs/bpf
mount -t tracefs tracefs sys/kernel/tracing
mkdir run/guest run/lock run/netns
mkdir -m 1777 run/tmp
cp /bin/busybox /settings /shares /command /start run/guest/
exec switch_root /host /bin/sh /run/guest/start
