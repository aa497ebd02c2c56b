"""The theory of transactions, the states of a transactional id, and the table of what each event does in each state.

Theory
------
A *transactional id* is a producer's name over its restarts. Its coordinator gives each life of the producer the same
*producer id* with a higher *epoch*; whoever still shows an older epoch is fenced: in the coordinator at once, in a
partition by the next marker. A transaction is a set of partitions and an outcome, and it becomes atomic in two steps,
each a record in `__transaction_state`:

1. *Prepare* is the decision. Once it is durable the outcome can never change, and the client is told.
2. *Markers* carry the decision to every partition of the set. They may be written twice: only the first counts.
3. *Complete* says that all markers are durable. A coordinator that starts finds a Prepare without a Complete and goes
   on with step 2.

A partition must be in the durable set before a record of the transaction is appended to it, or a crash could leave a
transaction open that nobody knows of (a *hanging* one), and its readers would wait for ever.

    Empty ---------add---------> Ongoing --commit--> PrepareCommit --all marked--> CompleteCommit --+
      ^                            ^   \\--abort, timeout, new life--> PrepareAbort -> CompleteAbort +
      |                            +-------------------------------add------------------------------+
      +----------------------------------------init (a new life)------------------------------------+
    Dead: expired; the next InitProducerId begins anew. PrepareEpochFence: see below.

*Version 1 and version 2* (KIP-890). With version 1 the epoch changes only with a new life, and clients add partitions
by AddPartitionsToTxn. A late marker or a delayed batch of one transaction can then end up in the next. With version 2
every end raises the epoch, so each transaction has an epoch of its own; the client learns it from EndTxn's answer and
adds a partition by just writing to it. As equal epochs no longer show a repeated request, an EndTxn whose epoch is one
below the current one is taken for a retry.

When the coordinator itself aborts (timeout, or a new life while a transaction is open) it raises the epoch once more,
so that the old producer is fenced. Kafka names that intermediate step PrepareEpochFence; here it is one with the step
to PrepareAbort, and the state exists only as a name that tools may filter by.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum, auto


class TransactionStatus(IntEnum):
    """States, by the numbers that the log holds."""

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
    """What can happen to a transactional id, after ids and epochs have been checked."""

    INIT = auto()
    ADD = auto()
    COMMIT = auto()
    ABORT = auto()
    MARKED = auto()
    """All markers are durable."""
    TIMEOUT = auto()
    EXPIRE = auto()


class TransactionAction(Enum):
    """What is done about it."""

    NEW_EPOCH = auto()
    """Raise the epoch (or take a new producer id) and be Empty."""
    FENCE = auto()
    """Abort for the producer, with an epoch it does not have."""
    GROW = auto()
    """Add partitions, be Ongoing."""
    PREPARE = auto()
    """Decide."""
    PREPARE_NOTHING = auto()
    """Version 2 may abort where nothing was written: it gets its new epoch. Version 1: INVALID_TXN_STATE."""
    REPEATED = auto()
    """The outcome is there already: fine in version 1, and in version 2 if it is a retry."""
    REPEATED_ABORT = auto()
    """Fine in version 1, a retry in version 2; what is no retry aborts nothing, as PREPARE_NOTHING."""
    COMPLETE = auto()
    FORGET = auto()
    WAIT = auto()
    """CONCURRENT_TRANSACTIONS: ask again."""
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
        S.PREPARE_ABORT: A.REFUSE,
        S.COMPLETE_COMMIT: A.REPEATED,
        S.COMPLETE_ABORT: A.REFUSE,
    },
    TransactionEvent.ABORT: {
        S.EMPTY: A.PREPARE_NOTHING,
        S.ONGOING: A.PREPARE,
        S.PREPARE_COMMIT: A.REFUSE,
        S.PREPARE_ABORT: A.WAIT,
        S.COMPLETE_COMMIT: A.PREPARE_NOTHING,
        S.COMPLETE_ABORT: A.REPEATED_ABORT,
    },
    TransactionEvent.MARKED: {S.PREPARE_COMMIT: A.COMPLETE, S.PREPARE_ABORT: A.COMPLETE},
    TransactionEvent.TIMEOUT: {S.ONGOING: A.FENCE},
    TransactionEvent.EXPIRE: {S.EMPTY: A.FORGET, S.COMPLETE_COMMIT: A.FORGET, S.COMPLETE_ABORT: A.FORGET},
}
"""Where a row has no entry, nothing is done."""
