"""Names of topics: which ones Kafka allows, which ones collide, and which ones are reserved."""

import re
from typing import Final

from anabranch.protocol.errors import ErrorCode, KafkaError

NAME_LENGTH_MAX: Final = 249
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
"""The log of Kafka's controllers. It does not exist here, and no user's topic may have its name."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION, with Kafka's message, for a name that Kafka refuses."""
    problem = ""
    if not name:
        problem = "the empty string is not allowed"
    elif name in {".", ".."}:
        problem = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif not _LEGAL_NAME.fullmatch(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if problem:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def collision_key(name: str) -> str:
    """Return the form in which two names collide: names of Kafka's metrics have `_` instead of `.`."""
    return name.replace(".", "_")
