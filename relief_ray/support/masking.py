"""Masks whatever looks like a credential, before anything is hashed, written, sent or logged."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

MASK = "***"
_SECRET = r"(?:token|password|passwd|pwd|secret|api[_\-]?key|access_?key|private_?key|credentials?|authorization)"
_KEY = re.compile(rf"(?:^|[_.\-]){_SECRET}$", re.IGNORECASE)
# A password may hold what else would end it (`u:a/b@h`), where no port stands in its place (`host:5000/x@1`).
_PASSWORD = r"""[^/?#\s:@\[]*:(?!\d*(?:[/?#,;:'"\s]|$))(?:(?!://)[^\s@"<>])*@"""
_USERINFO = re.compile(rf"(?<=://)(?:{_PASSWORD}(?:[^/?#\s]*@)?|[^/?#\s]*@)")
# Signed addresses of stores, and keys of services: only where `?` or `&` shows that an address has them.
_SIGNED = r"(?<=[?&])(?:[\w.\-]*[_.\-])?(?:sig|key)"
_QUERY = re.compile(rf"([?&;#](?:[\w.\-]*(?:{_SECRET}|signature|account_?key)|{_SIGNED})=)[^&;#\s]+", re.IGNORECASE)
_HEADER = re.compile(r"""(\bauthorization["']?\s*[:=,]\s*b?["']?(?:basic|bearer)\s+)[^\s"',;]+""", re.IGNORECASE)


def is_chain(uri: str) -> bool:
    """True where an address names stores in a chain: ``dir::memory://b``; an IPv6 host and a password are none."""
    first, *others = uri.split("::")
    return bool(others) and ("://" not in first or any("://" in other for other in others))


def mask_text(text: str) -> str:
    """Mask credentials in URIs: ``scheme://user:pass@host/?token=x`` becomes ``scheme://***@host/?token=***``.

    Also those in a header: ``Authorization: Bearer x`` becomes ``Authorization: Bearer ***``.
    """
    text = _QUERY.sub(rf"\g<1>{MASK}", _HEADER.sub(rf"\g<1>{MASK}", text))
    return _USERINFO.sub(f"{MASK}@", text)


def redact(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a copy of a configuration with masked URIs and masked values of keys such as ``api_key``."""
    return {key: _value(key, value) for key, value in config.items()}


def _value(key: str, value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return redact(value)
    if isinstance(value, list):
        return [_value(key, item) for item in value]
    if isinstance(value, str):
        return MASK if value and _KEY.search(key) else mask_text(value)
    return value


def mask_logs() -> None:
    """Mask credentials in whatever any library logs in this process, from now on; a second call changes nothing.

    A library that cannot reach a store names its address, and knows nothing of the tokens in it. It may name only the
    part behind the host, so that every text is looked at and not only those with an address: the message, the
    traceback and the stack.
    """
    plain = logging.getLogRecordFactory()
    if getattr(plain, "masks", False):
        return

    def make(*args: object, **kwargs: object) -> logging.LogRecord:
        record = plain(*args, **kwargs)
        with suppress(Exception):  # a wrong call, such as ("%d", "a"): logging says so itself, and raises nothing
            _mask_record(record)
        return record

    make.masks = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make)


def _mask_record(record: logging.LogRecord) -> None:
    """Mask a record in place; what holds no credential stays as it is, for handlers that format it themselves."""
    text = record.getMessage()
    if (safe := mask_text(text)) != text:
        record.msg, record.args = safe, None
    if record.stack_info:
        record.stack_info = mask_text(record.stack_info)
    if record.exc_info:
        trace = logging.Formatter().formatException(record.exc_info)
        if (safe := mask_text(trace)) != trace:
            record.exc_text = safe  # formatters use it instead of `exc_info`
