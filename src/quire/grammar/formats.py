"""Formats of strings: some are enforced by the compiler, some by a pattern here; the rest are annotations.

A pattern may match less than its format allows, never more: every match is valid.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

COMPILED = ("hostname", "ipv4", "ipv6", "uuid", "uri")

# As parsers accept them: no year 0, no leap second, 29 February in leap years only, and a limited number of digits.
_YEAR = r"(\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)"
_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_MONTH = r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_DATE = rf"({_YEAR}-{_MONTH}|{_LEAP_YEAR}-02-29)"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_HOURS = r"T(\d{1,3}H(\d{1,2}M(\d{1,2}S)?)?|\d{1,3}M(\d{1,2}S)?|\d{1,4}S)"
_DAYS = r"(\d{1,3}Y(\d{1,2}M(\d{1,2}D)?)?|\d{1,3}M(\d{1,2}D)?|\d{1,4}D)"
_WORD = r"[A-Za-z0-9_+-]+"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
# The domain has a dot, which parsers of addresses require.
MAILBOX = rf"{_WORD}(\.{_WORD})*@({_LABEL}\.)+[A-Za-z]{{2,12}}"

_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_IPV6 = r"([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
# The bits after a network's prefix must be zero.
_NETWORK4 = rf"({_BYTE}(\.0){{3}}/8|({_BYTE}\.){{2}}0\.0/16|({_BYTE}\.){{3}}0/24|{_IPV4}/32)"
_NETWORK6 = rf"(([0-9a-f]{{1,4}}:){{3}}[0-9a-f]{{1,4}}::/64|{_IPV6}/128)"
_INTERFACE4 = rf"{_IPV4}/(3[0-2]|[12]?\d)"
_INTERFACE6 = rf"{_IPV6}/(12[0-8]|1[01]\d|[1-9]?\d)"
_PATH = r"[A-Za-z0-9._~!$&'()*+,;=@/-]"
_REFERENCE = rf"({_PATH}|%[0-9A-F]{{2}})*(\?({_PATH}|[?:])*)?(#({_PATH}|[?:])*)?"
_POINTER = r"(/([^/~]|~[01])*)*"

_SCALAR = r'(-?(0|[1-9]\d{0,14})(\.\d{1,9})?|true|false|null|"[^"\\\x00-\x1f]*")'
_MEMBER = rf'"[^"\\\x00-\x1f]*": {_SCALAR}'
_LIST = rf"\[({_SCALAR}(, {_SCALAR})*)?\]"
_MEMBERS = rf"\{{({_MEMBER}(, {_MEMBER})*)?\}}"
JSON_TEXT = rf"^({_SCALAR}|{_LIST}|{_MEMBERS})$"
JSON_TEXTS = {"array": rf"^{_LIST}$", "object": rf"^{_MEMBERS}$"}


def _uuid(version: str) -> str:
    return rf"[0-9a-f]{{8}}-[0-9a-f]{{4}}-{version}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}"


_WHOLE = {
    "date": _DATE,
    "date-time": f"{_DATE}T{_TIME}",
    "time": _TIME,
    "duration": f"P({_DAYS}({_HOURS})?|{_HOURS}|\\d{{1,4}}W)",
    "email": MAILBOX,
    "idn-email": MAILBOX,
    "name-email": rf"[A-Za-z]+( [A-Za-z]+)* <{MAILBOX}>",
    "idn-hostname": rf"{_LABEL}(\.{_LABEL})*",
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "iri": rf"[a-z][a-z0-9]*://{_LABEL}(\.{_LABEL})*(/{_REFERENCE})?",
    "uri-template": rf"({_PATH}|\{{[a-z]+\}})*",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d{{0,8}})(#|{_POINTER})",
    "base64": r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?",
    "base64url": r"([A-Za-z0-9_-]{4})*([A-Za-z0-9_-][AQgw]==|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?",
    "regex": r"\^?(([A-Za-z0-9 _/,:;@#%&=<>!~'-]|\\[dDwWsS.]|\[[a-z]-z\])[*+?]?)*\$?",
    "ipv4network": _NETWORK4,
    "ipv6network": _NETWORK6,
    "ipvanynetwork": rf"({_NETWORK4}|{_NETWORK6})",
    "ipv4interface": _INTERFACE4,
    "ipv6interface": _INTERFACE6,
    "ipvanyinterface": rf"({_INTERFACE4}|{_INTERFACE6})",
    "ipvanyaddress": rf"({_IPV4}|{_IPV6})",
    **{f"uuid{version}": _uuid(str(version)) for version in range(1, 9)},
}
PATTERNS = {name: f"^{whole}$" for name, whole in _WHOLE.items()} | {"json-string": JSON_TEXT}

# For names of properties, where the compiler supports patterns only.
PROPERTY_NAME_PATTERNS = PATTERNS | {
    "hostname": PATTERNS["idn-hostname"],
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^{_IPV6}$",
    "uuid": f"^{_uuid('[1-8]')}$",
    "uri": PATTERNS["iri"],
}

_SAFE = {
    "int32": 2**31 - 1,
    "int64": 10**18,
}  # int64: a bound that a float represents exactly, large enough in practice


def string_patterns(part: Schema) -> list[str]:
    """The patterns for this part's format and content, beyond what the compiler enforces."""
    name = part.get("format")
    patterns = [PATTERNS[name]] if isinstance(name, str) and name in PATTERNS else []
    if part.get("contentMediaType") == "application/json" and "contentEncoding" not in part:
        inside = part.get("contentSchema")
        kind = inside.get("type") if isinstance(inside, dict) else None
        patterns.append(JSON_TEXTS.get(kind, JSON_TEXT) if isinstance(kind, str) else JSON_TEXT)
    return patterns


def largest_integer(part: Schema) -> int | None:
    """The largest integer of this part's format."""
    return _SAFE.get(part["format"]) if isinstance(part.get("format"), str) else None
