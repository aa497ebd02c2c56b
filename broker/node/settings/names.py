"""The outside names of settings: in the TOML file, as flags, and as environment variables."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, get_args, get_origin

from anabranch.broker.node.settings.area import Area, Definition, definitions
from anabranch.broker.node.settings.known import ENV_PREFIX
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.storage_areas import NamedStoreSettings
from anabranch.broker.node.settings.table_catalogs import TableCatalogSettings

_PLAIN_AREAS: Final = frozenset({"node", "listener"})
"""Areas whose name is left out of flags and environment variables."""


@dataclass(frozen=True, slots=True)
class NamedArea:
    """An area of which there may be several, each with a name that the user chooses."""

    key: str
    """Its tables in the TOML file are `[key.NAME]`."""
    noun: str
    flag: str
    env_prefix: str
    model: type[Area]

    @property
    def flag_fields(self) -> tuple[str, ...]:
        """Fields that a flag may set: no secrets."""
        return tuple(name for name, definition in definitions(self.model).items() if not definition.is_secret)


STORES: Final = NamedArea("stores", "store", "--store", "ANABRANCH_STORE_", NamedStoreSettings)
TABLE_CATALOGS: Final = NamedArea(
    "table_catalogs", "table catalog", "--table-catalog", "ANABRANCH_TABLE_CATALOG_", TableCatalogSettings
)
NAMED_AREAS: Final = (STORES, TABLE_CATALOGS)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, with its names in file, flags and environment."""

    area: str
    name: str
    definition: Definition

    @property
    def key(self) -> str:
        """Name in the TOML file: table and key."""
        return f"{self.area}.{self.name}"

    @property
    def outside_name(self) -> str:
        """Name in flags and environment, with underscores."""
        return self.name if self.area in _PLAIN_AREAS else f"{self.area}_{self.name}"

    @property
    def is_secret(self) -> bool:
        """True for a setting that has no flag, because any user of the machine can read a command line."""
        return self.definition.is_secret

    @property
    def flag(self) -> str:
        """Command line flag; empty for a secret."""
        return "" if self.is_secret else "--" + self.outside_name.replace("_", "-")

    @property
    def env(self) -> str:
        """Environment variable."""
        return ENV_PREFIX + self.outside_name.upper()


def area_models() -> Iterator[tuple[str, type[Area]]]:
    """Yield the name and model of each area, in order, without those that have names of their own."""
    named = {each.key for each in NAMED_AREAS}
    for name, definition in definitions(Settings).items():
        if name in named:
            continue
        model = definition.kind
        assert isinstance(model, type), "an area is a model"
        assert issubclass(model, Area), "an area is a model"
        yield name, model


@cache
def all_settings() -> tuple[Setting, ...]:
    """Return every setting, area by area."""
    return tuple(
        Setting(area, name, definition)
        for area, model in area_models()
        for name, definition in definitions(model).items()
    )


def describe_default(setting: Setting) -> str:
    """Return the default as shown in help and documentation."""
    default = setting.definition.default
    if default is None:
        return "unset"
    if default == "":
        return "empty"
    if isinstance(default, bool):
        return "true" if default else "false"
    if "bytes" in setting.name and isinstance(default, int) and default >= 1024:
        for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if default % size == 0:
                return f"{default // size}{unit}"
    return str(default)


def allowed_values(setting: Setting) -> str:
    """Return a sentence with the allowed values of an enumerated setting; empty if the description names them."""
    kind = setting.definition.kind
    if get_origin(kind) is not Literal:
        return ""
    values = [f"`{value}`" for value in get_args(kind) if value]
    if all(value in setting.definition.description for value in values):
        return ""
    return f" One of {', '.join(values)}."
