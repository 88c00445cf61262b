import pytest

from relief_ray.config import parse
from relief_ray.errors import UserError
from relief_ray.training.config import TrainingConfig


def test_keys_that_came_later_are_written_only_where_they_were_chosen():
    """Or older cells would have other names, and would not be compared with newer ones of the same setting."""
    older = {"epochs": 5, "batch_size": 32, "lr": 1e-3, "missing": "zero_input", "engine": "auto"}
    assert TrainingConfig().model_dump(mode="json") == older == parse({}).hashed()["training"]
    for chosen in ({"micro_batch": 4, "device": "auto", "autocast": "bf16"}, {"stack": 8}):
        config = parse({"training": chosen})
        assert config.hashed()["training"] == older | chosen
        for known in (config, parse({})):
            assert parse(known.model_dump(mode="json")) == known


def test_the_oracle_is_not_computed_in_bfloat16():
    with pytest.raises(UserError, match=r"autocast = 'bf16' with engine = 'naive'.*expected autocast=none"):
        parse({"training": {"engine": "naive", "autocast": "bf16"}})


@pytest.mark.parametrize(
    ("training", "runtime", "why"),
    [
        ({"engine": "naive"}, {}, r"stack = 8 with engine = 'naive'.*expected stack=1, or engine=auto"),
        ({"micro_batch": 4}, {}, r"stack = 8 with micro_batch = 4.*expected one of the two"),
        (
            {},
            {"mode": "actors"},
            r"configuration: training.stack = 8 where every client has.*'actors'.*mode=packed",
        ),
        ({}, {"placement": "typed"}, r"training.stack = 8 where every client has a host of its own.*'typed'"),
    ],
)
def test_a_stack_that_nobody_could_share_is_refused(training, runtime, why):
    with pytest.raises(UserError, match=why):
        parse({"training": {"stack": 8, **training}, "runtime": runtime})


@pytest.mark.parametrize(("key", "value"), [("micro_batch", 0), ("stack", 0), ("device", "tpu"), ("autocast", "fp16")])
def test_other_values_are_refused(key, value):
    with pytest.raises(UserError, match=rf"training.{key} = {value!r}"):
        parse({"training": {key: value}})
