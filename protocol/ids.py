"""Text form of ids of topics and other things (Kafka's Uuid): base64 without padding, with `-` and `_`."""

from base64 import urlsafe_b64encode


def uuid_text(value: bytes) -> str:
    """Format an id of 16 bytes as Kafka's tools do."""
    return urlsafe_b64encode(value).rstrip(b"=").decode()
