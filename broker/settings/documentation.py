"""Writes docs/configuration.md from the settings: `python -m broker.settings.documentation`."""

from pathlib import Path

from broker.settings.area import MIB
from broker.settings.memory import FULL_SIZES_BYTES, PLANNED_SHARE, PROCESS_BYTES, SHARES
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
        f"`{CONFIG_ENV}`), default. Sizes may be written as `512MiB`, or as `512MB` (millions of bytes). An invalid",
        "value stops the start with one line that names the setting, its source, the value and the allowed values",
        "(exit code 2). So does an unknown name",
        f"in the file, or a variable that begins with `{ENV_PREFIX}` and names no setting. Variables",
        "that Kubernetes and",
        "Docker derive from the names of services, such as `ANABRANCH_KAFKA_SERVICE_HOST`, are ignored.",
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
            flag = f"`{setting.flag}`" if setting.flag else "none"
            lines.append(f"| `{setting.key}` | {flag} | `{setting.env}` | {default} | {text} |")
    return "\n".join([*lines, *_memory_documentation(), *_stores_documentation()]) + "\n"


def _stores_documentation() -> list[str]:
    lines = [
        "",
        "## stores",
        "",
        "Additional object stores, each with a name (a letter, then up to 31 of `a-z`, `0-9` and hyphens). A topic",
        "chooses one with its config `storage.policy`. Without it, the topic's data goes to the store of `objects`,",
        "whose name is its kind (`local` or `s3`). Objects stay where they were written, so a store",
        "must stay configured as",
        "long as it holds any: a node does not start when one is missing. All nodes of a cluster need the same stores.",
        "",
        "```toml",
        "[stores.cold]",
        'type = "s3"',
        'bucket = "archive"',
        "```",
        "",
        f"As flags: `{STORE_FLAG} cold.type=s3 {STORE_FLAG} cold.bucket=archive`. In the environment:",
        f"`{STORE_ENV_PREFIX}COLD_TYPE=s3` (a hyphen of the name becomes an underscore).",
        "",
        "Create a topic in a store with `anabranch topic create NAME --config storage.policy=cold`. Send an existing",
        "topic's new data there with `kafka-configs.sh --alter --entity-type topics --entity-name NAME --add-config",
        "storage.policy=cold`. `kafka-topics.sh --create` refuses configs that Apache Kafka does not have.",
        "`anabranch storage ls --topic NAME` shows the store of each range of a topic.",
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
        "The memory available to a node is `node.memory_bytes`. Unset, it is the minimum of the machine's memory and",
        "the limits of all control groups that the process is in (`memory.max` and `memory.high` of version 2,",
        f"`memory.limit_in_bytes` of version 1). 1/{PLANNED_SHARE} of it is divided among these sizes:",
        "",
        f"    left   = available / {PLANNED_SHARE} - {PROCESS_BYTES // MIB} MiB (the process) - the sizes that are set",
        "    factor = min(1, left / sum of the defaults of the sizes that are unset)",
        "    size   = default * factor, but no less than its minimum",
        "",
        "A size at its minimum is left out of the sums, and the factor is computed again. The rest of the memory is",
        "for everything that cannot be planned: buffers on their way to the log and the store, blocks",
        "that readers still",
        "hold, the page cache, other processes. A node logs its sizes at the start (`memory`) and shows them in",
        "`/status`.",
        "",
        "| size | default | minimum |",
        "|---|---|---|",
    ]
    for name, part in SHARES.items():
        besides = ", and 8/7 of `network.request_bytes_max`" if name == "node_bytes_max" else ""
        lines.append(f"| {part.shown} | {part.default_bytes // MIB}MiB | {part.min_bytes // MIB}MiB{besides} |")
    return [
        *lines,
        "",
        f"With less than {FULL_SIZES_BYTES // MIB} MiB available, sizes are smaller than their defaults. The upload",
        "threshold follows the log cache (`storage.upload_bytes`). A node works with 256 MiB. Memory",
        "for one request of",
        "`network.request_bytes_max` is always reserved, in addition to 1/8 for small requests: set it lower on such",
        "a node.",
    ]


if __name__ == "__main__":
    target = Path(__file__).parents[2] / "docs" / "configuration.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(documentation(), encoding="utf-8")
