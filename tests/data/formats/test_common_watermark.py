"""The ramp that marks synthetic files survives text formats; nothing else is taken for it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.data.formats.common import is_signature, signature


@pytest.mark.parametrize("form", ["%.5g", "%.6g"])
def test_survives_text(form: str) -> None:
    assert is_signature(np.array([float(form % value) for value in signature(52)], np.float32))


@given(st.integers(0, 44), st.floats(2e-4, 1e3))
def test_one_other_value_is_no_signature(column: int, change: float) -> None:
    row = signature(45).astype(np.float32)
    row[column] += np.float32(change)
    assert not is_signature(row)
