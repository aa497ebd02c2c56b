"""The state of the registry: what the records of the log amount to, in their order.

Invariants:

- An id stands for one schema. Ids only grow, also over deletions for good.
- Versions of a subject only grow, also over soft deletion.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from anabranch.broker.kafka.schemas.model import (
    REFERENCES_MAX,
    ErrorKind,
    Level,
    Mode,
    Reference,
    RegistryError,
    Resolved,
    Schema,
    Version,
)
from anabranch.broker.kafka.schemas.records import (
    IdMark,
    LevelRecord,
    ModeRecord,
    RegistryRecord,
    SubjectClearing,
    SubjectDeletion,
    VersionRecord,
)

T = TypeVar("T")
REFERENCE_DEPTH_MAX = 30


class RegistryState:
    """All subjects, levels and modes."""

    def __init__(self) -> None:
        self._subjects: dict[str, dict[int, Version]] = {}
        self._by_id: dict[int, dict[tuple[str, int], Version]] = {}
        """Versions of each id, by subject and version."""
        self._ids: dict[Schema, int] = {}
        """Smallest id of each schema that is stored."""
        self._referring: dict[tuple[str, int], set[tuple[str, int]]] = {}
        """Versions that refer to a version."""
        self.levels: dict[str | None, Level] = {}
        """Levels that are set, by subject; None: the registry's."""
        self.modes: dict[str | None, Mode] = {}
        """Modes, likewise."""
        self.id_max = 0
        """Largest id that was ever given."""
        self.characters = 0
        """Characters of the schemas of all versions."""

    # -- Records -----------------------------------------------------------------------------------------------------

    def apply(self, record: RegistryRecord) -> None:
        """Change the state as a record of the log says."""
        match record:
            case VersionRecord(subject, version, None):
                self._remove(subject, version)
            case VersionRecord(_, _, Version() as value):
                self._put(value)
            case LevelRecord(subject, level):
                _set(self.levels, subject, level)
            case ModeRecord(subject, mode):
                _set(self.modes, subject, mode)
            case SubjectDeletion(subject, int(up_to)):
                for each in self.versions(subject):
                    if each.version <= up_to:
                        self._put(replace(each, is_deleted=True))
            case SubjectClearing(subject, is_withdrawn=False):
                for each in self.versions(subject, deleted=True):
                    if each.is_deleted:
                        self._remove(subject, each.version)
            case IdMark(id_max):
                self.id_max = max(self.id_max, id_max)

    def _put(self, value: Version) -> None:
        self._remove(*value.slot)
        self._subjects.setdefault(value.subject, {})[value.version] = value
        self.characters += len(value.schema.text)
        self._by_id.setdefault(value.id, {})[value.slot] = value
        self._ids[value.schema] = min(value.id, self._ids.get(value.schema, value.id))
        self.id_max = max(self.id_max, value.id)
        for each in value.schema.references:
            self._referring.setdefault((each.subject, each.version), set()).add(value.slot)

    def _remove(self, subject: str, version: int) -> None:
        value = self._subjects.get(subject, {}).pop(version, None)
        if value is None:
            return
        self.characters -= len(value.schema.text)
        if not self._subjects[subject]:
            del self._subjects[subject]
        of_id = self._by_id[value.id]
        del of_id[value.slot]
        if not of_id:
            del self._by_id[value.id]
        is_left = any(each.schema == value.schema for each in of_id.values())
        if not is_left and self._ids.get(value.schema) == value.id:
            del self._ids[value.schema]
        for each in value.schema.references:
            self._referring[each.subject, each.version].discard(value.slot)

    # -- Subjects ----------------------------------------------------------------------------------------------------

    def subjects(self, *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Return the subjects with a version; `deleted` ones count too, or only those that have no other versions."""
        found = []
        for subject, versions in self._subjects.items():
            is_deleted = all(each.is_deleted for each in versions.values())
            if is_deleted if deleted_only else deleted or not is_deleted:
                found.append(subject)
        return sorted(found)

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return the versions of a subject in their order, with soft-deleted ones if asked for."""
        found = self._subjects.get(subject, {}).values()
        return sorted((each for each in found if deleted or not each.is_deleted), key=lambda each: each.version)

    def required_versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return the versions of a subject. Raises SUBJECT_NOT_FOUND if there are none."""
        found = self.versions(subject, deleted=deleted)
        if not found:
            raise RegistryError(ErrorKind.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        return found

    def version(self, subject: str, version: int | None, *, deleted: bool = False) -> Version:
        """Return a version, None: the last one. Raises SUBJECT_NOT_FOUND, VERSION_NOT_FOUND."""
        if version is None:
            return self.required_versions(subject, deleted=deleted)[-1]
        found = self._subjects.get(subject, {}).get(version)
        if found is not None and (deleted or not found.is_deleted):
            return found
        self.required_versions(subject, deleted=deleted)
        raise RegistryError(ErrorKind.VERSION_NOT_FOUND, f"Version {version} not found.")

    def next_version(self, subject: str) -> int:
        """Return the number of the next version of a subject."""
        return max(self._subjects.get(subject, {}), default=0) + 1

    def all_versions(self, *, deleted: bool = False) -> Iterator[Version]:
        """Yield the versions of all subjects, ordered by subject and version."""
        for subject in sorted(self._subjects):
            yield from self.versions(subject, deleted=deleted)

    # -- Ids ---------------------------------------------------------------------------------------------------------

    def by_id(self, schema_id: int) -> Sequence[Version]:
        """Return the versions of an id, soft-deleted ones too, by subject and version. Raises SCHEMA_NOT_FOUND."""
        found = self._by_id.get(schema_id)
        if found is None:
            raise RegistryError(ErrorKind.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
        return [found[slot] for slot in sorted(found)]

    def has_id(self, schema_id: int) -> bool:
        """Return whether an id stands for a schema."""
        return schema_id in self._by_id

    def id_of(self, schema: Schema) -> int | None:
        """Return the id of a schema that is stored under any subject; None if there is none."""
        return self._ids.get(schema)

    # -- References --------------------------------------------------------------------------------------------------

    def referring(self, subject: str, version: int, *, deleted: bool = False) -> list[Version]:
        """Return the versions that refer to one."""
        slots = sorted(self._referring.get((subject, version), ()))
        found = (self._subjects[name][number] for name, number in slots)
        return [each for each in found if deleted or not each.is_deleted]

    def resolve(self, schema: Schema) -> Resolved:
        """Return a schema with the texts of those that it refers to. Raises RegistryError.

        A version that was soft-deleted is still found: data may have been written with it.
        """
        texts: dict[str, str] = {}
        self._collect(schema.references, texts, 0)
        return Resolved(schema, texts)

    def _collect(self, references: Sequence[Reference], texts: dict[str, str], depth: int) -> None:
        if depth > REFERENCE_DEPTH_MAX:
            raise RegistryError(
                ErrorKind.INVALID_SCHEMA, f"Invalid schema: references over more than {REFERENCE_DEPTH_MAX} steps"
            )
        for each in references:
            if each.name in texts:
                continue
            number = None if each.version == -1 else each.version
            try:
                referred = self.version(each.subject, number, deleted=number is not None)
            except RegistryError as error:
                raise RegistryError(
                    ErrorKind.INVALID_SCHEMA,
                    f"Invalid schema: no schema for the reference '{each.name}': version {each.version} of subject "
                    f"'{each.subject}': {error}",
                ) from None
            if len(texts) >= REFERENCES_MAX:
                raise RegistryError(
                    ErrorKind.INVALID_SCHEMA, f"Invalid schema: it refers to more than {REFERENCES_MAX} others"
                )
            self._collect(referred.schema.references, texts, depth + 1)
            texts[each.name] = referred.schema.text

    # -- Settings ----------------------------------------------------------------------------------------------------

    def level_of(self, subject: str, default: Level) -> Level:
        """Return the level in force for a subject."""
        return self.levels.get(subject) or self.levels.get(None) or default

    def mode_of(self, subject: str) -> Mode:
        """Return the mode in force for a subject."""
        whole = self.modes.get(None, Mode.READWRITE)
        return whole if whole is Mode.READONLY_OVERRIDE else self.modes.get(subject, whole)


def _set(settings: dict[str | None, T], subject: str | None, value: T | None) -> None:
    if value is None:
        settings.pop(subject, None)
    else:
        settings[subject] = value
