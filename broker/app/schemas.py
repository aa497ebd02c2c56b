"""The schema registry of a node, and the compiler of protobuf that it uses.

It is imported when it is asked for: a node without schemas starts without it.
"""

from collections.abc import Callable, Mapping

from anabranch.broker.app.storage import Basis
from anabranch.broker.kafka.schemas.formats.protobuf import Compile
from anabranch.broker.kafka.schemas.model import InvalidSchema, Level
from anabranch.broker.kafka.schemas.parser import SchemaParser
from anabranch.broker.kafka.schemas.registry import SchemaRegistry
from anabranch.broker.kafka.schemas.topic import NodeSchemaTopic
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.operator.admin.api.decoder import DecodeError, SchemaDecoder, SchemaSource
from anabranch.extras import is_installed


def make_schemas(
    basis: Basis, topics: TopicManager, commands: TopicCommands, may_read: Callable[[], bool]
) -> SchemaRegistry:
    """Build the registry. It reads its log at the first request."""
    topic = NodeSchemaTopic(topics, commands, basis.environment.now_ms, may_read)
    parser = SchemaParser(_make_compiler(basis))
    basis.stack.callback(parser.close)
    return SchemaRegistry(topic, parser, Level(basis.settings.schema_registry.compatibility))


def _make_compiler(basis: Basis) -> Compile | None:
    """Return a function that compiles in a child process, which ends with the node; None: protobuf is missing."""
    if not is_installed("protobuf"):
        return None
    decoder = SchemaDecoder(0)
    basis.stack.callback(decoder.close)

    def compile_source(text: str, references: Mapping[str, str]) -> bytes:
        try:
            return decoder.compile(SchemaSource("PROTOBUF", text, references))
        except DecodeError as error:
            raise InvalidSchema(str(error).removeprefix("invalid schema: ")) from None

    return compile_source
