"""Topic ids as text, in the form of Kafka's tools."""

from base64 import urlsafe_b64encode


def id_text(topic_id: bytes) -> str:
    """Format a topic id as Kafka's tools do; `-` if there is none."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode() if any(topic_id) else "-"
