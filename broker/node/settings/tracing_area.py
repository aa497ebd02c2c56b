"""Settings of traces."""

from dataclasses import dataclass

from anabranch.broker.node.settings.area import Area, setting


@dataclass(frozen=True, kw_only=True)
class TracingSettings(Area):
    """Traces of records on their way through the node, sent to an OpenTelemetry collector. Needs `anabranch[otel]`."""

    enabled: bool = setting(default=False, description="Send traces. Off: OpenTelemetry is not even loaded.")
    endpoint: str = setting(
        default="",
        pattern=r"^(https?://[^\s/@]+(/\S*)?)?$",
        max_length=2048,
        description=(
            "URL of the collector (OTLP over HTTP): `http://collector:4318`, with a path if it is not "
            "`/v1/traces`. Empty: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, else "
            "`http://localhost:4318`. Credentials go into OTEL_EXPORTER_OTLP_HEADERS."
        ),
    )
    sample_ratio: float = setting(
        default=0.01,
        ge=0,
        le=1,
        description=(
            "Share of Produce and Fetch requests that are traced. Uploads and compactions of their records are traced "
            "with them. 0: nothing is."
        ),
    )
    service_name: str = setting(
        default="",
        max_length=256,
        description="Name of the service in traces. Empty: the one in OTEL_SERVICE_NAME, else `anabranch`.",
    )
