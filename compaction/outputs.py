"""Output objects of a compaction between their preparation in the catalog and the commit."""

from collections.abc import Collection, Sequence

import structlog

from compaction.context import CompactionContext
from compaction.execution import OutputId
from s3stream.errors import CatalogError, CatalogUnavailable
from s3stream.model import NewObject
from s3stream.object.writer_id import CompactionWriter
from s3stream.store.interface import ObjectStore

log = structlog.get_logger(__name__)


class PreparedOutputs:
    """Outputs of one run, prepared in the catalog and not committed yet.

    What a crash leaves of them is reaped after its deadline. A run that fails and lives discards them, or a run that
    fails each time would fill the store. Nothing is deleted here: the catalog decides what was committed after all, and
    the collector deletes the rest.
    """

    def __init__(self, context: CompactionContext, store: ObjectStore) -> None:
        self._context = context
        self._store = store
        self._object_ids: list[int] = []

    async def prepare(self, count: int, writer: CompactionWriter) -> Sequence[OutputId]:
        """Reserve ids."""
        now_ms = self._context.now_ms()
        object_ids = await self._context.catalog.prepare_objects(
            count,
            node_id=self._context.node_id,
            node_epoch=self._context.node_epoch,
            writer_id=writer.writer_id,
            store=self._store.name,
            now_ms=now_ms,
            deadline_ms=now_ms + self._context.settings.prepare_ttl_ms,
            oldest_data_ms=writer.oldest_data_ms,
            cleaned=writer.cleaned,
        )
        self._object_ids += object_ids
        return [OutputId(object_id, writer) for object_id in object_ids]

    async def commit(
        self, inputs: Sequence[int], outputs: Sequence[NewObject], streams: Collection[int] | None = None
    ) -> None:
        """Swap inputs for outputs. What the catalog refuses is discarded; what it may have taken is left alone."""
        try:
            await self._context.commit(inputs, outputs, streams)
        except CatalogUnavailable:
            raise
        except CatalogError:
            await self.discard()
            raise

    async def discard(self) -> None:
        """Give up what is not committed. Raises no StorageError: what cannot be discarded has its deadline."""
        now_ms = self._context.now_ms()
        try:
            await self._context.catalog.discard_objects(
                self._object_ids, now_ms=now_ms, delete_after_ms=now_ms + self._context.settings.delete_delay_ms
            )
        except CatalogError as error:
            log.warning("drafts of a failed compaction stay until their deadline", error=str(error))
