"""Test the plain text that terminals and pages share."""

import pytest

from relief_ray.text import percent


@pytest.mark.parametrize(
    ("value", "decimals", "shown"),
    [(63.2, 0, "63"), (99.4, 0, "99"), (99.6, 0, "> 99"), (100.0, 0, "100"), (99.96, 1, "> 99.9"), (100.4, 0, "100")],
)
def test_nearly_all_is_not_all(value, decimals, shown):
    assert percent(value, decimals) == shown
