"""Real disks that become full, fail or hang: small file systems and devices on loop devices. They need root.

- full: ballast takes the space of the file system
- full below: a block device on a sparse image in a small memory file system refuses blocks that were never written, as
  a thin volume does
- failing: ext4 is shut down, and every access gets EIO until it is mounted again; what was not synced is lost
- hanging: the file system is frozen

The kernel's device mapper would be the usual way to the last two; containers and small kernels are without it.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

BLOCK_BYTES = 4096
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = (2).to_bytes(4, "little")


def losetup(*arguments: str) -> str:
    """Run the program; returns its output. Raises CalledProcessError."""
    return subprocess.run(["losetup", *arguments], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def loop_device(image: Path, *options: str) -> Iterator[Path]:
    """Attach an image to a free loop device. Skips the test where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    if shutil.which("losetup") is None:
        pytest.skip("losetup is not installed")
    try:
        device = losetup(*options, "-f", "--show", str(image))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device to be had: {error.stderr.strip()}")
    try:
        yield Path(device)
    finally:
        losetup("-d", device)


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    """Mount on a folder. Skips the test where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount file systems")
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class SmallDisk:
    """A mounted ext4 file system."""

    def __init__(self, device: Path, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._device = device
        self._stack = stack
        self._mount()

    def fail(self) -> None:
        """Answer every access with EIO from now on, and lose what was not synced."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def repair(self) -> None:
        """Mount it again; nobody may use it any more."""
        self._stack.close()
        self._mount()

    def _mount(self) -> None:
        self._stack.enter_context(mounted(self.folder, str(self._device)))


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a small ext4 file system under `folder`; whatever uses it must have ended when the block does."""
    with loop_device(sparse_image(folder / "disk.image", size_bytes)) as device:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not installed")
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(device)], check=True, capture_output=True)
        with ExitStack() as stack:
            yield SmallDisk(device, folder / "disk", stack)


@contextmanager
def thin_device(folder: Path, size_bytes: int, *, room_bytes: int) -> Iterator[tuple[Path, Path]]:
    """Attach a block device of which only `room_bytes` can be written; yields it and the folder that holds its data."""
    with (
        mounted(folder / "thin", "-t", "tmpfs", "-o", f"size={room_bytes}", "none") as below,
        loop_device(sparse_image(below / "image", size_bytes)) as device,
    ):
        yield device, below


def sparse_image(path: Path, size_bytes: int) -> Path:
    """Create a file without any block."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return path


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Take all space of the file system that is left, until the block ends."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(BLOCK_BYTES))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """Let every write to the file system hang, until the block ends."""
    if shutil.which("fsfreeze") is None:
        pytest.skip("fsfreeze is not installed")
    subprocess.run(["fsfreeze", "--freeze", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=True)
