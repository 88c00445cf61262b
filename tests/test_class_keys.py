"""What the fields of the configuration's classes take, in words: of the project's own, and of a user's."""

import pytest

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.config.keys import all_keys, type_in_words
from relief_ray.support.errors import UserError
from tests.own import METHOD


def test_types_in_words():
    fields = ExperimentConfig.model_fields
    assert type_in_words(fields["participation"].annotation, fields["participation"].metadata) == (
        "number, above 0, at most 1"
    )
    kinds = {key.key: key.type for key in all_keys()}
    assert kinds["fleet.counts"] == "list of 3 whole numbers, or null"
    assert kinds["fleet.owned"] == "mapping from text to list of text"
    assert kinds["evaluation.parts"] == "list of test, validation, not empty"
    assert kinds["strategy.clusters"] == "one of size, dominant, or whole number, above 0"
    for key in all_keys():
        assert "<class" not in key.type and "typing" not in key.type, key


FIELDS = """
from datetime import date

from pydantic import Field, field_validator


class Fielded(Mine):
    share: float = Field(0.2, gt=0, lt=0.5)
    gamma: int = 3
    even: int = Field(2, multiple_of=2)
    parts: tuple[int, ...] = (1, 2)
    ranks: dict[str, float] = {}
    day: date = date(2024, 1, 1)
    level: int = 0

    @field_validator("level")
    @classmethod
    def _at_ground(cls, value):
        assert value == 0, "stay on the ground"
        return value


class Needy(Mine):
    must: float = Field(ge=0)
"""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 2}, "share = 2: expected a number, above 0, below 0.5, e.g. strategy.share=0.2 (the default)"),
        ({"gamma": 1.5}, "gamma = 1.5: expected a whole number, e.g. strategy.gamma=3 (the default)"),  # not RELIEF's
        ({"parts": 3}, "parts = 3: expected a list of whole numbers; write strategy.parts=[3]"),
        ({"parts": ["a"]}, "parts.0 = 'a': expected a list of whole numbers, e.g. strategy.parts=[1, 2] (the default)"),
        ({"ranks": 3}, "ranks = 3: expected a mapping from text to number, e.g. strategy.ranks={} (the default)"),
        ({"ranks": {"C": "x"}}, "ranks.C = 'x': expected a number"),
        (
            {"even": 3},
            "even = 3: expected a whole number, e.g. strategy.even=2 (the default); input should be a multiple of 2",
        ),
        ({"day": "never"}, "day = 'never': Input should be a valid date or datetime, input is too short"),
        ({"level": 1}, "level = 1: stay on the ground"),
        ({"name": "Needy"}, "must: found no value, expected a number, at least 0; set it"),
    ],
)
def test_fields_of_a_method_are_explained_as_built_in_ones(write, values, message):
    module = write(METHOD + FIELDS)
    with pytest.raises(UserError) as caught:
        parse({"strategy": {**values, "name": f"{module}:{values.get('name', 'Fielded')}"}})
    assert str(caught.value) == f"configuration: strategy.{message}"


def test_fields_of_a_backbone_are_explained_as_built_in_ones(write):
    module = write(
        "from pydantic import Field\nfrom relief_ray.models.cnn import CnnConfig\n\n\n"
        "class Wide(CnnConfig):\n    fusion: int = Field(8, ge=4)\n"
    )
    expected = r"backbone\.fusion = 3: expected a whole number, at least 4, e\.g\. backbone\.fusion=8 \(the default\)$"
    with pytest.raises(UserError, match=expected):
        parse({"backbone": {"name": f"{module}:Wide", "fusion": 3}})
