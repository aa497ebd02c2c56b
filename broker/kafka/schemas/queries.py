"""Questions to the registry: functions of its state. None of them changes anything.

Answers have the fields of Confluent's REST API. A schema of Avro has no `schemaType` in answers.
"""

from typing import Any, Final

from anabranch.broker.kafka.schemas.compatibility import Earlier, Parsed
from anabranch.broker.kafka.schemas.formats.protobuf import ProtobufSchema
from anabranch.broker.kafka.schemas.model import (
    ErrorKind,
    InvalidSchema,
    Kind,
    Level,
    Mode,
    Reference,
    RegistryError,
    Schema,
    Version,
)
from anabranch.broker.kafka.schemas.parser import SchemaParser
from anabranch.broker.kafka.schemas.requests import Arguments
from anabranch.broker.kafka.schemas.state import RegistryState

LISTED_CHARACTERS_MAX: Final = 1 << 20
"""Characters of the schemas in one list."""


class Queries:
    """Answers from a state that is current."""

    def __init__(self, state: RegistryState, parser: SchemaParser, default_level: Level) -> None:
        self.state = state
        self.parser = parser
        self.default_level = default_level

    # -- Subjects and versions ---------------------------------------------------------------------------------------

    async def subjects(self, call: Arguments) -> Any:
        """GET /subjects."""
        prefix = call.query.get("subjectPrefix", "").removeprefix(":*:")
        found = self.state.subjects(
            deleted=call.flag("deleted"), deleted_only=call.flag("deletedOnly") or call.flag("deleted_only")
        )
        return call.page([each for each in found if each.startswith(prefix)])

    async def versions(self, call: Arguments) -> Any:
        """GET /subjects/{subject}/versions."""
        is_only = call.flag("deletedOnly") or call.flag("deleted_only")
        found = self.state.required_versions(call.subject, deleted=is_only or call.flag("deleted"))
        return call.page([each.version for each in found if each.is_deleted or not is_only])

    async def version(self, call: Arguments) -> Any:
        """GET /subjects/{subject}/versions/{version}."""
        found = self.state.version(call.subject, call.version, deleted=call.flag("deleted"))
        return described(found, await self._text(found.schema, call))

    async def version_text(self, call: Arguments) -> Any:
        """GET /subjects/{subject}/versions/{version}/schema."""
        found = self.state.version(call.subject, call.version, deleted=call.flag("deleted"))
        return _as_bytes(await self._text(found.schema, call))

    async def referring(self, call: Arguments) -> Any:
        """GET /subjects/{subject}/versions/{version}/referencedby."""
        found = self.state.version(call.subject, call.version, deleted=True)
        ids = {each.id for each in self.state.referring(*found.slot, deleted=call.flag("deleted"))}
        return call.page(sorted(ids))

    async def find(self, call: Arguments) -> Any:
        """POST /subjects/{subject}: the version that a schema is."""
        subject, deleted = call.subject, call.flag("deleted")
        candidates = self.state.required_versions(subject, deleted=deleted)
        schema, parsed = await self.parsed(call.schema, is_normal=call.flag("normalize"))
        found = await self.same(schema, parsed, candidates)
        if found is None:
            raise RegistryError(ErrorKind.SCHEMA_NOT_FOUND, "Schema not found")
        return described(found, await self._text(found.schema, call))

    # -- Schemas -----------------------------------------------------------------------------------------------------

    async def schemas(self, call: Arguments) -> Any:
        """GET /schemas: all versions."""
        prefix = call.query.get("subjectPrefix", "").removeprefix(":*:")
        found = [
            each for each in self.state.all_versions(deleted=call.flag("deleted")) if each.subject.startswith(prefix)
        ]
        if call.flag("latestOnly"):
            found = list({each.subject: each for each in found}.values())
        page = call.page(found)
        if sum(len(each.schema.text) for each in page) > LISTED_CHARACTERS_MAX:
            raise RegistryError(413, f"more than {LISTED_CHARACTERS_MAX} characters: ask for pages (offset, limit)")
        return [described(each, each.schema.text) for each in page]

    async def schema(self, call: Arguments) -> Any:
        """GET /schemas/ids/{id}."""
        found = self.state.by_id(call.schema_id)[0].schema
        answer = _with_kind(found, {})
        answer["schema"] = await self._text(found, call)
        if found.references:
            answer["references"] = [each.as_json() for each in found.references]
        if call.flag("fetchMaxId"):
            answer["maxId"] = self.state.id_max
        return answer

    async def schema_text(self, call: Arguments) -> Any:
        """GET /schemas/ids/{id}/schema."""
        return _as_bytes(await self._text(self.state.by_id(call.schema_id)[0].schema, call))

    async def subjects_of_id(self, call: Arguments) -> Any:
        """GET /schemas/ids/{id}/subjects."""
        return call.page(sorted({each.subject for each in self._of_id(call)}))

    async def versions_of_id(self, call: Arguments) -> Any:
        """GET /schemas/ids/{id}/versions."""
        return call.page([{"subject": each.subject, "version": each.version} for each in self._of_id(call)])

    def _of_id(self, call: Arguments) -> list[Version]:
        wanted, deleted = call.query.get("subject"), call.flag("deleted")
        found = self.state.by_id(call.schema_id)
        return [each for each in found if wanted in {None, each.subject} and (deleted or not each.is_deleted)]

    async def types(self, _: Arguments) -> Any:
        """GET /schemas/types."""
        return self.parser.kinds

    async def contexts(self, _: Arguments) -> Any:
        """GET /contexts."""
        return ["."]

    async def nothing(self, _: Arguments) -> Any:
        """GET /."""
        return {}

    # -- Compatibility -----------------------------------------------------------------------------------------------

    async def check(self, call: Arguments) -> Any:
        """POST /compatibility/subjects/{subject}/versions and /compatibility/subjects/{subject}/versions/{version}."""
        subject, level = call.subject, self.state.level_of(call.subject, self.default_level)
        is_verbose = call.flag("verbose")
        candidates = self.state.versions(subject)
        if "version" in call.path:
            # A new subject has no last version, and whatever its first one is will be compatible.
            candidates = candidates[-1:] if call.version is None else [self.state.version(subject, call.version)]
        try:
            _, parsed = await self.parsed(call.schema, is_normal=call.flag("normalize"))
            found = await self.parser.compare(parsed, await self.earlier(candidates), level)
        except RegistryError as error:
            if not is_verbose or error.code != ErrorKind.INVALID_SCHEMA:
                raise
            found = [str(error)]
        answer: dict[str, Any] = {"is_compatible": not found}
        if is_verbose:
            answer["messages"] = found
        return answer

    async def earlier(self, versions: list[Version]) -> list[Earlier]:
        """Return versions as a new schema is compared with them."""
        return [
            Earlier(each.version, each.schema.text, await self.parser.parse(self.state.resolve(each.schema)))
            for each in versions
        ]

    # -- Settings ----------------------------------------------------------------------------------------------------

    async def level(self, call: Arguments) -> Any:
        """GET /config and /config/{subject}."""
        scope = call.scope
        found = self.state.levels.get(scope)
        if found is None and (scope is None or call.flag("defaultToGlobal")):
            found = self.state.levels.get(None, self.default_level)
        if found is None:
            raise RegistryError(
                ErrorKind.SUBJECT_WITHOUT_LEVEL,
                f"Subject '{scope}' does not have subject-level compatibility configured",
            )
        return {"compatibilityLevel": found}

    async def mode(self, call: Arguments) -> Any:
        """GET /mode and /mode/{subject}."""
        scope = call.scope
        found = self.state.modes.get(scope)
        if found is None and (scope is None or call.flag("defaultToGlobal")):
            found = self.state.modes.get(None, Mode.READWRITE)
        if found is None:
            raise RegistryError(
                ErrorKind.SUBJECT_WITHOUT_MODE, f"Subject '{scope}' does not have subject-level mode configured"
            )
        return {"mode": found}

    # -- Parts -------------------------------------------------------------------------------------------------------

    async def parsed(self, schema: Schema, *, is_normal: bool) -> tuple[Schema, Parsed]:
        """Return a schema as it is stored, and parsed. Raises RegistryError."""
        schema = Schema(schema.kind, schema.text, tuple(self._numbered(each) for each in schema.references))
        parsed = await self.parser.parse(self.state.resolve(schema))
        text = await self.parser.normal_text(parsed) if is_normal else parsed.canonical
        return Schema(schema.kind, text, schema.references), parsed

    def _numbered(self, reference: Reference) -> Reference:
        """Return a reference to the last version (-1) with its number."""
        if reference.version != -1:
            return reference
        found = self.state.versions(reference.subject)
        return Reference(reference.name, reference.subject, found[-1].version) if found else reference

    async def same(self, schema: Schema, parsed: Parsed, candidates: list[Version]) -> Version | None:
        """Return the last version that is a schema: of equal text, or else of equal meaning."""
        for each in reversed(candidates):
            if each.schema == schema:
                return each
        for each in reversed(candidates):
            if (each.schema.kind, each.schema.references) == (schema.kind, schema.references):
                try:
                    other = await self.parser.parse(self.state.resolve(each.schema))
                except InvalidSchema:
                    continue  # from another registry, which takes what this one does not
                if other.identity == parsed.identity:
                    return each
        return None

    async def _text(self, schema: Schema, call: Arguments) -> str:
        if call.query.get("format") == "serialized" and schema.kind is Kind.PROTOBUF:
            parsed = await self.parser.parse(self.state.resolve(schema))
            assert isinstance(parsed, ProtobufSchema), "it is of protobuf"
            return parsed.serialized
        return schema.text


def described(version: Version, text: str) -> dict[str, Any]:
    """Return a version as in answers."""
    answer = _with_kind(version.schema, {"subject": version.subject, "version": version.version, "id": version.id})
    if version.schema.references:
        answer["references"] = [each.as_json() for each in version.schema.references]
    answer["schema"] = text
    if version.is_deleted:
        answer["deleted"] = True
    return answer


def _with_kind(schema: Schema, answer: dict[str, Any]) -> dict[str, Any]:
    return answer if schema.kind is Kind.AVRO else {**answer, "schemaType": schema.kind}


def _as_bytes(text: str) -> bytes:
    """Return a text that is sent as it is. One with lone surrogates, which JSON may have, is sent all the same."""
    return text.encode("utf-8", "surrogatepass")
