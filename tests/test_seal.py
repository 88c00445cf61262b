"""A sealed object is read back as it was, other tools read it too, and no changed byte passes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.support.files import LINE, PAGE, Marks, Unsealed, check, page, sealed, values_in

VALUES = st.none() | st.integers() | st.text(max_size=8) | st.lists(st.text(max_size=3), max_size=2)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=4)
FEW = settings(max_examples=30)


def unsealed(data: bytes, marks: Marks) -> bytes:
    return bytes(check(memoryview(data), marks)) + b"}"


@pytest.mark.parametrize(("marks", "indent"), [(LINE, None), (PAGE, 1)])
@FEW
@given(content=OBJECTS)
def test_it_comes_back_and_stays_json(marks: Marks, indent: int | None, content: dict[str, object]) -> None:
    data = sealed(json.dumps(content, indent=indent).encode(), marks)
    assert json.loads(unsealed(data, marks)) == content
    read = json.loads(data)
    assert len(read.pop("sha256")) == 64 and read == content
    assert unsealed(sealed(unsealed(data, marks), marks), marks) == unsealed(data, marks), "sealed again, the same"
    assert values_in(page(json.dumps(content, indent=indent))) == content


@pytest.mark.parametrize("marks", [LINE, PAGE])
@FEW
@given(content=OBJECTS, place=st.integers(min_value=0), change=st.integers(1, 255))
def test_no_changed_byte_passes(marks: Marks, content: dict[str, object], place: int, change: int) -> None:
    data = bytearray(sealed(json.dumps(content).encode(), marks))
    data[place % len(data)] ^= change
    with pytest.raises(Unsealed):
        unsealed(bytes(data), marks)


@pytest.mark.parametrize("marks", [LINE, PAGE])
@FEW
@given(content=OBJECTS, place=st.integers(min_value=0))
def test_no_cut_passes(marks: Marks, content: dict[str, object], place: int) -> None:
    data = sealed(json.dumps(content).encode(), marks)
    with pytest.raises(Unsealed):
        unsealed(data[: place % len(data)], marks)
