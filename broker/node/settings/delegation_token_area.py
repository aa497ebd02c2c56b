"""Settings of delegation tokens. Names are Kafka's, with underscores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from anabranch.broker.node.settings.area import CENTURY_MS, Area, Secret, setting
from anabranch.broker.node.settings.errors import SettingsError

KEY_CHARACTERS_MIN: Final = 32


@dataclass(frozen=True, kw_only=True)
class DelegationTokenSettings(Area):
    """Delegation tokens (KIP-48), with which clients authenticate themselves by SCRAM. Off without a secret key."""

    secret_key: Secret | None = setting(
        default=None,
        description=(
            "Key of tokens, at least 32 characters, the same on all nodes (Kafka: "
            "delegation.token.secret.key). Unset or empty: delegation tokens are off."
        ),
    )
    secret_key_file: Path | None = setting(
        default=None,
        description="File whose first line is this key.",
    )
    max_lifetime_ms: int = setting(
        default=604_800_000,
        ge=1,
        le=CENTURY_MS,
        description=(
            "Longest time for which a token can be renewed (Kafka: delegation.token.max.lifetime.ms). A "
            "request may ask for less."
        ),
    )
    expiry_time_ms: int = setting(
        default=86_400_000,
        ge=1,
        le=CENTURY_MS,
        description=(
            "Time after which a token expires unless it is renewed (Kafka: delegation.token.expiry.time.ms). A "
            "renewal may ask for less."
        ),
    )
    expiry_check_interval_ms: int = setting(
        default=3_600_000,
        ge=1,
        le=CENTURY_MS,
        description=(
            "Interval at which expired tokens are removed (Kafka: delegation.token.expiry.check.interval.ms). "
            "Clients cannot use them before, either."
        ),
    )
    tokens_max: int = setting(
        default=10_000,
        ge=1,
        description="Tokens of the cluster, which every node keeps in memory.",
    )


def check_delegation_tokens(area: DelegationTokenSettings) -> None:
    """Check rules that concern several settings. Raises SettingsError."""
    if area.secret_key is not None and area.secret_key_file is not None:
        raise SettingsError(
            "setting delegation_token.secret_key_file: set beside delegation_token.secret_key: remove one of them"
        )
