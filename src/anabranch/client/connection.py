"""A blocking connection to one node, one request at a time, with TLS and SASL.

Every failure is a ClientError of one line, which says what to change where that can be known.
"""

import base64
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from struct import Struct
from types import TracebackType
from typing import Any, Final, Self

from anabranch.addresses import host_port
from anabranch.client.errors import ClientError, NodeLost
from anabranch.client.sasl import NONCE_BYTES, OAUTHBEARER, PLAIN, Exchange, SaslError, bearer, plain, scram
from anabranch.client.settings import ClientSettings, SaslLogin, read_token
from anabranch.protocol.api import api_of
from anabranch.protocol.codec import decode_exact
from anabranch.protocol.errors import ErrorCode, ProtocolError
from anabranch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from anabranch.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from anabranch.protocol.requests import request_frame

CLIENT_ID: Final = b"anabranch-cli"
TIMEOUT_S: Final = 30.0
GREETING_TIMEOUT_S: Final = 5.0
"""Limit for a node to accept a connection, and for each step until the client is authenticated."""
RESPONSE_BYTES_MAX: Final = 100 << 20
_INT32: Final = Struct(">i")
_TLS_RECORDS: Final = frozenset({21, 22})
"""Alert and handshake."""
_TLS_MAJOR: Final = 3
_UNTRUSTED: Final = frozenset({18, 19, 20, 21})
_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_HOST: Final = frozenset({62, 64})
"""Results of OpenSSL's verification (X509_V_ERR_*)."""
_NO_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")
"""Alerts to a client without a certificate, in TLS 1.3 and 1.2."""


class _ExchangeError(Exception):
    """A request has failed; the text is the reason."""


class Connection:
    """A connection to one node. Failures raise a ClientError that names the node."""

    def __init__(
        self,
        host: str,
        port: int,
        settings: ClientSettings | None = None,
        *,
        client_id: bytes = CLIENT_ID,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._where = host_port(host, port)
        self._settings = settings or ClientSettings()
        self._client_id = client_id
        self._timeout_s = min(GREETING_TIMEOUT_S, timeout_s)
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._is_served = False
        """True once a request of the client's own was answered."""
        try:
            self._socket = socket.create_connection((host, port), timeout=self._timeout_s)
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
            raise NodeLost(f"cannot connect to {self._where}: {reason}; is the node running?") from None
        try:
            # A request may go out in several parts: the last must not wait for the node's acknowledgement of the first.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._encrypt(host)
            self._greet()
            self._authenticate()
        except BaseException:
            self.close()
            raise
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def where(self) -> str:
        """Address of the node, `HOST:PORT`."""
        return self._where

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def version(self, request_type: type[object]) -> int:
        """Return the newest version of an API that both sides support. Raises ClientError."""
        api = api_of(request_type)
        oldest, newest = self._versions.get(api.key, (0, -1))
        version = min(newest, api.max_version)
        if version < max(oldest, api.min_version):
            raise ClientError(f"{self._where} does not serve {api.name} {api.min_version}-{api.max_version}")
        return version

    def call(self, request: object, *, version_max: int | None = None) -> Any:
        """Send a request in that version, or the given one if it is older; return the response. Raises ClientError."""
        version, name = self.version(type(request)), api_of(type(request)).name
        if version_max is not None:
            version = min(version, version_max)
        try:
            answer = self._exchange(request, version)
        except TimeoutError:
            raise NodeLost(f"{self._where}, {name}: no answer within {self._timeout_s:g} s") from None
        except _ExchangeError as error:
            raise NodeLost(f"{self._where}, {name}: {error}") from None
        self._is_served = True
        return answer

    def _encrypt(self, host: str) -> None:
        """Begin TLS if the settings have it. Raises ClientError."""
        context = self._settings.context
        if context is None:
            return
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise ClientError(f"{self._where}: {_describe_verification(error, host, self._settings)}") from None
        except TimeoutError:
            raise ClientError(f"{self._where} does not answer with TLS within {self._timeout_s:g} s") from None
        except (OSError, ValueError) as error:
            if reason := self._refusal(error):
                raise ClientError(f"{self._where}: {reason}") from None
            raise ClientError(
                f"{self._where} does not answer with TLS ({_reason(error)}): security.protocol is "
                f"{self._settings.protocol}, and the listener may have none"
            ) from None

    def _greet(self) -> None:
        """Ask for the versions of the node's APIs. Raises ClientError."""
        try:
            answer: ApiVersionsResponse = self._exchange(ApiVersionsRequest(), 0)
        except TimeoutError:
            raise ClientError(
                f"{self._where} is not a Kafka broker: no answer to the first request within {self._timeout_s:g} s"
            ) from None
        except _ExchangeError as error:
            if self._settings.context is not None and isinstance(error.__cause__, OSError | EOFError):
                raise ClientError(f"{self._where}: {error}") from None
            raise ClientError(f"{self._where} is not a Kafka broker: {error}") from None
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def _authenticate(self) -> None:
        """Authenticate the client if the settings have SASL. Raises ClientError."""
        sasl = self._settings.sasl
        if sasl is None:
            return
        shaken: SaslHandshakeResponse = self.call(SaslHandshakeRequest(mechanism=sasl.mechanism))
        if shaken.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            enabled = ", ".join(shaken.mechanisms) or "none"
            raise ClientError(f"{self._where}: the mechanism {sasl.mechanism} is not enabled; enabled are {enabled}")
        if shaken.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            expected = "SSL" if self._settings.context else "PLAINTEXT"
            raise ClientError(f"{self._where} has no SASL here: set security.protocol={expected}")
        if shaken.error_code:
            raise ClientError(f"{self._where}, SaslHandshake: {error_text(shaken.error_code)}")
        exchange = exchange_of(sasl)
        token: bytes | None = next(exchange)
        while token is not None:
            answer: SaslAuthenticateResponse = self.call(SaslAuthenticateRequest(auth_bytes=token))
            if answer.error_code:
                said = answer.error_message or error_text(answer.error_code)
                user = f"the user {sasl.user}" if sasl.user else "the token"
                raise ClientError(f"{self._where} does not accept {user} with {sasl.mechanism}: {said}")
            try:
                token = exchange.send(answer.auth_bytes)
            except StopIteration:
                token = None
            except SaslError as error:
                raise ClientError(f"{self._where}: {error}") from None

    def _exchange(self, request: object, version: int) -> Any:
        """Send a request, and wait for its answer. Raises TimeoutError, _ExchangeError."""
        api = api_of(type(request))
        self._correlation_id += 1
        # Limits the whole exchange, so that a server that sends single bytes cannot hold it up.
        until = time.perf_counter() + self._timeout_s
        try:
            self._socket.settimeout(self._timeout_s)
            for part in request_frame(version, self._correlation_id, self._client_id, request):
                self._socket.sendall(part)
            answer = self._receive(until)
            (found,) = _INT32.unpack_from(answer, 0)
            if found != self._correlation_id:
                raise _ExchangeError(f"expected an answer to request {self._correlation_id}, found one to {found}")
            tagged = api.is_flexible(version) and api.request is not ApiVersionsRequest
            return decode_exact(api.response, answer, version, _INT32.size + tagged)
        except TimeoutError:
            raise
        except (ConnectionResetError, BrokenPipeError) as error:
            raise _ExchangeError(self._describe_end()) from error
        except OSError as error:
            raise _ExchangeError(self._refusal(error) or _reason(error)) from error
        except ProtocolError as error:
            raise _ExchangeError(f"its answer to {api.name} cannot be read: {error}") from None

    def _receive(self, until: float) -> memoryview:
        head = bytes(self._receive_exactly(_INT32.size, until))
        (size,) = _INT32.unpack(head)
        if not _INT32.size <= size <= RESPONSE_BYTES_MAX:
            raise _ExchangeError(_describe_server(head))
        return self._receive_exactly(size, until)

    def _receive_exactly(self, count: int, until: float) -> memoryview:
        data = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            left = until - time.perf_counter()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            received = self._socket.recv_into(data[filled:])
            if not received:
                raise _ExchangeError(self._describe_end()) from EOFError()
            filled += received
        return data

    def _describe_end(self) -> str:
        """Describe why a node may have closed the connection."""
        settings = self._settings
        if not self._versions:
            if settings.context is None:
                return (
                    "it closed the connection at the first request; a broker does that where it expects TLS: "
                    f"security.protocol is {settings.protocol}"
                )
            if settings.shows_certificate:
                return "it closed the connection: it does not accept the certificate of the client, or is no broker"
            needed = "a certificate of the client (ssl.keystore.location)"
            return f"it closed the connection: it requires {needed}, or is no broker"
        if settings.sasl is None and not self._is_served:
            return (
                "it closed the connection at a request; a broker does that where it expects SASL: "
                f"security.protocol is {settings.protocol}"
            )
        return "it closed the connection at a request"

    def _refusal(self, error: Exception) -> str:
        """Describe a node's refusal of the client's certificate; empty for other errors."""
        if not isinstance(error, ssl.SSLError) or "_ALERT_" not in (name := error.reason or ""):
            return ""
        alert = name.partition("_ALERT_")[2]
        if alert in _NO_CERTIFICATE:
            return "it requires a certificate of the client: set ssl.keystore.location"
        if "CERTIFICATE" in alert or alert in {"UNKNOWN_CA", "ACCESS_DENIED"}:
            return f"it does not accept the certificate of the client ({alert.lower().replace('_', ' ')})"
        return f"it ends TLS ({alert.lower().replace('_', ' ')})"


def exchange_of(sasl: SaslLogin) -> Exchange:
    """Return the exchange of a login. Raises PropertyError."""
    if sasl.mechanism == PLAIN:
        return plain(sasl.user, sasl.password)
    if sasl.mechanism == OAUTHBEARER:
        return bearer(read_token(sasl))
    nonce = base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
    return scram(sasl.mechanism, sasl.user, sasl.password, nonce, has_token=sasl.has_delegation_token)


def connect_to_any(bootstrap_servers: str, connect: Callable[[str, int], Connection]) -> Connection:
    """Connect to the first of `HOST:PORT,...` that answers. Raises ClientError, AddressError."""
    failures = []
    for text in bootstrap_servers.split(","):
        host, port = parse_address(text.strip())
        try:
            return connect(host, port)
        except ClientError as error:
            failures.append(str(error))
    raise NodeLost("; ".join(failures))


class AddressError(ValueError):
    """A text that is no address."""


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`. Raises AddressError."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise AddressError(f"expected HOST:PORT[,HOST:PORT...], found {text!r}")
    return host.strip("[]"), int(port)


def error_text(code: int, message: str | None = None) -> str:
    """Format an error code as its name, with the node's message or what the code means, as far as that is known."""
    name = ErrorCode(code).name if code in {int(known) for known in ErrorCode} else f"error {code}"
    text = message or _MEANINGS.get(code)
    return f"{name}: {text}" if text else name


_MEANINGS: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it does not exist",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "topics have 1 to 249 letters, digits, `.`, `_` and `-` as names",
    ErrorCode.INVALID_GROUP_ID: "groups have names that are not empty",
    ErrorCode.LEADER_NOT_AVAILABLE: "it has no leader now; try again",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "it has moved to another node; try again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "no coordinator is ready; try again",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is starting; try again",
    ErrorCode.NOT_COORDINATOR: "its coordinator has moved to another node; try again",
    ErrorCode.REQUEST_TIMED_OUT: "the node did not do it in time; it may still do it",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this user may not do that with the topic (ACLs)",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "this user may not do that with the group (ACLs)",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user may not do that with the transactional id (ACLs)",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this user may not do that in the cluster (ACLs)",
    ErrorCode.UNKNOWN_MEMBER_ID: "it is not a member of the group",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is distributing its partitions; try again",
}
"""Meaning of error codes for a person, where a node says nothing more."""


def _describe_server(head: bytes) -> str:
    """Describe a server that does not use Kafka's protocol, by the first bytes of its answer."""
    if head == b"HTTP":
        return "it answers in HTTP"
    if head[0] in _TLS_RECORDS and head[1] == _TLS_MAJOR:
        return "it answers with TLS: set security.protocol to SSL or SASL_SSL"
    return f"its answer begins with {head!r}"


def _describe_verification(error: ssl.SSLCertVerificationError, host: str, settings: ClientSettings) -> str:
    code = error.verify_code
    if code in _OTHER_HOST:
        return f"its certificate is not one of {host}: connect to a name that it has, or renew it with this one"
    if code == _EXPIRED:
        return "its certificate has expired"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet: check the clock of this machine"
    if code in _UNTRUSTED:
        return f"its certificate was not issued by {settings.trusted} ({error.verify_message})"
    return f"its certificate is not valid: {error.verify_message}"


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)
