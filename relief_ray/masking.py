"""Masks whatever looks like a credential, before anything is hashed, written, sent or logged."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

MASK = "***"
_SECRET = r"(?:token|password|passwd|pwd|secret|api_?key|access_?key|private_?key|credentials?|authorization)"
_KEY = re.compile(rf"(?:^|[_.\-]){_SECRET}$", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY = re.compile(rf"([?&;][\w.\-]*{_SECRET}=)[^&;#\s]+", re.IGNORECASE)


def mask_text(text: str) -> str:
    """Mask credentials in URIs: ``scheme://user:pass@host/?token=x`` becomes ``scheme://***@host/?token=***``."""
    return _QUERY.sub(rf"\g<1>{MASK}", _USERINFO.sub(f"{MASK}@", text))


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
    part behind the host, so that every text is looked at and not only those with an address.
    """
    plain = logging.getLogRecordFactory()
    if getattr(plain, "masks", False):
        return

    def make(*args: object, **kwargs: object) -> logging.LogRecord:
        record = plain(*args, **kwargs)
        text = record.getMessage()
        if (safe := mask_text(text)) != text:
            record.msg, record.args = safe, None
        return record

    make.masks = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make)
