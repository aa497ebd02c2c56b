"""Names of the mechanisms of SASL."""

from typing import Final

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (SCRAM_SHA_512, SCRAM_SHA_256, OAUTHBEARER, PLAIN)
"""The mechanisms, the preferred ones first."""
