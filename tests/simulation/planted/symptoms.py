"""Symptoms of planted bugs, as the checks word them, and changes of plans that make the bugs matter."""

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.plan import COUNTS, Plan


def having(*faults: str, **values: float) -> Callable[[Plan], Plan]:
    """Return a change of plans that adds kinds of faults and actors, and sets other values."""

    def adapt(plan: Plan) -> Plan:
        wanted = {name: max(value, getattr(plan, name)) for name, value in values.items() if name in COUNTS}
        return replace(plan, faults=sorted({*plan.faults, *faults}), **{**values, **wanted})

    return adapt


def without(*faults: str) -> Callable[[Plan], Plan]:
    """Return a change of plans that takes kinds of faults away."""
    return lambda plan: replace(plan, faults=[kind for kind in plan.faults if kind not in faults])


SEQUENCE = "OUT_OF_ORDER_SEQUENCE_NUMBER|acked .* known (as|at)"
"""A batch that is sent again is refused, or appended again."""
LOST = f"is lost|a gap from|went back|committed offset|cannot be read|was acked before|{SEQUENCE}"
"""A record that was acked is gone, or another is in its place."""
UNDECIDED = "read as committed|records are committed"
"""Records of open or aborted transactions are read as committed."""
ORDER = "came before that to|known (as|at)|sent to"
"""The answer to another request is taken for that to a Produce request or Fetch."""
UNREADABLE = f"no progress|storage:|{LOST}"
"""The node cannot start, or objects cannot be read, even when all faults are over."""
CORRUPT = f"CorruptBatch|was sent to|no progress|{LOST}"
"""Wrong bytes are answered."""
FENCED = "fenced in epoch|goes on for|must begin at the stream's end"
"""A process or producer goes on though another has taken its place."""
REPLACED = "restless.* PRODUCER_FENCED"
"""A producer that nobody has replaced is told that somebody has."""
CLEANED = "the newest of key"
"""The newest value of a key is gone."""
EXPIRED = "expired before its time|starts at .* and ends at"
"""Records are deleted too early."""
STOPPED = "failed by itself"
"""The node stops for a reason that is no fault."""
GROWN = "partitions, expected"
"""A topic has another number of partitions than it was given."""
DELETED = "was deleted .* s after"
"""An object is deleted while readers may still use it."""
LEADER = "the leader that was named"
"""A leader does not serve."""
VIEW = "the view of|shows leaders"
"""A node does not see what another one has changed."""
REPLICA = "the replica .* (starts at|ends at|serves, cut off)"
"""A replica serves what it knew long ago."""
DEAD = "for dead after"
"""A node takes another one for dead that could beat."""
DRAINED = "which is being drained"
"""The balancer gives partitions to a node that gets rid of its own."""
TWO_BALANCE = "balances, and so does"
"""A node orders moves that is not the controller."""
HASTY = "after it was moved: it rests"
"""The balancer moves a partition again."""
MULTIPLIED = "took records although the log had acknowledged nothing"
"""A log that cannot be written queues what clients send again, and stores all of it later."""
TABLE_ROWS = "is no row|a file begins at|its row is|after offset|known (as|at)"
"""A row is missing from a table, or there twice, or should not be there."""
TABLE_FILES = "the data files are|is not in the (store|table)|has other numbers|total-records"
"""A snapshot has other files than the catalog, or other numbers."""
TABLE_MANIFESTS = "the manifests are|metadata has"
"""The catalog has other manifests or snapshots than the metadata."""
TABLE_DELETED = "is deleted, and is"
"""A file is deleted that an unexpired snapshot names."""
TABLE_EXPIRED = "expired .* ms after it was replaced"
"""A snapshot expires before its time."""
TABLE_BOUNDS = "partition \\d+ (had|begins at)"
"""Rows leave a table before their time."""
TABLE_LIFE = "is gone, and nobody|it was dropped, and is there|its topic was deleted, and|its retention"
"""A table is there, or gone, or keeps its rows, without a reason."""
TABLE_LEFT = "and none was left|a drop has left"
"""Files are deleted that a drop was to leave."""
TABLE_EARLY = "after a snapshot had it"
"""Files of an expired snapshot are deleted before scans that have begun with it end."""
TABLE_COLUMNS = "the row of"
"""A row is not what its value becomes, or no longer is."""
TABLE_BEHIND = "no progress.* table "
"""A table never has what its topic has."""
TWO_CLUSTERS = "two clusters of one name serve"
"""Two catalogs use one store."""
SHARED_TWICE = "delivered after it was done|acknowledged twice"
"""A record of a share group is delivered again although its acknowledgement was answered."""
