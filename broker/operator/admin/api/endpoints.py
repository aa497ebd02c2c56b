"""Endpoints: method, path, models of query, body and answer, and the function that answers.

Queries and bodies are checked by their models before the function is called. Exceptions become an answer with
`{"error": ...}` in one line. The OpenAPI document is generated from the same table.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.json_schema import models_json_schema

from anabranch.broker.api.handlers.local import LocalRefusal, User
from anabranch.broker.cluster.membership.failover import TakeoverRefused
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.operator.admin.paths import API_PREFIX
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import NodeInUse, NodeUnavailable, NotFound, StorageError
from anabranch.wal.interface import WalError

ANSWER_TIMEOUT_S = 25.0
"""Time for an answer. A change that takes longer may have taken effect."""
CHANGES_NOTHING: web.RequestKey[bool] = web.RequestKey("changes_nothing", bool)
"""True for a request that is only to be validated, which is no audit event."""
_REF: Final = "#/components/schemas/{model}"


class Model(BaseModel):
    """Base of all models: unknown fields of requests are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, serialize_by_alias=True, validate_by_name=True, use_attribute_docstrings=True
    )


ROOT_CONFIG: Final = ConfigDict(serialize_by_alias=True, use_attribute_docstrings=True)
"""Config of a model that is a type from below."""


class Nothing(Model):
    """No parameters."""


class ValidationQuery(Model):
    """Parameters of a change without a body."""

    validate_only: bool = False


class Failure(Model):
    """The answer to a request that fails."""

    error: str
    """One line: what, where, what to do."""


class ApiError(Exception):
    """A request fails, with this status and one line for its sender."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Call:
    """One request, checked."""

    request: web.Request
    path: dict[str, str]
    query: Any
    body: Any
    user: User
    may_operate: bool
    is_allowed: Callable[[], bool]
    """Returns whether the client may still send the request: its token may have been revoked."""


Function = Callable[[Call], Awaitable[BaseModel | web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    summary: str
    function: Function
    answer: type[BaseModel] | None
    """Model of the answer; None: a stream of lines, or a document."""
    query: type[Model] = field(default=Nothing)
    body: type[Model] | None = None
    stream: type[BaseModel] | None = None
    """Model of a line of a stream."""
    is_limited: bool = True
    """False: the answer may take as long as it takes."""

    async def answer_to(
        self, request: web.Request, user: User, *, may_operate: bool, is_allowed: Callable[[], bool]
    ) -> web.StreamResponse:
        """Check a request, and answer it."""
        try:
            query = self.query.model_validate_strings(dict(request.query.items()))
            body = None
            if self.method != "GET" and (self.body is not None or request.can_read_body):
                body = await self._body(request)
            if getattr(body, "validate_only", False) or getattr(query, "validate_only", False):
                request[CHANGES_NOTHING] = True
            call = Call(request, dict(request.match_info), query, body, user, may_operate, is_allowed)
            async with asyncio.timeout(ANSWER_TIMEOUT_S if self.is_limited else None):
                result = await self.function(call)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            return failed(HTTPStatus.BAD_REQUEST, f"{where}: {first['msg'].removeprefix('Value error, ')}")
        except ApiError as error:
            return failed(error.status, str(error))
        except KafkaError as error:
            return failed(status_of(error.code), error.message or error.code.name)
        except NotFound as error:
            return failed(HTTPStatus.NOT_FOUND, str(error))
        except (NodeInUse, NodeUnavailable, TakeoverRefused) as error:
            return failed(HTTPStatus.CONFLICT, str(error))
        except (LocalRefusal, PeerUnavailable, StorageError, WalError) as error:
            return failed(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except TimeoutError:
            return failed(HTTPStatus.GATEWAY_TIMEOUT, "no answer in time: look what is there, and try again")
        return json_answer(result) if isinstance(result, BaseModel) else result

    async def _body(self, request: web.Request) -> Any:
        if request.content_type != "application/json":
            raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the Content-Type must be application/json")
        return (self.body or Nothing).model_validate_json(await request.read())


def json_answer(value: BaseModel, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """Return a model as the answer."""
    return web.Response(status=status, body=value.model_dump_json().encode(), content_type="application/json")


def failed(status: HTTPStatus, reason: str) -> web.Response:
    """Return the answer to a request that fails."""
    return json_answer(Failure(error=" ".join(reason.split())), status)


_STATUS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: HTTPStatus.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: HTTPStatus.NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.INVALID_TOPIC_EXCEPTION: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_CONFIG: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_PARTITIONS: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_REQUEST: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_RECORD: HTTPStatus.BAD_REQUEST,
    ErrorCode.OFFSET_OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    ErrorCode.MESSAGE_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.NOT_COORDINATOR: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.UNKNOWN_SERVER_ERROR: HTTPStatus.SERVICE_UNAVAILABLE,
}


def status_of(code: int) -> HTTPStatus:
    """Return the HTTP status of a Kafka error; 409 for what the state of the cluster does not allow."""
    return _STATUS.get(ErrorCode(code), HTTPStatus.CONFLICT)


def check(code: int, message: str | None = None) -> None:
    """Raise KafkaError for an error code of a response."""
    if code:
        raise KafkaError(ErrorCode(code), message or ErrorCode(code).name)


def openapi_document(endpoints: list[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of all endpoints."""
    answers = [model for each in endpoints for model in (each.answer, each.stream) if model is not None]
    bodies = [each.body for each in endpoints if each.body is not None]
    modes: list[Any] = [(model, "serialization") for model in dict.fromkeys([*answers, Failure])]
    modes += [(model, "validation") for model in dict.fromkeys(bodies)]
    references, definitions = models_json_schema(modes, ref_template=_REF)
    paths: dict[str, Any] = {}
    for each in endpoints:
        paths.setdefault(API_PREFIX + each.path, {})[each.method.lower()] = _operation(each, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Anabranch admin API",
            "version": "1",
            "description": "Times are ms since 1970, sizes bytes. Every request that fails is answered with Failure. "
            "Requests other than GET need an operator, and application/json.",
        },
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, references: Any) -> dict[str, Any]:
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    parameters: list[Any] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    schema = endpoint.query.model_json_schema()
    parameters += [
        {"name": name, "in": "query", "required": name in schema.get("required", []), "schema": described}
        for name, described in schema.get("properties", {}).items()
    ]
    content: dict[str, Any] = {"application/json": {}}
    if endpoint.answer is not None:
        content = {"application/json": {"schema": references[endpoint.answer, "serialization"]}}
    elif endpoint.stream is not None:
        content = {"application/x-ndjson": {"schema": references[endpoint.stream, "serialization"]}}
    failure = {"application/json": {"schema": references[Failure, "serialization"]}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "The request fails.", "content": failure},
        },
    }
    if endpoint.body is not None:
        body = {"application/json": {"schema": references[endpoint.body, "validation"]}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation
