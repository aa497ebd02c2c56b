"""Facts about settings that commands need without loading the settings, which takes longer than a small command may."""

from typing import Final

ENV_PREFIX: Final = "ANABRANCH_"
CONFIG_ENV: Final = "ANABRANCH_CONFIG"
PROFILE_ENV: Final = "ANABRANCH_PROFILE"
"""Profile of commands."""
ADMIN_HOST: Final = "127.0.0.1"
ADMIN_PORT: Final = 9644
