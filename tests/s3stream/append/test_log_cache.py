"""The log cache against a plain list of batches."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.append.log_cache import LogCache, UploadBlock
from anabranch.s3stream.model import BATCH_OVERHEAD_BYTES, StreamBatch
from anabranch.s3stream.stats import StorageStats

OVERHEAD = BATCH_OVERHEAD_BYTES


class CacheModel:
    """Appends to a cache and to lists; streams of one cache."""

    def __init__(self, bytes_max: int, begin: int = 0) -> None:
        """Streams begin at offset `begin`."""
        self.begin = begin
        self.stats = StorageStats()
        self.cache = LogCache(bytes_max, self.stats)
        self.batches: dict[int, list[StreamBatch]] = {}
        self.sealed: list[UploadBlock] = []
        self.superseded: dict[int, int] = {}

    def append(self, stream_id: int, size_bytes: int, span: int) -> None:
        batches = self.batches.setdefault(stream_id, [])
        base = batches[-1].end_offset if batches else self.begin
        batch = StreamBatch(stream_id, base, base + span, span, -1, bytes(size_bytes))
        batches.append(batch)
        self.cache.runs_of(stream_id).is_open = True
        self.cache.start_run(stream_id, base).add(batch)
        self.cache.current.size_bytes += size_bytes + OVERHEAD

    def rotate(self) -> None:
        self.sealed.append(self.cache.rotate())

    def commit(self) -> None:
        if self.sealed:
            self.cache.commit(self.sealed.pop(0))

    def evict(self, batches_max: int) -> None:
        self.cache.evict(batches_max)

    def drop(self, stream_id: int) -> None:
        """Delete the stream's data, as for a topic that is created again."""
        self.cache.drop(stream_id)
        self.batches.pop(stream_id, None)
        self.superseded.pop(stream_id, None)

    def supersede(self, stream_id: int, offsets: int) -> None:
        end_offset = self.begin + offsets
        self.cache.supersede(stream_id, end_offset)
        if stream_id in self.batches:
            self.superseded[stream_id] = max(self.superseded.get(stream_id, 0), end_offset)

    def uncommitted(self, stream_id: int) -> int:
        blocks = [*self.sealed, self.cache.current]
        starts = [block.runs[stream_id].start_offset for block in blocks if stream_id in block.runs]
        return min(starts, default=self.batches[stream_id][-1].end_offset)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(0, 2000), st.integers(1, 5)),
        st.tuples(st.just("rotate")),
        st.tuples(st.just("commit")),
        st.tuples(st.just("evict"), st.integers(0, 4)),
        st.tuples(st.just("drop"), st.integers(0, 2)),
        st.tuples(st.just("supersede"), st.integers(0, 2), st.integers(0, 40)),
    ),
    max_size=60,
)


@given(actions, st.sampled_from([0, 2**31 - 3, 2**32 - 3, 2**33]), st.integers(1, 6000), st.data())
def test_reads_are_contiguous_and_what_is_not_committed_stays(
    todo: list[tuple[object, ...]], begin: int, bytes_max: int, data: st.DataObject
) -> None:
    model = CacheModel(bytes_max=10_000, begin=begin)
    for name, *arguments in todo:
        getattr(model, str(name))(*arguments)
        blocks = [*model.sealed, model.cache.current]
        held = sum(len(b.payload) + OVERHEAD for block in blocks for run in block.runs.values() for b in run.batches)
        assert model.cache.uncommitted_bytes == held
    while model.cache.evict(1):
        pass
    assert model.cache.committed_bytes == 0 or model.cache.size_bytes <= 10_000
    committed = [run for runs in model.cache.streams.values() for run in runs.runs if run.block.committed]
    assert model.cache.committed_bytes == sum(len(b.payload) + OVERHEAD for run in committed for b in run.batches)
    for stream_id, batches in model.batches.items():
        runs = model.cache.runs_of(stream_id)
        start = runs.start_offset if runs.runs else batches[-1].end_offset
        assert start <= model.uncommitted(stream_id)
        assert all(
            run.start_offset >= model.superseded.get(stream_id, 0) for run in runs.runs if run.block.committed
        ), "what was removed from objects is served from memory no more"
        end = batches[-1].end_offset
        offset = data.draw(st.integers(begin, end - 1))
        limit = data.draw(st.integers(offset + 1, end))
        found = runs.read(offset, limit, bytes_max)
        if offset < start:
            assert found is None
            continue
        wanted = [b for b in batches if b.end_offset > offset and b.base_offset < limit]
        assert found
        assert found == wanted[: len(found)]
        sizes = [len(b.payload) for b in wanted]
        assert len(found) == 1 or sum(sizes[: len(found)]) <= bytes_max
        if len(found) < len(wanted):
            assert sum(sizes[: len(found) + 1]) > bytes_max


def test_eviction_takes_committed_batches_in_the_order_of_their_appends() -> None:
    model = CacheModel(bytes_max=4 * (1000 + OVERHEAD))
    for stream_id in (1, 2, 1, 1):
        model.append(stream_id, 1000, 1)
    model.rotate()
    model.append(2, 1000, 1)
    model.append(3, 1000, 1)
    assert not model.cache.evict(), "nothing is committed"
    model.commit()
    assert model.cache.evict(1)
    assert [model.cache.runs_of(stream_id).start_offset for stream_id in (1, 2, 3)] == [1, 0, 0]
    assert not model.cache.evict()
    assert [model.cache.runs_of(stream_id).start_offset for stream_id in (1, 2, 3)] == [1, 1, 0]
    assert model.cache.runs_of(1).read(0, 3, 1 << 20) is None
    assert model.cache.runs_of(1).read(1, 3, 1 << 20) == model.batches[1][1:]
    assert model.stats.log_cache_evicted_bytes == 2 * (1000 + OVERHEAD)
    assert model.cache.size_bytes == model.cache.bytes_max


def test_long_runs_are_shortened_as_they_are_evicted() -> None:
    model = CacheModel(bytes_max=100 * (10 + OVERHEAD))
    for _ in range(5000):
        model.append(1, 10, 1)
    model.rotate()
    model.commit()
    while model.cache.evict():
        pass
    (run,) = model.cache.runs_of(1).runs
    assert (run.start_offset, run.end_offset, run.size_bytes) == (4900, 5000, 1000)
    assert run.batches == model.batches[1][4900:]
    assert run.slice(4950, 5000, 25) == model.batches[1][4950:4952]
    model.append(1, 10, 1)
    assert model.cache.runs_of(1).read(4990, 5001, 1 << 20) == model.batches[1][4990:]


def test_dropped_stream_frees_its_bytes_wherever_they_are() -> None:
    model = CacheModel(bytes_max=1 << 20)
    for step in (model.commit, lambda: None, lambda: None):
        model.append(1, 1000, 1)
        model.append(2, 10, 1)
        model.rotate()
        step()
    model.append(1, 1000, 1)
    model.cache.drop(1)
    assert model.cache.size_bytes == 3 * (10 + OVERHEAD)
    model.commit()
    model.commit()
    assert model.cache.uncommitted_bytes == 0
    assert model.cache.runs_of(2).read(0, 3, 1 << 20) == model.batches[2]


def test_a_closed_stream_leaves_nothing_behind_when_it_is_evicted() -> None:
    model = CacheModel(bytes_max=0)
    for stream_id in (1, 2):
        model.append(stream_id, 1000, 1)
    model.rotate()
    model.cache.mark_closed(1)
    model.commit()
    assert set(model.cache.streams) == {1, 2}
    model.cache.evict()
    assert set(model.cache.streams) == {2}
    model.cache.mark_closed(2)
    assert not model.cache.streams
