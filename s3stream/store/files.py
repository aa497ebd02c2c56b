"""The blocking part of the local store: objects as files, which are complete and durable or absent.

An object is a file at the path of its key, followed by a trailer of 128 bytes with the writer's id. The trailer is in
the file, so that plain copies and backups of the directory keep it (many lose extended attributes). A file that other
programs read (`is_plain`) has no trailer: it is in a hidden file beside it, which is written first and claims the key.
A file is written under a temporary name, synced, and linked to its place without replacing an existing file; then the
directories up to the root are synced. A crash leaves files in `.anabranch-tmp`, which `prepare` removes when they are a
day old, and perhaps the hidden file of a key that no object will have.
"""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

from crc32c import crc32c

from anabranch.platform import copy_range, sync, sync_folder
from anabranch.s3stream.errors import ObjectExists, ObjectNotFound, ObjectTooShort, StoreError
from anabranch.s3stream.store.direct import FileWriter
from anabranch.s3stream.store.folders import create_folder
from anabranch.s3stream.store.interface import PartReceipt, StoredObject
from anabranch.s3stream.store.recycled import ReadBufferPool
from anabranch.s3stream.store.rules import check_key, check_range, check_receipts, is_plain
from anabranch.wal.interface import Buffer

TRAILER = Struct("<8sIH")  # magic, CRC32C of the writer id, its length; then the writer id, padded with zeros
TRAILER_MAGIC = b"ANABWRTR"
TRAILER_BYTES = 128
WRITER_ID_BYTES_MAX = TRAILER_BYTES - TRAILER.size
TEMPORARY = ".anabranch-tmp"
TEMPORARY_AGE_SECONDS_MAX = 24 * 3600
PRIVATE_MODE = 0o600
PLAIN_MODE = 0o640
"""Mode of files that other programs read, less the umask: theirs may be other users of the node's group."""
_READ_BYTES_MAX = 1 << 30
_READ_BYTES = 512 * 1024
"""Bytes per read call beside a log: the kernel does not yield the processor while it copies from the page cache."""
_READ_PAUSE_S = 0.0001
"""Pause between read calls, so that the log's threads wait for one call at most."""
_COPY_BYTES = 8 * 1024 * 1024
_CREATE_ATTEMPTS = 100
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_COPY_RANGE = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class ObjectFiles:
    """Objects as files under `root`. Every error is a StoreError that names store and key."""

    def __init__(self, name: str, root: Path, *, memory: ReadBufferPool | None = None, beside_log: bool = True) -> None:
        """`memory` is what reads return; `beside_log`: pause in long reads, for the threads of a log in the process."""
        self.name = name
        self.root = root
        self.temporary = root / TEMPORARY
        self.writer = FileWriter()
        self.memory = memory or ReadBufferPool()
        self._piece_bytes = _READ_BYTES if beside_log else _READ_BYTES_MAX
        self._plain_mode = PRIVATE_MODE

    def prepare(self) -> None:
        """Create the directory, check that it can be written, remove old temporary files."""
        with self.explain(str(self.root)):
            create_folder(self.root)
            self.temporary.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.temporary) as folder:
                probe = Path(folder) / "probe"
                probe.touch(PLAIN_MODE)
                status = probe.stat()
            now, self._plain_mode = status.st_mtime, stat.S_IMODE(status.st_mode)
            for each in self.temporary.iterdir():
                if now - _newest(each) > TEMPORARY_AGE_SECONDS_MAX:
                    _remove(each)

    def check(self) -> None:
        """Check that the directory exists and can be read. Changes nothing."""
        with self.explain(str(self.root)):
            os.scandir(self.root).close()

    def put(self, key: str, parts: Sequence[Buffer], writer_id: str) -> int:
        """Create an object; return its size."""
        file = NewFile(self, key, writer_id)
        try:
            file.open()
            file.write(parts)
            file.publish()
        finally:
            file.close()
        return file.size_bytes

    def read(self, key: str, start: int, end: int) -> memoryview:
        """Return bytes [start, end) of an object."""
        check_range(start, end, where=f"{self.name}:{key}")
        with self.explain(key), self.opened(key) as (fd, size):
            if end > size:
                raise ObjectTooShort(f"{self.name}:{key}: asked for bytes [{start}, {end}) of {size}")
            data = self.memory.take(end - start)
            filled = 0
            while filled < len(data):
                if filled:
                    time.sleep(_READ_PAUSE_S)
                count = os.preadv(  # noqa: TID251 - objects, not the log
                    fd, [data[filled : filled + self._piece_bytes]], start + filled
                )
                if not count:
                    raise OSError(errno.EIO, f"file ends at {start + filled}, {end} expected")
                filled += count
            return data.toreadonly()

    def read_tail(self, key: str, size_bytes: int) -> tuple[bytes, int]:
        """Return the last `size_bytes` of an object, and its size."""
        with self.explain(key), self.opened(key) as (fd, size):
            return _read(fd, max(0, size - size_bytes), size), size

    def writer_id(self, key: str) -> str | None:
        """Return the id of the object's writer, None if there is no such object."""
        try:
            with self.explain(key), self.opened(key) as (fd, size):
                trailer = (
                    _beside(self.path(key)).read_bytes() if is_plain(key) else _read(fd, size, size + TRAILER_BYTES)
                )
        except ObjectNotFound:
            return None
        return self._writer_in(trailer, f"{self.name}:{key}: bad trailer at {size}")

    def delete(self, keys: Sequence[str]) -> dict[str, StoreError]:
        """Delete objects and directories that become empty; return an error for each key that could not be deleted."""
        failed: dict[str, StoreError] = {}
        touched: set[Path] = set()
        for key in keys:
            try:
                with self.explain(key), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    touched.add(self._unlink(key))
            except StoreError as error:
                failed[key] = error
        for folder in touched:
            with contextlib.suppress(FileNotFoundError):
                sync_folder(folder)
        return failed

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        """Yield all objects whose keys begin with `prefix`, in key order."""
        with self.explain(prefix):
            yield from self._walk(self.root, "", prefix)

    def start_upload(self, key: str, writer_id: str) -> "UploadFiles":
        """Create the directory for the parts of an upload."""
        ending = self.ending(key, writer_id)
        with self.explain(key):
            return UploadFiles(self, key, writer_id, ending, Path(tempfile.mkdtemp(dir=self.temporary, prefix="up-")))

    def drop_upload(self, key: str, upload_id: str) -> None:
        """Delete the parts of an upload. An upload that does not exist is no error."""
        if "/" in upload_id or not upload_id.startswith("up-"):
            raise StoreError(f"{self.name}:{key}: bad upload id {upload_id!r}")
        with self.explain(key):
            _remove(self.temporary / upload_id)

    def path(self, key: str) -> Path:
        """Return the path of an object."""
        check_key(key, where=self.name)
        return self.root / key

    def trailer(self, key: str, writer_id: str) -> bytes:
        """Return the trailer for an object of that writer. Also checks the key."""
        self.path(key)
        writer = writer_id.encode()
        if len(writer) > WRITER_ID_BYTES_MAX:
            raise StoreError(f"{self.name}:{key}: writer id of {len(writer)} bytes: expected <= {WRITER_ID_BYTES_MAX}")
        return (TRAILER.pack(TRAILER_MAGIC, crc32c(writer), len(writer)) + writer).ljust(TRAILER_BYTES, b"\0")

    def ending(self, key: str, writer_id: str) -> bytes:
        """Return what follows the bytes of an object of that writer in its file. Also checks the key."""
        trailer = self.trailer(key, writer_id)
        return b"" if is_plain(key) else trailer

    def publish(self, temporary: Path, key: str, writer_id: str) -> None:
        """Link a complete, synced file to its place, durably. An existing object of the same writer is a success."""
        target = self.path(key)
        temporary.chmod(self._plain_mode if is_plain(key) else PRIVATE_MODE)
        for attempt in range(_CREATE_ATTEMPTS):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                if is_plain(key):
                    self._claim(key, writer_id)
                target.hardlink_to(temporary)
                break
            except OSError as error:
                # A concurrent delete may remove a directory while it is empty.
                if attempt + 1 == _CREATE_ATTEMPTS or not isinstance(error, FileExistsError | FileNotFoundError):
                    raise
                if target.exists():
                    found = self.writer_id(key)
                    if found == writer_id:
                        break
                    if found is not None:
                        raise ObjectExists(f"{self.name}:{key}: written by {found!r}, not {writer_id!r}") from None
        for folder in target.parents:
            sync_folder(folder)
            if folder == self.root:
                break

    def _claim(self, key: str, writer_id: str) -> None:
        """Write the trailer of a plain file beside it. Raises ObjectExists if another writer has the key."""
        beside = _beside(self.path(key))
        fd, temporary = tempfile.mkstemp(dir=self.temporary, prefix="writer-")
        try:
            self.writer.write(fd, [self.trailer(key, writer_id)])
            sync(fd)
            beside.hardlink_to(temporary)
            sync_folder(beside.parent)
        except FileExistsError:
            found = self._writer_in(beside.read_bytes(), f"{self.name}:{key}: bad trailer beside it")
            if found != writer_id:
                raise ObjectExists(f"{self.name}:{key}: written by {found!r}, not {writer_id!r}") from None
        finally:
            os.close(fd)
            Path(temporary).unlink()

    @staticmethod
    def _writer_in(trailer: bytes, problem: str) -> str:
        """Return the writer's id of a trailer. Raises StoreError with the problem for other bytes."""
        if len(trailer) == TRAILER_BYTES:
            magic, crc, length = TRAILER.unpack_from(trailer)
            writer = trailer[TRAILER.size : TRAILER.size + length]
            if magic == TRAILER_MAGIC and crc == crc32c(writer):
                return writer.decode()
        raise StoreError(f"{problem}: not written by this store, or damaged")

    @contextlib.contextmanager
    def explain(self, key: str) -> Iterator[None]:
        """Convert OSErrors to StoreErrors."""
        try:
            yield
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise StoreError(f"{self.name}:{key}: no space left on the disk that holds {self.root}") from error
            raise StoreError(f"{self.name}:{key}: {error.strerror or error} ({self.root})") from error

    @contextlib.contextmanager
    def opened(self, key: str) -> Iterator[tuple[int, int]]:
        """Open an object's file; yield its descriptor and the object's size."""
        try:
            fd = os.open(self.path(key), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            if not self.root.is_dir():  # the disk may not be mounted: this is not a missing object
                raise StoreError(f"{self.name}:{key}: the directory {self.root} is missing") from None
            raise ObjectNotFound(f"{self.name}:{key}: no such object") from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ObjectNotFound(f"{self.name}:{key}: no such object")
            size = status.st_size - _trailer_bytes(key)
            if size < 0:
                raise ObjectTooShort(
                    f"{self.name}:{key}: {status.st_size} bytes: not written by this store, or cut short"
                )
            yield fd, size
        finally:
            os.close(fd)

    def _unlink(self, key: str) -> Path:
        """Remove an object's files and their empty parents; return the directory that remains."""
        path = self.path(key)
        if is_plain(key):
            path.unlink(missing_ok=True)
            path = _beside(path)
        path.unlink()
        for folder in path.parents:
            if folder == self.root:
                break
            try:
                folder.rmdir()
            except OSError:
                return folder
        return self.root

    def _walk(self, folder: Path, key: str, prefix: str) -> Iterator[StoredObject]:
        try:
            with os.scandir(folder) as scan:
                entries = [each for each in scan if not each.name.startswith(".")]
        except FileNotFoundError:
            return
        # A directory sorts by its name with the slash, as its keys do.
        for sort_key, entry in sorted((f"{each.name}/" if each.is_dir() else each.name, each.path) for each in entries):
            path = Path(entry)
            full = key + sort_key
            if sort_key.endswith("/"):
                if full.startswith(prefix) or prefix.startswith(full):
                    yield from self._walk(path, full, prefix)
            elif full.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    size = max(0, status.st_size - _trailer_bytes(full))
                    yield StoredObject(full, size, status.st_mtime_ns // 1_000_000)


class NewFile:
    """The temporary file of an object that is written in order. Its calls are made one after the other."""

    def __init__(self, files: ObjectFiles, key: str, writer_id: str) -> None:
        """`open` creates the file. Raises StoreError if the key or the writer's id is invalid."""
        self._files = files
        self._key = key
        self._writer_id = writer_id
        self._ending = files.ending(key, writer_id)
        self._fd = -1
        self._temporary = Path()
        self.size_bytes = 0

    def open(self) -> None:
        """Create the file, which `close` removes."""
        with self._files.explain(self._key):
            self._fd, temporary = tempfile.mkstemp(dir=self._files.temporary, prefix="put-")
            self._temporary = Path(temporary)

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append the bytes of `parts`."""
        with self._files.explain(self._key):
            self.size_bytes += self._files.writer.write(self._fd, parts)

    def publish(self) -> None:
        """Make the object visible and durable."""
        with self._files.explain(self._key):
            self._files.writer.write(self._fd, [self._ending])
            sync(self._fd)
            self._files.publish(self._temporary, self._key, self._writer_id)

    def close(self) -> None:
        """Remove the temporary file, if it was created. A published object stays."""
        if self._fd >= 0:
            with self._files.explain(self._key):
                os.close(self._fd)
                self._temporary.unlink(missing_ok=True)


class UploadFiles:
    """Parts of one upload: in one file while the sizes of all earlier parts are known, else in separate files.

    `place` is called on one thread, in the order in which parts are submitted; the rest on any thread.
    """

    def __init__(self, files: ObjectFiles, key: str, writer_id: str, ending: bytes, folder: Path) -> None:
        self._files = files
        self._key = key
        self._writer_id = writer_id
        self._ending = ending
        self._folder = folder
        self._data = folder / "data"
        self._next_number = 1
        self._next_offset = 0
        self._placed: dict[int, tuple[int, int]] = {}
        """Offset and size of each part in the shared file."""
        self._separate: dict[int, int] = {}
        """Size of each part in a separate file: it was sent out of order, or again with another size."""

    @property
    def upload_id(self) -> str:
        """Name of the upload."""
        return self._folder.name

    def place(self, number: int, size: int) -> int | None:
        """Return the offset of part `number` in the shared file, None for a separate file."""
        if number == self._next_number:
            self._placed[number] = (self._next_offset, size)
            self._next_number += 1
            self._next_offset += size
        if number in self._placed and self._placed[number][1] == size:
            self._separate.pop(number, None)
            return self._placed[number][0]
        self._separate[number] = size
        return None

    def write_part(self, number: int, offset: int | None, parts: Sequence[Buffer]) -> None:
        """Write a part at its offset."""
        with self._files.explain(self._key), self._target(number, offset) as fd:
            self._files.writer.write(fd, parts)

    def copy_part(self, number: int, offset: int | None, source_key: str, start: int, end: int) -> None:
        """Copy bytes of another object into a part. Blocks are shared if the file system supports it."""
        with self._files.explain(source_key), self._files.opened(source_key) as (source, size):
            if end > size:
                raise StoreError(f"{self._files.name}:{source_key}: asked to copy bytes [{start}, {end}) of {size}")
            with self._target(number, offset) as fd:
                _copy(source, fd, start, end - start)

    def complete(self, receipts: Sequence[PartReceipt]) -> None:
        """Publish the object that the parts form."""
        where = f"{self._files.name}:{self._key}"
        check_receipts(receipts, where=where)
        if not self._folder.is_dir():
            if self._files.writer_id(self._key) == self._writer_id:
                return
            raise StoreError(f"{where}: no such upload: {self.upload_id}")
        for receipt in receipts:
            known = self._separate.get(receipt.number, self._placed.get(receipt.number, (0, -1))[1])
            if known != receipt.size_bytes:
                raise StoreError(f"{where}: part {receipt.number}: expected {receipt.size_bytes} bytes, found {known}")
        with self._files.explain(self._key):
            in_place = not self._separate and [each.number for each in receipts] == list(range(1, self._next_number))
            whole = self._data if in_place else self._assemble(receipts)
            fd = os.open(whole, os.O_WRONLY)
            try:
                os.lseek(fd, sum(each.size_bytes for each in receipts), os.SEEK_SET)
                self._files.writer.write(fd, [self._ending])
                sync(fd)
            finally:
                os.close(fd)
            self._files.publish(whole, self._key, self._writer_id)
        _remove(self._folder)

    def _assemble(self, receipts: Sequence[PartReceipt]) -> Path:
        whole = self._folder / "whole"
        with whole.open("wb", buffering=0) as target:
            for receipt in receipts:
                apart = receipt.number in self._separate
                offset = 0 if apart else self._placed[receipt.number][0]
                with (self._folder / f"part-{receipt.number}" if apart else self._data).open("rb") as source:
                    _copy(source.fileno(), target.fileno(), offset, receipt.size_bytes)
        return whole

    @contextlib.contextmanager
    def _target(self, number: int, offset: int | None) -> Iterator[int]:
        path = self._folder / f"part-{number}" if offset is None else self._data
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if offset is None else 0), 0o600)
        except FileNotFoundError:
            raise StoreError(f"{self._files.name}:{self._key}: no such upload: {self.upload_id}") from None
        try:
            os.lseek(fd, offset or 0, os.SEEK_SET)
            yield fd
        finally:
            os.close(fd)


def _trailer_bytes(key: str) -> int:
    """Return the length of what follows an object's bytes in its file."""
    return 0 if is_plain(key) else TRAILER_BYTES


def _beside(path: Path) -> Path:
    """Return the hidden file that has the trailer of a plain file."""
    return path.with_name(f".{path.name}.writer")


def _read(fd: int, start: int, end: int) -> bytes:
    pieces: list[bytes] = []
    while start < end:
        piece = os.pread(fd, min(end - start, _READ_BYTES_MAX), start)
        if not piece:
            raise OSError(errno.EIO, f"file ends at {start}, {end} expected")
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _copy(source: int, target: int, start: int, size: int) -> None:
    """Copy to the target's position, inside the kernel if it supports that."""
    while size > 0:
        try:
            copied = copy_range(source, target, size, start)
        except OSError as error:
            if error.errno not in _NO_COPY_RANGE:
                raise
            copied = os.write(target, _read(source, start, start + min(size, _COPY_BYTES)))
        if copied == 0:
            raise OSError(errno.EIO, f"file ends at {start}, {size} more bytes expected")
        start += copied
        size -= copied


def _newest(path: Path) -> float:
    """Return the time of the last change of a file, or in a directory; infinite if it was just removed."""
    try:
        inside = path.iterdir() if path.is_dir() else iter(())
        return max([path.stat().st_mtime, *(each.stat().st_mtime for each in inside)])
    except FileNotFoundError:
        return float("inf")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
