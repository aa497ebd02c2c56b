"""Facts about settings that commands need without loading the settings, which takes longer than a small command may."""

from typing import Final, Literal, get_args

ENV_PREFIX: Final = "ANABRANCH_"
CONFIG_ENV: Final = "ANABRANCH_CONFIG"
PROFILE_ENV: Final = "ANABRANCH_PROFILE"
"""Profile of commands."""
ADMIN_HOST: Final = "127.0.0.1"
ADMIN_PORT: Final = 9644
ADMIN_LISTENER: Final = "admin.listener"
"""Broker config from which commands learn the admin port."""
# fmt: off
KafkaRelease = Literal[
    "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8",
    "3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9",
    "4.0", "4.1", "4.2", "4.3", "4.4",
]
# fmt: on
"""Releases of Apache Kafka that a node can present itself as.

Of older ones it has next to nothing: Apache Kafka 4 has dropped their versions (KIP-896), and so has the node.
"""
KAFKA_RELEASES: Final = get_args(KafkaRelease)
