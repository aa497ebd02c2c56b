"""Writer ids: text stored with every object that identifies its writer. `FORMAT.md` describes them.

A writer id is unique to one attempt to write, so that a rollback deletes only the bytes of its own writer. Its suffix
repeats what the catalog knows about the object, for a catalog that is rebuilt from the object store alone:

    <unique>.upload-<node id>-<node epoch>     written by the upload of a node
    <unique>.born-<ms>                         written by compaction: commit time of the object's oldest data
    <unique>.cleaned                           written by log compaction: no key occurs twice

While there is a catalog, only its columns are read. Nothing but a rebuild parses these suffixes.
"""

import re
from typing import Final, NamedTuple

_UPLOADED: Final = re.compile(r"\.upload-(\d+)-(\d+)$")
_COMPACTED: Final = re.compile(r"(?:\.born-(\d+))?(\.cleaned)?$")


class UploadWriter(NamedTuple):
    """The node that uploaded an object, and the epoch that it had."""

    node_id: int
    node_epoch: int


class CompactionWriter(NamedTuple):
    """A compaction that writes objects, and the facts about their data that outlive their inputs."""

    unique: str
    oldest_data_ms: int = 0
    """Time of the first commit of the oldest data; 0: with these objects."""
    cleaned: bool = False
    """True if log compaction wrote it: it has one record for each key, and none that a newer one had replaced then."""

    @property
    def writer_id(self) -> str:
        """Writer id of the objects."""
        age = f".born-{self.oldest_data_ms}" if self.oldest_data_ms else ""
        return f"{self.unique}{age}{'.cleaned' if self.cleaned else ''}"


def upload_writer_id(unique: str, writer: UploadWriter) -> str:
    """Return the writer id of an upload's objects."""
    return f"{unique}.upload-{writer.node_id}-{writer.node_epoch}"


def parse_upload_writer(writer_id: str) -> UploadWriter | None:
    """Return the node that uploaded an object, by its writer id; None if it was not uploaded."""
    found = _UPLOADED.search(writer_id)
    return None if found is None else UploadWriter(int(found[1]), int(found[2]))


def parse_compaction_writer(writer_id: str) -> CompactionWriter:
    """Return what a writer id says about the object's data; the defaults if it has no suffix of compaction."""
    found = _COMPACTED.search(writer_id)
    assert found is not None, "the expression matches the empty text"
    return CompactionWriter(writer_id[: found.start()], int(found[1] or 0), found[2] is not None)
