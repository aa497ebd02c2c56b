from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.object.writer_id import (
    CompactionWriter,
    UploadWriter,
    parse_compaction_writer,
    parse_upload_writer,
    upload_writer_id,
)

unique_ids = st.text("0123456789abcdef-", min_size=1)


@given(unique_ids, st.integers(0, 2**63 - 1), st.booleans())
def test_facts_of_a_compaction_are_read_back(unique: str, oldest_data_ms: int, cleaned: bool) -> None:
    writer = CompactionWriter(unique, oldest_data_ms, cleaned)
    assert parse_compaction_writer(writer.writer_id) == writer
    assert parse_upload_writer(writer.writer_id) is None


@given(unique_ids, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_the_node_of_an_upload_is_read_back(unique: str, node_id: int, node_epoch: int) -> None:
    writer_id = upload_writer_id(unique, UploadWriter(node_id, node_epoch))
    assert parse_upload_writer(writer_id) == UploadWriter(node_id, node_epoch)
    assert parse_compaction_writer(writer_id) == CompactionWriter(writer_id)


def test_writer_ids_in_stores_keep_their_form() -> None:
    assert CompactionWriter("u").writer_id == "u"
    assert CompactionWriter("u", oldest_data_ms=1_700).writer_id == "u.born-1700"
    assert CompactionWriter("u", cleaned=True).writer_id == "u.cleaned"
    assert upload_writer_id("u", UploadWriter(3, 14)) == "u.upload-3-14"


def test_an_unknown_suffix_says_nothing() -> None:
    for writer_id in ("", "u.born-", "u.born-12x", "u.born-12.upload-1-1", "u.cleaned2", "cleaned"):
        assert parse_compaction_writer(writer_id) == CompactionWriter(writer_id)
