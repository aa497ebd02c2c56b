"""The scripts, by topic."""

from tests.differential.script import ScriptFunction
from tests.differential.scripts import (
    acls,
    admin,
    cluster,
    configs,
    consumers,
    delegation_tokens,
    fetch,
    frames,
    groups,
    produce,
    quotas,
    resources,
    sasl,
    share_states,
    telemetry,
    topics,
    transactions,
)

ALL_SCRIPTS: tuple[ScriptFunction, ...] = (
    *cluster.SCRIPTS,
    *topics.SCRIPTS,
    *configs.SCRIPTS,
    *resources.SCRIPTS,
    *admin.SCRIPTS,
    *acls.SCRIPTS,
    *quotas.SCRIPTS,
    *telemetry.SCRIPTS,
    *produce.SCRIPTS,
    *fetch.SCRIPTS,
    *groups.SCRIPTS,
    *consumers.SCRIPTS,
    *transactions.SCRIPTS,
    *share_states.SCRIPTS,
    *frames.SCRIPTS,
    *sasl.SCRIPTS,
    *delegation_tokens.SCRIPTS,
)
