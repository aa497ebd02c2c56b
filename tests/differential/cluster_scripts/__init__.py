"""The scripts for a cluster, by topic. Those of an outage run last, since they lose a broker."""

from tests.differential.cluster_script import ClusterScriptFunction
from tests.differential.cluster_scripts import brokers, groups, leaders, share_groups, topics, transactions, views

CLUSTER_SCRIPTS: tuple[ClusterScriptFunction, ...] = (
    *views.SCRIPTS,
    *topics.SCRIPTS,
    *leaders.SCRIPTS,
    *groups.SCRIPTS,
    *share_groups.SCRIPTS,
    *transactions.SCRIPTS,
    *brokers.SCRIPTS,
)
