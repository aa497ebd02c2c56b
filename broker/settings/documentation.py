"""Writes docs/configuration.md from the settings: `python -m broker.settings.documentation`."""

from pathlib import Path

from broker.settings.area import MIB
from broker.settings.memory import ENOUGH_BYTES, PARTS, PLANNED_SHARE, PROCESS_BYTES
from broker.settings.names import (
    CONFIG_ENV,
    ENV_PREFIX,
    STORE_ENV_PREFIX,
    STORE_FLAG,
    STORES,
    Setting,
    allowed_values,
    area_models,
    describe_default,
)
from broker.settings.storage_areas import NamedStoreSettings


def documentation() -> str:
    """The text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "<!-- Generated from broker/settings by `python -m broker.settings.documentation`; a test compares. -->",
        "",
        "A setting is looked up in this order: command line flag, environment variable, TOML file (`--config` or",
        f"`{CONFIG_ENV}`), default. Sizes may be written as `512MiB`. A value that is not allowed stops the start with",
        "one line that names the setting, where it was set, the value and what is allowed (exit code 2). So does an",
        f"unknown name, in the file or of a variable that begins with `{ENV_PREFIX}`; the variables that Kubernetes",
        "and Docker make of services' names, such as `ANABRANCH_KAFKA_SERVICE_HOST`, are left alone.",
        "",
        "The TOML file has one table per area:",
        "",
        "```toml",
        "[node]",
        'data_dir = "/var/lib/anabranch"',
        "",
        "[wal]",
        'capacity_bytes = "4GiB"',
        "```",
    ]
    for area, model in area_models():
        lines += ["", f"## {area}", "", str(model.__doc__), ""]
        lines += ["| TOML | flag | environment | default | |", "|---|---|---|---|---|"]
        for name, field in model.model_fields.items():
            setting = Setting(area, name, field)
            text = f"{field.description}{allowed_values(setting)}".replace("|", "\\|")
            default = describe_default(setting)
            lines.append(f"| `{setting.key}` | `{setting.flag}` | `{setting.env}` | {default} | {text} |")
    return "\n".join([*lines, *_memory_documentation(), *_stores_documentation()]) + "\n"


def _stores_documentation() -> list[str]:
    lines = [
        "",
        "## stores",
        "",
        "More object stores, each under a name of its own (a letter, then up to 31 of `a-z`, `0-9` and hyphens). A",
        "topic chooses one by its config `storage.policy`; without it, its data goes to the store of `objects`,",
        "whose name is its kind (`local` or `s3`). Objects stay where they were written, so a store stays",
        "configured as long as it holds any: a node does not start when one is missing. Every node of a cluster",
        "has the same stores.",
        "",
        "```toml",
        "[stores.cold]",
        'type = "s3"',
        'bucket = "archive"',
        "```",
        "",
        f"As a flag, `{STORE_FLAG} cold.type=s3 {STORE_FLAG} cold.bucket=archive`; in the environment,",
        f"`{STORE_ENV_PREFIX}COLD_TYPE=s3` (a hyphen of the name is an underscore there).",
        "",
        "A topic is made in it by `anabranch topic create NAME --config storage.policy=cold`; what a topic writes from",
        "now on goes there after `kafka-configs.sh --alter --entity-type topics --entity-name NAME --add-config",
        "storage.policy=cold`. `kafka-topics.sh --create` refuses configs that Apache Kafka does not have.",
        "`anabranch storage ls --topic NAME` shows where each range of a topic lies.",
        "",
        "| TOML | default | |",
        "|---|---|---|",
    ]
    for name, field in NamedStoreSettings.model_fields.items():
        setting = Setting(STORES, name, field)
        default = "required" if field.is_required() else describe_default(setting)
        lines.append(f"| `{STORES}.NAME.{name}` | {default} | {field.description}{allowed_values(setting)} |")
    return lines


def _memory_documentation() -> list[str]:
    """The section on memory of docs/configuration.md."""
    lines = [
        "",
        "## Memory",
        "",
        "What is available to a node is `node.memory_bytes`; unset, the least of the machine's memory and the limits",
        "of all control groups that the process is in (`memory.max` and `memory.high` of version 2,",
        f"`memory.limit_in_bytes` of version 1). One part in {PLANNED_SHARE} of it is planned with:",
        "",
        f"    left   = available / {PLANNED_SHARE} - {PROCESS_BYTES // MIB} MiB (the process) - the sizes that are set",
        "    factor = min(1, left / sum of the defaults of the sizes that are unset)",
        "    size   = default * factor, but no less than its minimum",
        "",
        "A size at its minimum is taken out of the sums, and the factor is found again. The rest of the memory is for",
        "what cannot be planned: buffers on their way to the log and the store, blocks that readers still hold, the",
        "page cache, other processes. A node says at its start (`memory`) and in `/status` which sizes it has chosen.",
        "",
        "| size | default | minimum |",
        "|---|---|---|",
    ]
    for name, part in PARTS.items():
        besides = ", and 8/7 of `network.request_bytes_max`" if name == "node_bytes_max" else ""
        lines.append(f"| {part.shown} | {part.default_bytes // MIB}MiB | {part.min_bytes // MIB}MiB{besides} |")
    return [
        *lines,
        "",
        f"With less than {ENOUGH_BYTES // MIB} MiB available, sizes are smaller than their defaults; what starts an",
        "upload follows the log cache (`storage.upload_bytes`). A node works with 256 MiB, but memory for one request",
        "of `network.request_bytes_max` is always planned, beside an eighth for small ones: set that lower there.",
    ]


if __name__ == "__main__":
    target = Path(__file__).parents[2] / "docs" / "configuration.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(documentation(), encoding="utf-8")
