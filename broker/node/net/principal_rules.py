"""Principals of TLS clients: the name of a client certificate, and the rules that shorten it (KIP-371). Pure.

A certificate's name is its subject in the notation of RFC 2253, as Java's `X500Principal.getName()` writes it: the last
component first, seven attributes by keyword and the others as `OID=#hex`. The rules are those of Apache Kafka's
`ssl.principal.mapping.rules`:

    RULE:pattern/replacement/[LU],RULE:...,DEFAULT

The first rule whose pattern matches the whole name gives the principal; every match of the pattern is replaced. DEFAULT
takes the name as it is. Patterns are RE2's, which take linear time for any name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import re2
from cryptography import x509
from cryptography.x509.oid import NameOID

from anabranch.broker.node.net.principals import NoMatchingRule

_KEYWORDS: Final = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_PADDING: Final = " \r"
"""Characters that are escaped at the beginning and the end of a value."""
_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SEPARATOR: Final = re.compile(r"\s*(?:,\s*|$)")
_REPLACEMENT: Final = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)
_LONG_FORM: Final = 0x80


class RuleError(ValueError):
    """A rule is invalid. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule with a pattern."""

    pattern: "re2._Regexp"
    replacement: Sequence[str | int]
    """Literal texts, and numbers of groups."""
    case: str
    """L: lower case, U: upper case, empty: unchanged."""

    def apply(self, name: str) -> str | None:
        """Return the principal's name; None if the pattern does not match the whole name."""
        if self.pattern.fullmatch(name) is None:
            return None
        mapped: str = self.pattern.sub(self._expand, name)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped

    def _expand(self, match: "re2._Match") -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)


class PrincipalRules:
    """Rules that map the name of a client certificate to a principal. Raises RuleError."""

    def __init__(self, text: str) -> None:
        self._rules: list[_Rule | None] = []
        """None stands for DEFAULT."""
        position = 0
        text = text.strip()
        while position < len(text):
            match = _RULE.match(text, position)
            end = None if match is None else _SEPARATOR.match(text, match.end())
            if match is None or end is None:
                raise RuleError(f"expected DEFAULT or RULE:pattern/replacement/[LU], found {text[position:]!r}")
            self._rules.append(None if match[1] else _rule_of(match[2], match[3], match[4]))
            position = end.end()
        if not self._rules:
            raise RuleError("there is no rule: expected DEFAULT or RULE:pattern/replacement/[LU]")

    def principal(self, subject: x509.Name) -> str:
        """Return the principal of a certificate's subject. Raises NoMatchingRule."""
        return f"User:{self.map(distinguished_name(subject))}"

    def map(self, name: str) -> str:
        """Return the name of the principal of a distinguished name. Raises NoMatchingRule."""
        for rule in self._rules:
            mapped = name if rule is None else rule.apply(name)
            if mapped is not None:
                return mapped
        raise NoMatchingRule(f"no rule of ssl.principal_mapping_rules applies to {name!r}")


def _rule_of(pattern: str, replacement: str, case: str) -> _Rule:
    """Return a rule. Raises RuleError."""
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise RuleError(f"pattern {pattern!r}: {reason}") from None
    return _Rule(compiled, _parts_of(replacement, compiled.groups), case)


def _parts_of(replacement: str, groups: int) -> Sequence[str | int]:
    """Split a replacement into texts and references to groups, as Java does: `$12` may be group 1, followed by 2.

    A reference to a group that the pattern does not have is text, as in Kafka.
    """
    parts: list[str | int] = []
    position = 0
    for match in _REPLACEMENT.finditer(replacement):
        parts.append(replacement[position : match.start()])
        position = match.end()
        if match[1] is not None:
            parts.append(match[1])
            continue
        digits = match[2]
        used = next((end for end in range(len(digits), 0, -1) if int(digits[:end]) <= groups), 0)
        parts += [int(digits[:used]), digits[used:]] if used else [match[0]]
    return [*parts, replacement[position:]]


def distinguished_name(subject: x509.Name) -> str:
    """Return a certificate's subject in the notation of RFC 2253, as Java writes it. Empty for an empty subject."""
    return ",".join("+".join(_attribute(each) for each in rdn) for rdn in reversed(subject.rdns))


def _attribute(attribute: "x509.NameAttribute[str | bytes]") -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is None or isinstance(attribute.value, bytes):
        return f"{keyword or attribute.oid.dotted_string}=#{_encoded_value(attribute).hex()}"
    value = attribute.value
    escaped = ["\\" + char if char in _ESCAPED else "\\00" if char == "\0" else char for char in value]
    leading = len(value) - len(value.lstrip(_PADDING))
    trailing = len(value.rstrip(_PADDING))
    return f"{keyword}=" + "".join(
        "\\" + char if at < leading or at >= trailing else char for at, char in enumerate(escaped)
    )


def _encoded_value(attribute: "x509.NameAttribute[str | bytes]") -> bytes:
    """Return the DER encoding of an attribute's value: the bytes after its id in a name with only this attribute."""
    encoded = x509.Name([attribute]).public_bytes()
    for _ in range(3):  # the name, the set, the pair of id and value
        encoded = _content(encoded)
    return _after(encoded)


def _content(encoded: bytes) -> bytes:
    """Return the content of a DER value."""
    length = encoded[1]
    return encoded[2 + (length & ~_LONG_FORM if length & _LONG_FORM else 0) :]


def _after(encoded: bytes) -> bytes:
    """Return the bytes after the first DER value, whose length has the short form, as for an object id."""
    return encoded[2 + encoded[1] :]
