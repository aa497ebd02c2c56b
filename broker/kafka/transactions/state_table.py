"""Transactions: their theory, the states of a transactional id, and the table of the action for each event and state.

Theory
------
A *transactional id* names a producer across its restarts. At each start the coordinator gives the producer the same
*producer id* with a higher *epoch*. A producer with an older epoch is fenced: by the coordinator at once, by a
partition from the next marker on. A transaction is a set of partitions and an outcome. It is atomic because the outcome
is decided in one record of `__transaction_state` before it is written to any partition:

1. *Prepare* is the decision. Once it is durable the outcome never changes, and the client gets its response.
2. *Markers* carry the decision to every partition of the set. They may be written twice; only the first counts.
3. *Complete* records that all markers are durable. A coordinator that loads a Prepare without a Complete continues with
   step 2.

A partition must be in the durable set before a record of the transaction is appended to it. Otherwise a crash could
leave a transaction open in a partition that no coordinator ends (a *hanging* transaction), and its readers would wait
forever.

    Empty ---------add---------> Ongoing --commit--> PrepareCommit --all marked--> CompleteCommit --+
      ^                            ^   \\--abort, timeout, init------> PrepareAbort -> CompleteAbort +
      |                            +-------------------------------add------------------------------+
      +---------------------------------init (the producer has restarted)---------------------------+
    Dead: expired; the next InitProducerId creates the id again. PrepareEpochFence: see below.

*Version 1 and version 2* (KIP-890). With version 1 only InitProducerId changes the epoch, and clients add partitions by
AddPartitionsToTxn. A late marker or a delayed batch of one transaction can then become part of the next. With version 2
every end raises the epoch, so each transaction has a separate epoch. The client learns it from the response to EndTxn,
and adds a partition by writing to it. A repeated EndTxn no longer has the current epoch: an EndTxn with the epoch just
below the current one is treated as a retry.

When the coordinator itself aborts (after a timeout, or on InitProducerId while a transaction is open), the step is that
of a version 2 abort. The producer may still end its transaction: an abort is then a retry and gives it the next epoch,
a commit is refused. Kafka has a state for that step, PrepareEpochFence. Here the step is part of the one to
PrepareAbort, and the state exists only as a name that tools may filter by.

*Prepare* to *Complete* is one change in progress: other requests wait or get CONCURRENT_TRANSACTIONS, before their
producer id and epoch are checked. A client that has its answer to EndTxn has the next epoch, and maybe the next
producer id, which the state does not show before Complete. Only version 1, where nothing changes with the end, judges
the producer first.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum, auto


class TransactionStatus(IntEnum):
    """States of a transactional id, with their numbers in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that clients see."""
        return "".join(part.capitalize() for part in self.name.split("_"))


BY_LABEL: Mapping[str, TransactionStatus] = {status.label: status for status in TransactionStatus}


class TransactionEvent(Enum):
    """Events of a transactional id, after ids and epochs have been checked."""

    INIT = auto()
    ADD = auto()
    COMMIT = auto()
    ABORT = auto()
    MARKED = auto()
    """All markers are durable."""
    TIMEOUT = auto()
    EXPIRE = auto()


class TransactionAction(Enum):
    """Action on an event."""

    NEW_EPOCH = auto()
    """Raise the epoch, or take a new producer id; the new state is Empty."""
    FENCE = auto()
    """Abort in the producer's place, with the next epoch."""
    GROW = auto()
    """Add partitions; the new state is Ongoing."""
    PREPARE = auto()
    """Decide."""
    PREPARE_NOTHING = auto()
    """Version 2: abort without partitions, for the new epoch. Version 1: INVALID_TXN_STATE."""
    REPEATED = auto()
    """The transaction already has this outcome: succeed in version 1, and in version 2 if the request is a retry."""
    REPEATED_ABORT = auto()
    """Succeed in version 1, and in version 2 if the request is a retry; else as PREPARE_NOTHING."""
    COMPLETE = auto()
    FORGET = auto()
    WAIT = auto()
    """CONCURRENT_TRANSACTIONS: the client tries again."""
    REFUSE = auto()
    """INVALID_TXN_STATE."""
    NOTHING = auto()


S, A = TransactionStatus, TransactionAction
TABLE: Mapping[TransactionEvent, Mapping[TransactionStatus, TransactionAction]] = {
    TransactionEvent.INIT: {
        S.EMPTY: A.NEW_EPOCH,
        S.ONGOING: A.FENCE,
        S.PREPARE_COMMIT: A.WAIT,
        S.PREPARE_ABORT: A.WAIT,
        S.COMPLETE_COMMIT: A.NEW_EPOCH,
        S.COMPLETE_ABORT: A.NEW_EPOCH,
    },
    TransactionEvent.ADD: {
        S.EMPTY: A.GROW,
        S.ONGOING: A.GROW,
        S.PREPARE_COMMIT: A.WAIT,
        S.PREPARE_ABORT: A.WAIT,
        S.COMPLETE_COMMIT: A.GROW,
        S.COMPLETE_ABORT: A.GROW,
    },
    TransactionEvent.COMMIT: {
        S.EMPTY: A.REFUSE,
        S.ONGOING: A.PREPARE,
        S.PREPARE_COMMIT: A.WAIT,
        S.PREPARE_ABORT: A.WAIT,
        S.COMPLETE_COMMIT: A.REPEATED,
        S.COMPLETE_ABORT: A.REFUSE,
    },
    TransactionEvent.ABORT: {
        S.EMPTY: A.PREPARE_NOTHING,
        S.ONGOING: A.PREPARE,
        S.PREPARE_COMMIT: A.WAIT,
        S.PREPARE_ABORT: A.WAIT,
        S.COMPLETE_COMMIT: A.PREPARE_NOTHING,
        S.COMPLETE_ABORT: A.REPEATED_ABORT,
    },
    TransactionEvent.MARKED: {S.PREPARE_COMMIT: A.COMPLETE, S.PREPARE_ABORT: A.COMPLETE},
    TransactionEvent.TIMEOUT: {S.ONGOING: A.FENCE},
    TransactionEvent.EXPIRE: {S.EMPTY: A.FORGET, S.COMPLETE_COMMIT: A.FORGET, S.COMPLETE_ABORT: A.FORGET},
}
"""Action for each event and state. A state that is missing in a row needs no action."""
