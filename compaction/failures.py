"""Consequences of failures: give up one plan, leave an input alone, or end the run.

A failed run never stops the node. Errors that would also stop other plans are raised: the catalog is unavailable or
damaged, the node is fenced, or the object store fails. Other errors are logged and counted. The inputs stay unchanged
in every case.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from anabranch.compaction.cleaning.plan import CleanPlan
from anabranch.compaction.context import CompactionContext
from anabranch.compaction.execution import UnreadableInput
from anabranch.compaction.joins.plan import JoinGroup
from anabranch.compaction.proof import CoverageError
from anabranch.compaction.throttle import Throttle
from anabranch.s3stream.errors import (
    CatalogDamaged,
    CatalogError,
    CatalogUnavailable,
    NodeFenced,
    ObjectDamage,
    StorageError,
)
from anabranch.s3stream.read.damage import ADVICE

log = structlog.get_logger(__name__)

P = TypeVar("P", JoinGroup, CleanPlan)


class FailurePolicy:
    """Executes single plans, and decides the consequences of their failures."""

    def __init__(self, context: CompactionContext) -> None:
        self._context = context

    async def attempt(
        self,
        stage: str,
        plan: P,
        execute: Callable[[P, Throttle], Awaitable[None]],
        throttle: Throttle,
        errors: list[str],
    ) -> bool:
        """Execute a plan, and return whether it succeeded. Raises StorageError for what would stop other plans too."""
        try:
            await execute(plan, throttle)
        except (NodeFenced, CatalogUnavailable, CatalogDamaged):
            raise
        except UnreadableInput as error:
            await self.leave_alone(error, errors)
        except (CoverageError, ObjectDamage) as error:
            self.refuse(stage, error, errors)
        except CatalogError as error:
            # In the meantime the stream was trimmed past the objects, deleted, or compacted by its new owner.
            log.warning(
                "compaction of a stream was given up; the next run plans it again",
                stage=stage,
                stream_id=plan.stream_id,
                reason=str(error),
            )
            errors.append(str(error))
        except StorageError:
            raise
        except Exception as error:
            # The contents of one stream, which a client wrote, must not stop the node.
            self._context.stats.runs_failed += 1
            errors.append(repr(error))
            log.exception("compaction of a stream failed", stage=stage, stream_id=plan.stream_id)
        else:
            return True
        return False

    def refuse(self, stage: str, error: StorageError, errors: list[str]) -> None:
        """Report inputs that contradict the catalog or each other. Nothing was changed, and the run continues."""
        self._context.stats.runs_failed += 1
        errors.append(str(error))
        log.error("compaction refused", stage=stage, error=str(error))

    async def leave_alone(self, error: UnreadableInput, errors: list[str]) -> None:
        """Exclude an unreadable input from later plans, and report it. Raises CatalogError.

        An input that another node has replaced since it was planned may be gone from the store. That is not an error.
        """
        if await self._context.any_replaced([error.object_id]):
            log.info("an input of a compaction was replaced meanwhile", object_id=error.object_id)
            return
        self._context.left_alone.add(error.object_id)
        self._context.stats.objects_left_alone += 1
        errors.append(str(error))
        log.error(
            "compaction leaves an object alone until the node restarts",
            object_id=error.object_id,
            error=str(error),
            advice=ADVICE,
        )
        if error.damage is not None:
            self._context.on_damaged(error.damage)
