"""Records what Apache Kafka makes of the spellings in `tests.support.config_spellings`.

    python -m tests.interop.record_config_values

Run it with a new version of Apache Kafka, or after a change of the spellings.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from anabranch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from benchmarks.lab.processes import ApacheKafka
from tests.differential.peer import Peer
from tests.differential.script import Script
from tests.support.config_spellings import BROKER, CLIENT_METRICS, CONFIGS, GROUP, SHOWN_FILE, TOPIC

SET, DELETE = 0, 1
MARKERS = {
    TOPIC: "file.delete.delay.ms",
    BROKER: "log.segment.delete.delay.ms",
    GROUP: "consumer.session.timeout.ms",
    CLIENT_METRICS: "interval.ms",
}
"""Configs that are changed together with another one: it is in force when they are."""


def shown_by(peer: Peer) -> Mapping[str, Mapping[str, str | None]]:
    """Return the value that a broker shows for each spelling, by config; None for one that it refuses."""
    script = Script(peer)
    script.topic("cs-t")
    found: dict[str, dict[str, str | None]] = {}
    for (kind, name, key), spellings in CONFIGS.items():
        marker = MARKERS[kind] if MARKERS[kind] != key else "match"
        shown = found.setdefault(f"{kind} {key}", {})
        for number, spelling in enumerate(spellings):
            mark = f"client_id={number}" if marker == "match" else str(50_000 + number)
            is_set = _alter(script, kind, name, {key: spelling, marker: mark})
            shown[spelling] = _shown(script, kind, name, key, marker, mark) if is_set else None
        _alter(script, kind, name, {key: None, marker: None})
    script.close()
    return found


def _alter(script: Script, kind: int, name: str, configs: Mapping[str, str | None]) -> bool:
    changes = [
        AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
        for key, value in configs.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    answer = script.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    return not answer.responses[0].error_code


def _shown(script: Script, kind: int, name: str, key: str, marker: str, mark: str) -> str | None:
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key, marker])
    request = DescribeConfigsRequest(resources=[asked])

    def values(answer: DescribeConfigsResponse) -> Mapping[str, str | None]:
        return {config.name: config.value for config in answer.results[0].configs}

    return values(script.until(request, 4, lambda answer: values(answer).get(marker) == mark)).get(key)


def main() -> None:
    """Record what Apache Kafka shows."""
    with tempfile.TemporaryDirectory() as folder, ApacheKafka(Path(folder) / "home") as kafka:
        shown = shown_by(Peer("Apache Kafka", "127.0.0.1", kafka.port))
    SHOWN_FILE.write_text(json.dumps(shown, indent=1) + "\n")


if __name__ == "__main__":
    main()
