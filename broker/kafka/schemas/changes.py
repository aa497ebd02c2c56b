"""Changes of the registry: decisions from its state, each with records for the log and an answer.

The records of a change are one batch, so that the log has all or none of them. Nothing is decided from a state that the
log has left behind: `registry` asks again then.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from anabranch.broker.kafka.schemas.compatibility import Parsed
from anabranch.broker.kafka.schemas.model import (
    VERSION_MAX,
    ErrorKind,
    Level,
    Mode,
    RegistryError,
    Schema,
    Version,
)
from anabranch.broker.kafka.schemas.queries import Queries
from anabranch.broker.kafka.schemas.records import (
    IdMark,
    LevelRecord,
    ModeRecord,
    RegistryRecord,
    SubjectDeletion,
    VersionRecord,
)
from anabranch.broker.kafka.schemas.requests import Arguments

CHARACTERS_MAX: Final = 128 << 20
"""Characters of all schemas."""
_UNSERVED_CONFIGS: Final = (
    "alias", "compatibilityGroup", "compatibilityPolicy", "defaultMetadata", "defaultRuleSet", "normalize",
    "overrideMetadata", "overrideRuleSet", "validateFields", "validateRules",
)  # fmt: skip
"""Fields of a config that would change what the registry does, and would be lost silently beside a level."""
_SERVED_POLICY: Final = ("compatibilityPolicy", "STRICT")
"""The one of these that is what the registry does anyway."""


class Change(NamedTuple):
    """Records of a change, none if there is nothing to change, and the answer once they are durable."""

    records: Sequence[RegistryRecord]
    answer: Any


class Changes:
    """Decides on changes from a current state."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._state = queries.state

    # -- Registration ------------------------------------------------------------------------------------------------

    async def register(self, call: Arguments) -> Change:
        """POST /subjects/{subject}/versions."""
        subject, mode = call.subject, self._writable(call.subject)
        wanted_id, wanted_version = call.optional("id"), call.optional("version")
        if mode is not Mode.IMPORT and wanted_id is not None:
            raise RegistryError(ErrorKind.NOT_PERMITTED, f"Subject {subject} is not in import mode")
        schema, parsed = await self._queries.parsed(call.schema, is_normal=call.flag("normalize"))
        if mode is Mode.IMPORT:
            return self._import(subject, schema, wanted_id, wanted_version)
        versions = self._state.versions(subject)
        found = await self._queries.same(schema, parsed, versions)
        if found is not None:
            return Change((), {"id": found.id})
        self._check_room(schema)
        number = self._state.next_version(subject)
        if wanted_version not in {None, number}:
            raise RegistryError(
                ErrorKind.INVALID_VERSION, f"The specified version {wanted_version} is not the next version {number}"
            )
        await self._check_compatible(subject, parsed, versions)
        schema_id = await self._id_for(subject, schema, parsed)
        return Change([VersionRecord(subject, number, Version(subject, number, schema_id, schema))], {"id": schema_id})

    async def _check_compatible(self, subject: str, parsed: Parsed, versions: list[Version]) -> None:
        level = self._state.level_of(subject, self._queries.default_level)
        if level is Level.NONE or not versions:
            return
        compared = versions if level.is_transitive else versions[-1:]
        if found := await self._queries.parser.compare(parsed, await self._queries.earlier(compared), level):
            raise RegistryError(
                ErrorKind.INCOMPATIBLE,
                f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
                f"details: [{', '.join(found)}]",
            )

    async def _id_for(self, subject: str, schema: Schema, parsed: Parsed) -> int:
        """Return the id that the schema has already, also as a version that was deleted, or a new one."""
        known = self._state.id_of(schema)
        if known is not None:
            return known
        deleted = await self._queries.same(schema, parsed, self._state.versions(subject, deleted=True))
        if deleted is not None:
            return deleted.id
        if self._state.id_max >= VERSION_MAX:
            raise RegistryError(ErrorKind.STORE, "all ids have been given")
        return self._state.id_max + 1

    def _import(self, subject: str, schema: Schema, wanted_id: int | None, wanted_version: int | None) -> Change:
        if wanted_id is None:
            raise RegistryError(ErrorKind.NOT_PERMITTED, f"Subject {subject} is in import mode: a schema needs its id")
        if self._state.has_id(wanted_id) and all(each.schema != schema for each in self._state.by_id(wanted_id)):
            raise RegistryError(ErrorKind.NOT_PERMITTED, f"Overwrite new schema with id {wanted_id} is not permitted.")
        self._check_room(schema)
        number = wanted_version or self._state.next_version(subject)
        for each in self._state.versions(subject, deleted=True):
            if each.version == number and each.id != wanted_id:
                raise RegistryError(
                    ErrorKind.NOT_PERMITTED, f"Overwrite version {number} of subject {subject} is not permitted."
                )
        return Change([VersionRecord(subject, number, Version(subject, number, wanted_id, schema))], {"id": wanted_id})

    def _check_room(self, schema: Schema) -> None:
        """Raise NOT_PERMITTED if the registry is full: all schemas are in memory."""
        if self._state.characters + len(schema.text) > CHARACTERS_MAX:
            raise RegistryError(
                ErrorKind.NOT_PERMITTED,
                f"all schemas together would have more than {CHARACTERS_MAX} characters: delete some for good",
            )

    # -- Deletion ----------------------------------------------------------------------------------------------------

    async def delete_subject(self, call: Arguments) -> Change:
        """DELETE /subjects/{subject}."""
        subject = call.subject
        self._writable(subject)
        every = self._state.required_versions(subject, deleted=True)
        live = [each for each in every if not each.is_deleted]
        if call.flag("permanent"):
            if live:
                raise RegistryError(
                    ErrorKind.SUBJECT_NOT_SOFT_DELETED,
                    f"Subject '{subject}' was not deleted first before being permanently deleted",
                )
            self._check_unreferenced(every, is_permanent=True)
            records: list[RegistryRecord] = [VersionRecord(*each.slot, None) for each in every]
            records += [SubjectDeletion(subject, None), *self._without_settings(subject)]
            return Change([*records, IdMark(self._state.id_max)], [each.version for each in every])
        if not live:
            raise RegistryError(
                ErrorKind.SUBJECT_SOFT_DELETED,
                f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently",
            )
        self._check_unreferenced(live, is_permanent=False)
        deletion = SubjectDeletion(subject, live[-1].version)
        return Change([deletion, *self._without_settings(subject)], [each.version for each in live])

    async def delete_version(self, call: Arguments) -> Change:
        """DELETE /subjects/{subject}/versions/{version}."""
        subject, is_permanent = call.subject, call.flag("permanent")
        self._writable(subject)
        found = self._state.version(subject, call.version, deleted=call.version is not None)
        number = found.version
        if found.is_deleted and not is_permanent:
            raise RegistryError(
                ErrorKind.VERSION_SOFT_DELETED,
                f"Subject '{subject}' Version {number} was soft deleted.Set permanent=true to delete permanently",
            )
        if is_permanent and not found.is_deleted:
            raise RegistryError(
                ErrorKind.VERSION_NOT_SOFT_DELETED,
                f"Subject '{subject}' Version {number} was not deleted first before being permanently deleted",
            )
        self._check_unreferenced([found], is_permanent=is_permanent)
        if is_permanent:
            return Change([VersionRecord(subject, number, None), IdMark(self._state.id_max)], number)
        records: list[RegistryRecord] = [VersionRecord(subject, number, replace(found, is_deleted=True))]
        if len(self._state.versions(subject)) == 1:
            records += self._without_settings(subject)
        return Change(records, number)

    def _check_unreferenced(self, versions: Sequence[Version], *, is_permanent: bool) -> None:
        """Raise REFERENCE_EXISTS if other versions than these refer to one of them.

        For good they go after those that refer to them, which are read by their ids while they are soft-deleted.
        """
        slots = {each.slot for each in versions}
        for each in versions:
            if any(other.slot not in slots for other in self._state.referring(*each.slot, deleted=is_permanent)):
                raise RegistryError(
                    ErrorKind.REFERENCE_EXISTS,
                    "One or more references exist to the schema "
                    f"{{magic=1,keytype=SCHEMA,subject={each.subject},version={each.version}}}.",
                )

    def _without_settings(self, subject: str) -> list[RegistryRecord]:
        """Return the records that withdraw level and mode of a subject without versions."""
        records: list[RegistryRecord] = []
        if subject in self._state.modes:
            records.append(ModeRecord(subject, None))
        if subject in self._state.levels:
            records.append(LevelRecord(subject, None))
        return records

    # -- Settings ----------------------------------------------------------------------------------------------------

    async def set_level(self, call: Arguments) -> Change:
        """PUT /config and /config/{subject}."""
        scope, text = call.scope, call.text("compatibility").upper()
        for name in _UNSERVED_CONFIGS:
            if (value := call.body.get(name)) and (name, value) != _SERVED_POLICY:
                raise RegistryError(422, f"the config {name} is not served here: only compatibility is")
        if text not in set(Level):
            raise RegistryError(
                ErrorKind.INVALID_LEVEL,
                "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
                "forward_transitive, and full_transitive",
            )
        self._check_writable(scope)
        return Change([LevelRecord(scope, Level(text))], {"compatibility": text})

    async def delete_level(self, call: Arguments) -> Change:
        """DELETE /config and /config/{subject}."""
        scope = call.scope
        found = await self._queries.level(call)
        self._check_writable(scope)
        return Change([LevelRecord(scope, None)], found)

    async def set_mode(self, call: Arguments) -> Change:
        """PUT /mode and /mode/{subject}."""
        scope, text = call.scope, call.text("mode").upper()
        if text not in set(Mode):
            raise RegistryError(ErrorKind.INVALID_MODE, f"Invalid mode. Valid values are {', '.join(Mode)}.")
        if Mode(text) is Mode.IMPORT and not call.flag("force"):
            is_used = self._state.subjects() if scope is None else self._state.versions(scope)
            if is_used:
                raise RegistryError(ErrorKind.NOT_PERMITTED, "Cannot import since found existing subjects")
        return Change([ModeRecord(scope, Mode(text))], {"mode": text})

    async def delete_mode(self, call: Arguments) -> Change:
        """DELETE /mode and /mode/{subject}."""
        found = await self._queries.mode(call)
        return Change([ModeRecord(call.scope, None)], found)

    def _writable(self, subject: str) -> Mode:
        """Return the mode of a subject. Raises NOT_PERMITTED if it is read-only."""
        mode = self._state.mode_of(subject)
        if mode.is_read_only:
            raise RegistryError(ErrorKind.NOT_PERMITTED, f"Subject {subject} is in read-only mode")
        return mode

    def _check_writable(self, scope: str | None) -> None:
        if scope is not None:
            self._writable(scope)
        elif self._state.modes.get(None, Mode.READWRITE).is_read_only:
            raise RegistryError(ErrorKind.NOT_PERMITTED, "The registry is in read-only mode")
