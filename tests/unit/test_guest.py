"""The parts of the guest that need no qemu: archive, module order, kernel image, output and its end mark."""

from __future__ import annotations

import lzma
import struct
from pathlib import Path

import pytest

from mptcp_lab.guest import cpio
from mptcp_lab.guest.bzimage import Payload
from mptcp_lab.guest.initramfs import Job, build
from mptcp_lab.guest.kernels import Kernel, newest
from mptcp_lab.guest.modules import load_order, name_of
from mptcp_lab.guest.ports import Output
from mptcp_lab.lab_errors import LabError


def test_the_archive_is_the_newc_format_of_cpio() -> None:
    archive = cpio.archive([cpio.directory("bin"), cpio.file("bin/odd", "odd", executable=True)])
    assert archive == (
        b"070701" b"00000001" b"000041ED" b"00000000" b"00000000" b"00000001" b"00000000" b"00000000"
        b"00000000" b"00000000" b"00000000" b"00000000" b"00000004" b"00000000" b"bin\0" b"\0\0"
        b"070701" b"00000002" b"000081ED" b"00000000" b"00000000" b"00000001" b"00000000" b"00000003"
        b"00000000" b"00000000" b"00000000" b"00000000" b"00000008" b"00000000" b"bin/odd\0" b"\0\0" b"odd\0"
        b"070701" b"00000003" b"00000000" b"00000000" b"00000000" b"00000001" b"00000000" b"00000000"
        b"00000000" b"00000000" b"00000000" b"00000000" b"0000000B" b"00000000" b"TRAILER!!!\0" b"\0\0\0"
    )  # fmt: skip


DEPENDENCIES = """\
kernel/fs/overlayfs/overlay.ko:
kernel/fs/fuse/virtiofs.ko: kernel/fs/fuse/fuse.ko kernel/drivers/virtio/virtio_ring.ko
kernel/fs/fuse/fuse.ko:
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/char/virtio-rng.ko.xz: kernel/drivers/virtio/virtio_ring.ko
"""
BUILTIN = "kernel/drivers/virtio/virtio_pci.ko\nkernel/fs/ext4/ext4.ko\n"


@pytest.mark.parametrize(
    ("wanted", "order"),
    [
        ([], []),
        (["overlay"], ["overlay"]),
        (["virtiofs"], ["virtio_ring", "fuse", "virtiofs"]),
        (["virtiofs", "virtio_rng", "fuse"], ["virtio_ring", "fuse", "virtiofs", "virtio_rng"]),
        (["virtio_pci", "overlay"], ["overlay"]),
    ],
)
def test_modules_are_loaded_after_what_they_need(wanted: list[str], order: list[str]) -> None:
    assert [name_of(path) for path in load_order(DEPENDENCIES, BUILTIN, wanted)] == order


def test_a_module_that_the_kernel_lacks_is_named() -> None:
    with pytest.raises(ValueError, match=r"the kernel has no module 9p$"):
        load_order(DEPENDENCIES, BUILTIN, ["overlay", "9p"])


def bzimage(payload: bytes, *, setup_sectors: int, offset: int) -> bytes:
    image = bytearray((setup_sectors + 1) * 512 + offset)
    image[0x1F1] = setup_sectors
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, offset, len(payload) + 4)
    return bytes(image) + payload + b"size" + b"what follows it"


ZSTD, LZ4 = b"\x28\xb5\x2f\xfd", b"\x02\x21\x4c\x18"


@pytest.mark.parametrize(("magic", "program"), [(ZSTD, "zstd"), (LZ4, "lz4")])
@pytest.mark.parametrize(("setup_sectors", "offset"), [(1, 0), (27, 0x1F3)])
def test_the_kernel_is_found_in_its_image(magic: bytes, program: str, setup_sectors: int, offset: int) -> None:
    payload = Payload.of(bzimage(magic + b"compressed", setup_sectors=setup_sectors, offset=offset))
    assert (payload.data, payload.command[0]) == (magic + b"compressed", program)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", "is not a Linux bzImage"),
        (b"\x7fELF" + bytes(2000), "is not a Linux bzImage"),
        (bzimage(b"BZh9", setup_sectors=4, offset=0), r"in an unknown way \(425a6839\); allowed: zstd, lz4"),
    ],
)
def test_an_image_without_a_kernel_for_us_is_refused(image: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Payload.of(image)


METAPACKAGES = """\
linux-image-6.12-cloud-amd64
  Depends: linux-image-6.12.117+deb12-cloud-amd64
linux-image-cloud-amd64
  Depends: linux-image-6.1.0-56-cloud-amd64
"""


@pytest.mark.parametrize(
    ("series", "package"),
    [("6.1", "linux-image-6.1.0-56-cloud-amd64"), ("6.12", "linux-image-6.12.117+deb12-cloud-amd64"), ("6.11", None)],
)
def test_the_newest_kernel_of_a_series_is_what_its_metapackage_depends_on(series: str, package: str | None) -> None:
    assert newest(series, METAPACKAGES) == package


END_MARK = b"[4d50]"


@pytest.mark.parametrize("output", [b"", b"text\n", b"\0", b"[", b"[4d5", b"[4d[4d50"])
@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_output_arrives_without_its_end_mark(output: bytes, step: int) -> None:
    arrived = bytearray()
    port = Output(arrived.extend, END_MARK)
    stream = output + END_MARK
    for start in range(0, len(stream), step):
        assert not port.complete
        port.feed(stream[start : start + step])
    port.break_off()
    assert (bytes(arrived), port.complete) == (output, True)


def test_output_that_breaks_off_arrives_whole_and_most_of_it_at_once() -> None:
    arrived = bytearray()
    port = Output(arrived.extend, END_MARK)
    port.feed(b"progress [4d")
    assert arrived == b"progress "
    port.break_off()
    assert (bytes(arrived), port.complete) == (b"progress [4d", False)


def make_kernel(directory: Path) -> Kernel:
    modules = directory / "lib/modules/6.1.0-test"
    for name in ("virtio_console", "virtio_rng", "virtiofs"):
        (modules / f"{name}.ko").parent.mkdir(parents=True, exist_ok=True)
        (modules / f"{name}.ko").write_text(f"<{name}>")
    (modules / "overlay.ko.xz").write_bytes(lzma.compress(b"<overlay>"))
    (modules / "modules.dep").write_text("".join(f"{path.name}:\n" for path in modules.glob("*.ko*")))
    (modules / "modules.builtin").write_text("kernel/drivers/virtio/virtio_pci.ko\n")
    return Kernel("debian-test", directory)


@pytest.fixture
def _busybox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "busybox").write_text("<busybox>")
    (tmp_path / "busybox").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("_busybox")
def test_the_initramfs_holds_the_job_word_for_word(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo 'one  two' $HOME"]
    job = Job(command, Path("/work dir"), "[4d50]", [Path("/a b"), Path("/c")], [Path("/venv/bin")])
    archive = build(make_kernel(tmp_path), job)
    assert b"\nexec sh -c 'echo '\"'\"'one  two'\"'\"' $HOME'\n" in archive
    assert b"export PATH=/venv/bin:/usr/local/sbin:" in archive
    assert b"export MPTCP_LAB_GUEST=debian-test\n" in archive
    assert b"directory='/work dir'\n" in archive
    assert b"end_mark='[4d50]'\n" in archive
    assert b"/a b\n/c\n" in archive
    assert b"load_order='virtio_rng virtio_console virtiofs overlay'\n" in archive
    assert b"<overlay>" in archive


@pytest.mark.usefixtures("_busybox")
def test_a_kernel_without_a_needed_module_is_refused(tmp_path: Path) -> None:
    kernel = make_kernel(tmp_path)
    (kernel.modules / "modules.builtin").write_text("")
    with pytest.raises(LabError, match=r"^debian-test: the kernel has no module virtio_pci$"):
        build(kernel, Job(["true"], Path("/"), ""))
