"""Seals: a JSON object whose last key is the sha256 of the bytes before it, so that a changed bit is seen.

A sealed object stays JSON: any tool reads it, with one key more (``sha256``). The digest is over the bytes as written,
from the opening brace to the comma before that key; nothing has to be formatted again to check it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_NUM_DIGITS = 64


class Unsealed(ValueError):
    """Raised for bytes that carry no seal, or one that does not fit."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Bytes that stand around the digest.

    Attributes:
        before: bytes between the object's last value and the digest.
        after: bytes from the digest to the end.
    """

    before: bytes
    after: bytes


# A line of a ledger, without its line break, and a file for people (indented by one).
LINE = Marks(before=b',"sha256":"', after=b'"}')
PAGE = Marks(before=b',\n "sha256": "', after=b'"\n}\n')


def sealed(data: bytes, marks: Marks) -> bytes:
    """Return a JSON object (not an empty one) with its seal.

    Args:
        data: the object, ending with its brace.
        marks: form of the seal.
    """
    body = data.rstrip().removesuffix(b"}").rstrip()
    return body + marks.before + hashlib.sha256(body).hexdigest().encode() + marks.after


def unsealed(data: bytes, marks: Marks) -> bytes:
    """Return the JSON object of a seal, without its key ``sha256``.

    Args:
        data: as `sealed` returned it.
        marks: form of the seal.

    Raises:
        Unsealed: there is no seal of this form at the end, or the bytes before it are others than were sealed.
    """
    return bytes(check(memoryview(data), marks)) + b"}"


def check(data: memoryview, marks: Marks) -> memoryview:
    """Return the bytes before a seal that fits, without a copy of them: files of many megabytes are checked so.

    Raises:
        Unsealed: as `unsealed`.
    """
    length = len(marks.before) + _NUM_DIGITS + len(marks.after)
    body, seal = data[:-length], bytes(data[-length:])
    if not (seal.startswith(marks.before) and seal.endswith(marks.after)):
        raise Unsealed("it does not end with its sha256")
    digest = seal[len(marks.before) : -len(marks.after)]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise Unsealed("its bytes are not those that were written: sha256 differs")
    return body
