"""Every mutation can be tried: its code stands in one place and its tests exist. `tests/mutations.py` tries them."""

from __future__ import annotations

import pytest

from tests import mutations
from tests.mutations import Mutation


@pytest.mark.parametrize("mutation", tuple(mutations.mutations()), ids=lambda mutation: mutation.name)
def test_its_code_stands_in_one_place_and_its_tests_exist(mutation: Mutation) -> None:
    text = (mutations.ROOT / mutations.home_of(mutation)).read_text(encoding="utf-8")
    compile(text.replace(mutation.code, mutation.instead), mutation.name, "exec")
    assert mutation.code != mutation.instead and mutations.test_files(mutation)
