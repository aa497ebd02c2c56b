"""A model of the guarantees of a write-ahead log: it follows the log under test and checks what a recovery returns."""

from dataclasses import dataclass, field

from anabranch.wal.interface import AppendedRecord, RecoveredRecord, WalError


@dataclass(slots=True)
class ModelRecord:
    offset: int
    body: bytes
    acked: bool = False


@dataclass(slots=True)
class WalModel:
    records: list[ModelRecord] = field(default_factory=list)
    trim_requested: int = -1
    """Recovery may omit records up to this offset."""
    trim_confirmed: int = -1
    """Recovery must omit records up to this offset."""
    acks: list[int] = field(default_factory=list)
    """Offsets in the order they were acked."""

    def appended(self, appended: AppendedRecord, body: bytes) -> None:
        record = ModelRecord(appended.offset, body)
        assert not self.records or record.offset > self.records[-1].offset, "offsets must grow"
        self.records.append(record)

        def done(error: WalError | None) -> None:
            if error is None:
                assert not self.acks or self.acks[-1] < record.offset, "acks must come in the order of appends"
                self.acks.append(record.offset)
                record.acked = True

        appended.durable.add_done_callback(done)

    def check(self, recovered: list[RecoveredRecord]) -> None:
        """Assert that `recovered` is a run of the appended records, with all acked and no trimmed ones."""
        found = [(record.offset, bytes(record.body)) for record in recovered]
        by_offset = {record.offset: index for index, record in enumerate(self.records)}
        if found:
            assert found[0][0] in by_offset, f"record at {found[0][0]} was never appended"
            first = by_offset[found[0][0]]
            expected = [(record.offset, record.body) for record in self.records[first : first + len(found)]]
            assert found == expected, "not a run of what was appended"
            assert found[0][0] > self.trim_confirmed, f"trimmed record at {found[0][0]} came back"
        offsets = {offset for offset, _ in found}
        for record in self.records:
            if record.acked and record.offset > self.trim_requested:
                assert record.offset in offsets, f"acked record at {record.offset} is lost"
        self.records = [ModelRecord(offset, body, acked=True) for offset, body in found]
        self.acks.clear()
