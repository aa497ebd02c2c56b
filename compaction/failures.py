"""What each kind of failure means for a run: one plan given up, an input left alone, or the run ended.

A run never takes the node down. Errors of the catalog that every other plan would meet, too, are raised; so is what the
object store says. All else is logged and counted, and the inputs stay as they were.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from compaction.cleaning.plan import CleanPlan
from compaction.context import CompactionContext
from compaction.execution import UnreadableInput
from compaction.joins.plan import JoinGroup
from compaction.proof import CoverageError
from compaction.throttle import Throttle
from s3stream.errors import (
    CatalogDamaged,
    CatalogError,
    CatalogUnavailable,
    NodeFenced,
    ObjectDamage,
    StorageError,
)
from s3stream.read.damage import ADVICE

log = structlog.get_logger(__name__)

P = TypeVar("P", JoinGroup, CleanPlan)


class FailurePolicy:
    """Carries out single plans, and decides what their failures mean."""

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
        """Carry out a plan; whether that succeeded. Raises StorageError for what would stop others, too."""
        try:
            await execute(plan, throttle)
        except (NodeFenced, CatalogUnavailable, CatalogDamaged):
            raise
        except UnreadableInput as error:
            self.leave_alone(error)
            errors.append(str(error))
        except (CoverageError, ObjectDamage) as error:
            self.refuse(stage, error, errors)
        except CatalogError as error:
            # The stream was trimmed past the objects, deleted, or compacted by its new owner meanwhile.
            log.warning("compaction of a stream given up", stage=stage, stream_id=plan.stream_id, reason=str(error))
            errors.append(str(error))
        except StorageError:
            raise
        except Exception as error:
            # What a client wrote into one stream must not stop the node.
            self._context.stats.runs_failed += 1
            errors.append(repr(error))
            log.exception("compaction of a stream failed", stage=stage, stream_id=plan.stream_id)
        else:
            return True
        return False

    def refuse(self, stage: str, error: StorageError, errors: list[str]) -> None:
        """Inputs that contradict the catalog or each other: nothing was changed; the rest of the run goes on."""
        self._context.stats.runs_failed += 1
        errors.append(str(error))
        log.error("compaction refused", stage=stage, error=str(error))

    def leave_alone(self, error: UnreadableInput) -> None:
        """Leave an input that cannot be read out of all later plans, and report it."""
        self._context.left_alone.add(error.object_id)
        self._context.stats.objects_left_alone += 1
        log.error(
            "compaction leaves an object alone until the node starts again",
            object_id=error.object_id,
            error=str(error),
            advice=ADVICE,
        )
        if error.damage is not None:
            self._context.on_damaged(error.damage)
