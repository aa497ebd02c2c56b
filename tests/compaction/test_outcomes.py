"""Commits whose answers are lost: a commit that took effect is never undone, and any other leaves no trace."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import make_url

from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.compaction.interface import CleaningHooks, CleanPolicy
from anabranch.compaction.service import CompactionService
from anabranch.s3stream.catalog import database as database_module
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import CompactionCommit
from anabranch.s3stream.errors import CatalogError, CatalogUnavailable, NodeFenced, OutcomeUnknown, StorageError
from anabranch.s3stream.model import NodeIdentity, ObjectKind, ObjectState
from tests.compaction.cleaning.test_cleaner import kafka_batch
from tests.compaction.sets.test_run import SMALL, every_object_is_accounted_for, fill
from tests.compaction.test_concurrency import MIB, joinable, memory
from tests.support.catalog_node import HOUR_MS, NODE_ID, UploadingNode, uploading_node
from tests.support.postgres import PostgresServer
from tests.support.postgres_proxy import lossy_server

SO = ObjectKind.SO


@pytest.fixture
async def some(tmp_path: Path) -> AsyncIterator[UploadingNode]:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db") as made:
        yield made


async def at_once(_seconds: float) -> None:
    """For sleeps between repeated commits."""


class LosingCatalog:
    """A catalog that applies compaction commits, or not, and then answers with an error."""

    def __init__(self, catalog: Catalog, error: StorageError, *, applies: bool) -> None:
        self._catalog = catalog
        self._error = error
        self._applies = applies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    async def commit_compaction(self, commit: CompactionCommit) -> None:
        """Commit it if that is wanted; the answer is lost either way."""
        if self._applies:
            await self._catalog.commit_compaction(commit)
        raise self._error


def losing(made: UploadingNode, error: StorageError, *, applies: bool, by_key: bool = False) -> CompactionService:
    """A service whose commits are answered with an error."""
    catalog = cast("Catalog", LosingCatalog(made.catalog, error, applies=applies))
    policy = CleanPolicy(dirty_ratio_min=0.0, lag_ms_min=0, lag_ms_max=1 << 60, delete_retention_ms=HOUR_MS)
    cleaning = CleaningHooks(KafkaBatches(), lambda: dict.fromkeys(made.ends, policy)) if by_key else None
    return CompactionService(replace(made.compaction_context(SMALL), catalog=catalog, sleep=at_once, cleaning=cleaning))


async def sets(made: UploadingNode) -> None:
    await fill(made, 4, 6)


async def joins(made: UploadingNode) -> None:
    await joinable(made)


async def by_key(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    for value in (b"a" * MIB, b"b" * MIB):
        await made.upload((SO, [kafka_batch(made, stream, [(b"key", value)])]))


WORK = {"sets": sets, "joins": joins, "by key": by_key}
ANSWERS: tuple[StorageError, ...] = (
    CatalogError("cannot execute UPDATE in a read-only transaction"),
    NodeFenced("another process has this node's id"),
    OutcomeUnknown("a commit was not answered"),
    CatalogUnavailable("the connection broke off"),
)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("work", WORK)
async def test_a_commit_that_took_effect_is_not_undone(some: UploadingNode, work: str, answer: StorageError) -> None:
    await WORK[work](some)
    values = await last_values(some)
    service = losing(some, answer, applies=True, by_key=work == "by key")
    await run(service)
    assert await last_values(some) == values
    for wait_ms in (SMALL.delete_delay_ms, SMALL.prepare_ttl_ms):
        some.clock.ms += wait_ms
        await some.collect()
        assert await last_values(some) == values
    await every_object_is_accounted_for(some)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("work", WORK)
async def test_a_commit_that_did_not_take_effect_leaves_nothing_behind(
    some: UploadingNode, work: str, answer: StorageError
) -> None:
    await WORK[work](some)
    values = await last_values(some)
    stored = set(memory(some).objects)
    await run(losing(some, answer, applies=False, by_key=work == "by key"))
    is_refusal = not isinstance(answer, CatalogUnavailable)
    # A refused run's outputs are gone with the delay of deletions, not a day later: it may be refused again and again.
    some.clock.ms += SMALL.delete_delay_ms if is_refusal else SMALL.prepare_ttl_ms
    await some.collect()
    assert set(memory(some).objects) == stored
    assert await last_values(some) == values
    assert ObjectState.PREPARED.name not in " ".join(await some.catalog.count_objects()).upper()


async def run(service: CompactionService) -> None:
    """Run compaction once; the run must fail."""
    try:
        summary = await service.run_once()
    except StorageError:
        return
    assert summary.errors


async def last_values(made: UploadingNode) -> dict[int, bytes]:
    """Payload of each stream's last batch, after reading the whole stream."""
    return {stream: bytes(batches[-1].payload) for stream, batches in (await made.contents()).items() if batches}


async def test_a_writer_that_is_cut_off_cannot_commit_what_was_discarded(some: UploadingNode) -> None:
    """The commit takes longer than the run waits: either the discarding is first, or the commit."""
    await sets(some)
    before = await some.contents()
    late: list[Callable[[], Awaitable[None]]] = []

    class Late(LosingCatalog):
        async def commit_compaction(self, commit: CompactionCommit) -> None:
            late.append(lambda: some.catalog.commit_compaction(commit))
            raise CatalogError("refused")

    catalog = cast("Catalog", Late(some.catalog, CatalogError("refused"), applies=False))
    await run(CompactionService(replace(some.compaction_context(SMALL), catalog=catalog)))
    with pytest.raises(CatalogError, match="must be PREPARED to be committed, found DESTROYED"):
        await late[0]()
    some.clock.ms += SMALL.delete_delay_ms
    await some.collect()
    assert await some.contents() == before


async def test_an_object_of_another_writer_is_not_deleted_when_a_run_fails(some: UploadingNode) -> None:
    """A catalog restored from a backup gives out ids again that objects made after the backup already have."""
    await sets(some)
    (next_id,) = await some.catalog.prepare_objects(
        1, node=NodeIdentity(NODE_ID, some.epoch), writer_id="w", store="m", now_ms=0, deadline_ms=1 << 60
    )
    foreign = [some.compaction_context().key(next_id + at) for at in range(1, 50)]
    for key in foreign:
        await some.store.put(key, [b"of a later time"], writer_id="another")
    await run(some.service(SMALL))
    some.clock.ms += SMALL.prepare_ttl_ms
    await some.collect()
    assert set(foreign) <= set(memory(some).objects)


@pytest.mark.parametrize(
    ("trouble", "end"),
    [
        ("SET default_transaction_read_only = on", "RESET default_transaction_read_only"),
        ("WITH ALLOW_CONNECTIONS false", "WITH ALLOW_CONNECTIONS true"),
    ],
)
async def test_a_failover_of_postgresql_in_the_middle_of_a_commit(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, trouble: str, end: str
) -> None:
    """The commit takes effect, its answer is lost, and for a while the server is read-only, or cannot be reached."""
    monkeypatch.setattr(database_module, "REPEAT_DELAYS_S", (0.0,))
    async with lossy_server(postgres.new_database()) as lossy, uploading_node(lossy.url) as made:
        await fill(made, 4, 6)
        before = await made.contents()
        database = make_url(lossy.url).database

        async def fail_over() -> None:
            postgres.execute(f"ALTER DATABASE {database} {trouble}")

        class Commits(LosingCatalog):
            async def commit_compaction(self, commit: CompactionCommit) -> None:
                lossy.losses, lossy.after_loss = 1 - lossy.lost, fail_over
                await made.catalog.commit_compaction(commit)

        catalog = cast("Catalog", Commits(made.catalog, CatalogError(), applies=True))
        with suppress(CatalogUnavailable):
            await CompactionService(replace(made.compaction_context(SMALL), catalog=catalog, sleep=at_once)).run_once()
        assert lossy.lost == 1
        postgres.execute(f"ALTER DATABASE {database} {end}")
        made.clock.ms += SMALL.prepare_ttl_ms
        await made.collect()
        assert await made.contents() == before
        await every_object_is_accounted_for(made)
        summary = await made.service(SMALL).run_once()
        assert (summary.sso_before, summary.errors) == (1, [])


@pytest.mark.slow
async def test_a_catalog_that_is_away_ends_a_run_before_it_reads_more(some: UploadingNode) -> None:
    """Ten streams could be joined: the first one shows that nothing can be committed."""
    streams = await some.start(10)
    for stream in streams:
        for _ in range(4):
            await some.upload((SO, [some.batch(stream, 1_000)]))
    asked = 0

    class Away(LosingCatalog):
        async def prepare_objects(self, *_args: object, **_kwargs: object) -> None:
            nonlocal asked
            asked += 1
            raise self._error

    catalog = cast("Catalog", Away(some.catalog, CatalogUnavailable("away"), applies=False))
    with pytest.raises(CatalogUnavailable, match="away"):
        await CompactionService(replace(some.compaction_context(SMALL), catalog=catalog)).run_once()
    assert asked == 1


async def test_the_delay_of_a_deletion_counts_from_the_attempt_that_succeeds(some: UploadingNode) -> None:
    """The inputs were live until then."""
    await fill(some, 4, 6)
    commits: list[CompactionCommit] = []

    class Away(LosingCatalog):
        async def commit_compaction(self, commit: CompactionCommit) -> None:
            commits.append(commit)
            if len(commits) == 1:
                some.clock.ms += 1_000
                raise CatalogUnavailable("away")
            await some.catalog.commit_compaction(commit)

    catalog = cast("Catalog", Away(some.catalog, CatalogError(), applies=True))
    await CompactionService(replace(some.compaction_context(SMALL), catalog=catalog, sleep=at_once)).run_once()
    first, second = commits[:2]
    assert second.delete_after_ms == second.now_ms + SMALL.delete_delay_ms
    assert second.now_ms == first.now_ms + 1_000
