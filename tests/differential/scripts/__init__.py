"""The scripts, by what they are about."""

from tests.differential.script import ScriptFunction
from tests.differential.scripts import (
    cluster,
    configs,
    consumers,
    fetch,
    frames,
    groups,
    produce,
    topics,
    transactions,
)

ALL_SCRIPTS: tuple[ScriptFunction, ...] = (
    *cluster.SCRIPTS,
    *topics.SCRIPTS,
    *configs.SCRIPTS,
    *produce.SCRIPTS,
    *fetch.SCRIPTS,
    *groups.SCRIPTS,
    *consumers.SCRIPTS,
    *transactions.SCRIPTS,
    *frames.SCRIPTS,
)
