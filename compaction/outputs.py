"""Output objects of a compaction between their preparation in the catalog and their commit."""

from collections.abc import Collection, Sequence

import structlog

from anabranch.compaction.context import CompactionContext
from anabranch.compaction.execution import OutputId
from anabranch.s3stream.errors import CatalogError, CatalogUnavailable
from anabranch.s3stream.model import NewObject
from anabranch.s3stream.object.writer_id import CompactionWriter
from anabranch.s3stream.store.interface import ObjectStore

log = structlog.get_logger(__name__)


class PreparedOutputs:
    """Outputs of one run that are prepared in the catalog and not committed yet.

    After a crash they are reaped when their deadline has passed. A run that fails without a crash discards them;
    otherwise repeated failures would fill the store. Nothing is deleted here: the catalog decides whether an output was
    committed after all, and the collector deletes the others.
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
            node=self._context.identity,
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
        """Swap inputs for outputs.

        If the catalog refuses the commit, the outputs are discarded. If the result is unknown, they are left alone.
        """
        try:
            await self._context.commit(inputs, outputs, streams)
        except CatalogUnavailable:
            raise
        except CatalogError:
            await self.discard()
            raise

    async def discard(self) -> None:
        """Discard what is not committed.

        Raises no StorageError: what cannot be discarded is reaped after its deadline.
        """
        now_ms = self._context.now_ms()
        try:
            await self._context.catalog.discard_objects(
                self._object_ids, now_ms=now_ms, delete_after_ms=now_ms + self._context.settings.delete_delay_ms
            )
        except CatalogError as error:
            log.warning("outputs of a failed compaction stay until their deadline", error=str(error))
