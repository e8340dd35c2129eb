# The second program of the guest, on the host's file system: runs the command and reports its exit status.
. /run/guest/settings
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

die() {
    echo "guest: $1"
    /run/guest/busybox poweroff -f
}

ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr

echo "$kernel" >/proc/sys/kernel/hostname
printf '%s\n' "127.0.0.1 localhost $kernel" "::1 localhost" >/etc/hosts
# No name server can be reached: ask none, instead of waiting for it. On many hosts the file is a link into /run.
rm -f /etc/resolv.conf
: >/etc/resolv.conf
ip link set lo up

version=${kernel_modules##*/}
mkdir -p /lib/modules
[ -e "/lib/modules/$version" ] || ln -s "$kernel_modules" "/lib/modules/$version"

number=0
while read -r share; do
    mount -t virtiofs "share$number" "$share" || die "cannot mount $share"
    number=$((number + 1))
done </run/guest/shares

# Ports have numbers in /dev, and names in /sys which appear a moment after the driver has been loaded.
port() {
    until file=$(grep -lx "$1" /sys/class/virtio-ports/*/name); do
        sleep 0.01
    done 2>/dev/null
    file=${file%/name}
    echo "/dev/${file##*/}"
}

# A port can be opened once only, and programs do open /dev/stderr: they get pipes.
exec 3>"$(port output)" 4>"$(port errors)" 5>"$(port report)"
mkfifo /run/guest/output /run/guest/errors
cat </run/guest/output >&3 &
output_reader=$!
cat </run/guest/errors >&4 &
errors_reader=$!
cd "$directory" || die "$directory: no such directory"
echo begun >&5
setsid sh /run/guest/command >/run/guest/output 2>/run/guest/errors 3>&- 4>&- 5>&- </dev/null
status=$?
# What the command left running could hold the pipes open.
for process in /proc/[0-9]*; do
    case ${process#/proc/} in
        $$ | "$output_reader" | "$errors_reader") ;;
        *) kill -KILL "${process#/proc/}" 2>/dev/null ;;
    esac
done
wait "$output_reader" "$errors_reader"
printf %s "$end_mark" >&3
printf %s "$end_mark" >&4
echo "$status" >&5
# The host ends this machine as soon as it has read all that.
sleep 60
