"""Kafka Connect clusters: their connectors, listed, paused, resumed and restarted by Connect's REST API.

Requests go to the URLs of the settings only: users name one of these clusters, never an address. There are no
redirects; time and bytes are bounded. Configs of connectors, which may hold secrets, are not asked for. A trace may
quote records or credentials, so it is for operators only.
"""

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel, RootModel, ValidationError

from anabranch.broker.node.settings.admin_area import AdminSettings
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model

TIMEOUT_S: Final = 5.0
"""Time for an answer of Connect."""
ANSWER_BYTES_MAX: Final = 4 << 20
TRACE_CHARACTERS_MAX: Final = 16_000
ID_DIGITS_MAX: Final = 9


class ConnectTask(Model):
    """A task of a connector."""

    id: int
    state: str
    worker: str
    trace: str | None
    """Stack trace of a task that has failed, for operators."""


class Connector(Model):
    """A connector with its tasks."""

    name: str
    type: str
    state: str
    worker: str
    trace: str | None
    """Stack trace of a connector that has failed, for operators."""
    tasks: list[ConnectTask]


class ConnectCluster(Model):
    """A Connect cluster of the settings."""

    name: str
    """Host and port of its URL."""
    error: str | None
    """Reason for which its connectors are not known."""
    connectors: list[Connector]


class ConnectClusters(Model):
    """All Connect clusters of the settings."""

    clusters: list[ConnectCluster]


class ConnectorChange(Model):
    """A change that Connect has accepted, and carries out."""

    cluster: str
    connector: str


class _State(BaseModel):
    """Part of Connect's answer: the state of a connector."""

    state: str
    worker_id: str = ""
    trace: str = ""


class _TaskState(_State):
    """Part of Connect's answer: the state of a task."""

    id: int


class _Status(BaseModel):
    """Part of Connect's answer: a connector."""

    type: str = ""
    connector: _State
    tasks: list[_TaskState]


class _Expanded(BaseModel):
    """Part of Connect's answer: what was asked for about a connector."""

    status: _Status


class _Connectors(RootModel[dict[str, _Expanded]]):
    """Connect's answer about all connectors, by name."""


class _Refused(Exception):
    """Connect does not answer, or refuses the request. The text is the reason."""

    def __init__(self, reason: str, status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE) -> None:
        super().__init__(reason)
        self.status = status


class ConnectEndpoints:
    """Endpoints of Connect clusters."""

    def __init__(self, settings: AdminSettings) -> None:
        self._clusters: Mapping[str, str] = settings.connect_clusters
        # Connect refuses other types, also where a request has no body.
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if settings.connect_credentials is not None:
            credentials = settings.connect_credentials.reveal().encode()
            self._headers["Authorization"] = f"Basic {b64encode(credentials).decode()}"
        path = "/connect/{cluster}/connectors/{connector}"
        pause, resume = partial(self._change, "PUT", "/pause"), partial(self._change, "PUT", "/resume")
        restart = partial(self._change, "POST", "/restart?includeTasks=true")
        self.endpoints = [
            Endpoint("GET", "/connect", "Kafka Connect clusters, with their connectors.", self._list, ConnectClusters),
            Endpoint("POST", f"{path}/pause", "Pause a connector and its tasks.", pause, ConnectorChange),
            Endpoint("POST", f"{path}/resume", "Resume a connector and its tasks.", resume, ConnectorChange),
            Endpoint("POST", f"{path}/restart", "Restart a connector and its tasks.", restart, ConnectorChange),
            Endpoint("POST", f"{path}/tasks/{{task}}/restart", "Restart a task.", self._restart_task, ConnectorChange),
        ]

    async def _list(self, call: Call) -> ConnectClusters:
        async with asyncio.TaskGroup() as group:
            described = [
                group.create_task(self._describe(name, url, may_see_traces=call.may_operate))
                for name, url in self._clusters.items()
            ]
        return ConnectClusters(clusters=[each.result() for each in described])

    async def _describe(self, name: str, url: str, *, may_see_traces: bool) -> ConnectCluster:
        try:
            answer = _Connectors.model_validate_json(await self._ask("GET", url, "/connectors?expand=status")).root
        except _Refused as error:
            return ConnectCluster(name=name, error=str(error), connectors=[])
        except ValidationError:
            return ConnectCluster(name=name, error="its answer is not that of a Connect cluster", connectors=[])

        def trace_of(state: _State) -> str | None:
            return state.trace[:TRACE_CHARACTERS_MAX] if state.trace and may_see_traces else None

        connectors = [
            Connector(
                name=connector,
                type=each.status.type,
                state=each.status.connector.state,
                worker=each.status.connector.worker_id,
                trace=trace_of(each.status.connector),
                tasks=[
                    ConnectTask(id=task.id, state=task.state, worker=task.worker_id, trace=trace_of(task))
                    for task in each.status.tasks
                ],
            )
            for connector, each in sorted(answer.items())
        ]
        return ConnectCluster(name=name, error=None, connectors=connectors)

    async def _change(self, method: str, action: str, call: Call) -> ConnectorChange:
        """Let a connector do something, which Connect names by method and path."""
        cluster, connector = call.path["cluster"], call.path["connector"]
        if cluster not in self._clusters:
            raise ApiError(HTTPStatus.NOT_FOUND, f"admin.connect_urls has no cluster {cluster}")
        if connector in {".", ".."}:  # they would be steps of the path
            raise ApiError(HTTPStatus.NOT_FOUND, f"connector {connector} does not exist")
        try:
            await self._ask(method, self._clusters[cluster], f"/connectors/{quote(connector, safe='')}{action}")
        except _Refused as error:
            raise ApiError(error.status, f"Connect cluster {cluster}: {error}") from error
        return ConnectorChange(cluster=cluster, connector=connector)

    async def _restart_task(self, call: Call) -> ConnectorChange:
        task = call.path["task"]
        if not (task.isascii() and task.isdecimal() and len(task) <= ID_DIGITS_MAX):
            raise ApiError(HTTPStatus.BAD_REQUEST, f"expected the id of a task, found {task!r}")
        return await self._change("POST", f"/tasks/{task}/restart", call)

    async def _ask(self, method: str, url: str, path: str) -> bytes:
        """Return the body of a cluster's answer. Raises _Refused."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
                session.request(method, url + path, allow_redirects=False) as response,
            ):
                body = await response.content.read(ANSWER_BYTES_MAX + 1)
                while len(body) <= ANSWER_BYTES_MAX and (more := await response.content.read(ANSWER_BYTES_MAX)):
                    body += more
        except TimeoutError:
            raise _Refused(f"no answer within {TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _Refused(str(error) or type(error).__name__) from error
        if len(body) > ANSWER_BYTES_MAX:
            raise _Refused(f"its answer is larger than {ANSWER_BYTES_MAX} bytes")
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise _refusal(response.status, body)
        return body


class _Failure(BaseModel):
    """Connect's answer to a request that fails."""

    message: str


def _refusal(status: int, body: bytes) -> _Refused:
    """Return the reason of an answer that is none."""
    try:
        reason = _Failure.model_validate_json(body).message
    except ValidationError:
        reason = "no reason is given"
    passed: Mapping[int, HTTPStatus] = {each: each for each in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)}
    return _Refused(f"it answers {status}: {reason}", passed.get(status, HTTPStatus.SERVICE_UNAVAILABLE))
