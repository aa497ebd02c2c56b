"""The schema registry at the admin port: Confluent's REST API, and requests passed on to the node that can answer.

    /schema-registry/...   the paths of `broker.kafka.schemas.routes`

The node that leads the log answers; other nodes pass requests on to it. While none leads it, or it is being handed
over, a request waits a little. It is imported by the first request.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from anabranch.broker.api.handlers.leadership import find_leadership
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.coordination.internal_topics import SCHEMAS_TOPIC
from anabranch.broker.kafka.schemas.model import ErrorKind, RegistryError
from anabranch.broker.kafka.schemas.requests import RegistryAnswer, RegistryRequest, failure_of, split_target
from anabranch.broker.kafka.schemas.routes import ROUTES, find_route
from anabranch.broker.kafka.schemas.topic import SCHEMAS_PARTITION
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.peers.links import REQUEST_BYTES_MAX
from anabranch.broker.operator.admin.paths import REGISTRY_PREFIX
from anabranch.protocol.messages.internal.registry_call import RegistryCallRequest
from anabranch.s3stream.errors import StorageError

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
INTERNAL_VERSION: Final = 0
BODY_BYTES_MAX: Final = REQUEST_BYTES_MAX - (64 << 10)
"""Largest body: one that can be passed on, with its path, to another node."""
LEADER_S: Final = 5.0
"""Time that a request waits for a leader."""
PAUSE_S: Final = 0.1


def has_registry(serving: Serving) -> bool:
    """Return whether the cluster has a registry with something in it."""
    return serving.settings.schema_registry.enabled and serving.topics.get(SCHEMAS_TOPIC) is not None


async def ask_registry(serving: Serving, request: RegistryRequest) -> RegistryAnswer:
    """Return the answer of the node that leads the log, after a while if none does."""
    until_s = asyncio.get_running_loop().time() + LEADER_S
    while True:
        answer = await _ask(serving, request)
        if not _is_away(answer) or asyncio.get_running_loop().time() > until_s:
            return answer
        await asyncio.sleep(PAUSE_S)


async def _ask(serving: Serving, request: RegistryRequest) -> RegistryAnswer:
    """Ask the leader, or this node if there is no log yet."""
    if serving.topics.get(SCHEMAS_TOPIC) is None:
        try:
            await serving.membership.catch_up()  # another node may have created it a moment ago
        except StorageError as error:
            return failure_of(RegistryError(ErrorKind.STORE, f"Error in the backend data store: {error}"))
    found = find_leadership(serving, SCHEMAS_TOPIC, SCHEMAS_PARTITION)
    if found is None or (found.leader is not None and found.leader.node_id == serving.node_id):
        return await serving.schemas().answer(request)
    if found.leader is None:
        reason = f"no node leads the topic {SCHEMAS_TOPIC}: see `anabranch cluster status`"
        return failure_of(RegistryError(ErrorKind.UNKNOWN_LEADER, reason))
    call = RegistryCallRequest(method=request.method, target=request.target.encode(), body=request.body)
    try:
        response = await serving.links.call(found.leader.node_id, call, INTERNAL_VERSION)
    except PeerUnavailable as error:
        # A change may have been made all the same. To register a schema again gives the same id.
        return failure_of(RegistryError(ErrorKind.FORWARDING, f"Error while forwarding the request: {error}"))
    return RegistryAnswer(response.status, bytes(response.body))


def _is_away(answer: RegistryAnswer) -> bool:
    """Return whether the node has done nothing, because it does not lead the log now, or cannot write to it now."""
    if answer.status != HTTPStatus.INTERNAL_SERVER_ERROR:
        return False
    return bool(json.loads(answer.body)["error_code"] == ErrorKind.UNKNOWN_LEADER)


async def answer_http(serving: Serving, request: web.Request) -> web.StreamResponse:
    """Answer a request for any path of the registry: which there are, the node that answers knows."""
    target = request.raw_path[len(REGISTRY_PREFIX) :] or "/"
    if not target.isascii():
        return refused(HTTPStatus.BAD_REQUEST, "the path must be percent-encoded")
    body = await request.read()
    if len(body) > BODY_BYTES_MAX:
        return refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {BODY_BYTES_MAX} bytes")
    return _http(await ask_registry(serving, RegistryRequest(request.method, target, body)))


def is_change(request: web.Request) -> bool:
    """Return whether a request to the registry would change something."""
    steps, _ = split_target(request.raw_path[len(REGISTRY_PREFIX) :])
    try:
        route, _ = find_route(request.method, steps)
    except RegistryError:
        return False  # it is refused
    return route.change is not None


def refused(status: HTTPStatus, reason: str) -> web.Response:
    """Return the answer to a request that the admin port refuses."""
    return _http(failure_of(RegistryError(status, " ".join(reason.split()))))


def _http(answer: RegistryAnswer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers={"Content-Type": CONTENT_TYPE})


def registry_paths() -> dict[str, Any]:
    """Return the registry's paths for the OpenAPI document."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        names = [step[1:-1] for step in route.steps if step.startswith("{")]
        parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
        paths.setdefault(REGISTRY_PREFIX + route.path, {})[route.method.lower()] = {
            "summary": route.summary,
            "tags": ["schema registry"],
            "parameters": parameters,
            "responses": {"200": {"description": "The answer.", "content": {CONTENT_TYPE: {}}}},
        }
    return paths
