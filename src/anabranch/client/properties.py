"""Kafka's client properties: their file format, their names, and which of them are secret. Pure.

The format is that of `java.util.Properties`, and `sasl.jaas.config` that of Kafka's `JaasConfig`. Errors name places,
and never show values: any of them may be a secret.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from anabranch.client.errors import PropertyError

BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
SECURITY_PROTOCOL: Final = "security.protocol"
JAAS_CONFIG: Final = "sasl.jaas.config"
REGISTRY_URL: Final = "schema.registry.url"
REGISTRY_LOGIN: Final = "basic.auth.user.info"
"""`user:password` at the schema registry."""
KNOWN: Final = (
    BOOTSTRAP_SERVERS,
    SECURITY_PROTOCOL,
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.ca.location",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    JAAS_CONFIG,
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.token.endpoint.url",
    REGISTRY_URL,
    REGISTRY_LOGIN,
)
"""Properties of this client. Names are those of Java's clients, and those of librdkafka where it has its own."""
ALIASES: Final = {"sasl.mechanisms": "sasl.mechanism"}
"""Other names that librdkafka has."""
ENV_PREFIX: Final = "KAFKA_CLIENT_"
IGNORED: Final = re.compile(
    r"ssl\.(protocol|keymanager\.algorithm|trustmanager\.algorithm|secure\.random\.implementation)"
    r"|sasl\.(login|kerberos|oauthbearer)\..+|(?!ssl\.|sasl\.|security\.).*"
)
"""Properties in a file that this client does not need: those of producers and consumers, and of Java's own TLS."""
_SECRET: Final = re.compile(
    r"password|passphrase|secret|jaas\.config|\bkeystore\.key$|\bkey\.pem$|\bauth\.user\.info$", re.IGNORECASE
)

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_PAIR: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_JAAS_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)")
_JAAS_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WORD: Final = r'(?:"(?:[^"\\\r\n]|\\.)*"|\'(?:[^\'\\\r\n]|\\.)*\'|[^\s"\'=;]+)'
_JAAS: Final = re.compile(
    rf"\s*([\w.$-]+)\s+(?:required|requisite|sufficient|optional)((?:\s+[\w.-]+\s*=\s*{_WORD})*)\s*;\s*", re.IGNORECASE
)
_JAAS_OPTION: Final = re.compile(rf"([\w.-]+)\s*=\s*({_WORD})")


def is_secret(name: str) -> bool:
    """Return whether the value of a property must not be shown or given on a command line."""
    return _SECRET.search(name) is not None


def environment_name(name: str) -> str:
    """Return the environment variable of a property."""
    return ENV_PREFIX + name.upper().replace(".", "_")


def parse_properties(text: str, where: str) -> dict[str, str]:
    """Return the properties of a file's text. Raises PropertyError, which names the line but shows nothing of it."""
    found: dict[str, str] = {}
    first, gathered = 0, ""
    for number, line in enumerate(_LINE_END.split(text), 1):
        bare = line.lstrip(" \t\f")
        if not gathered:
            if not bare or bare[0] in "#!":
                continue
            first = number
        gathered += bare
        if (len(gathered) - len(gathered.rstrip("\\"))) % 2:
            gathered = gathered[:-1]
            continue
        _add(found, gathered, f"{where}:{first}")
        gathered = ""
    if gathered:
        _add(found, gathered, f"{where}:{first}")
    return found


def _add(found: dict[str, str], line: str, where: str) -> None:
    pair = _PAIR.fullmatch(line)
    assert pair is not None, "anything has the form of a key with an empty value"
    name = _unescape(pair[1], where)
    if not line.isascii():
        raise PropertyError(f"{where}: not ASCII: write other characters as \\uXXXX, as Java's clients need them")
    # A line without a name would be an error of its author that Java does not see.
    if not name:
        raise PropertyError(f"{where}: expected NAME=VALUE")
    found[ALIASES.get(name, name)] = _unescape(pair[2], where)


def _unescape(text: str, where: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "u":
            if len(code) == 1:
                raise PropertyError(f"{where}: expected four hexadecimal digits after \\u")
            return chr(int(code[1:], 16))
        return _ESCAPED.get(code, code)

    return _ESCAPE.sub(plain, text)


@dataclass(frozen=True, slots=True)
class Login:
    """Class and options of a login module."""

    module: str
    """Class without its package."""
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> Login:
    """Parse `sasl.jaas.config`. Raises PropertyError, which does not show the text."""
    found = _JAAS.fullmatch(text)
    if found is None:
        raise PropertyError(
            f'property {JAAS_CONFIG}: expected LOGIN-MODULE required NAME="VALUE" ...; with a semicolon at the end'
        )
    options = {each[1]: _unquote(each[2]) for each in _JAAS_OPTION.finditer(found[2])}
    return Login(found[1].rpartition(".")[2], options)


def _unquote(text: str) -> str:
    """Return a word of JAAS without its quotes and escapes, which are those of Java's StreamTokenizer."""

    def plain(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code, 8)) if code[0] in "01234567" else _JAAS_ESCAPED.get(code, code)

    return _JAAS_ESCAPE.sub(plain, text[1:-1]) if text[0] in "\"'" else text


def quote_jaas(text: str) -> str:
    """Return a value as it is written in `sasl.jaas.config`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
