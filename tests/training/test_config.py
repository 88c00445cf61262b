import pytest

from relief_ray.config import parse
from relief_ray.errors import UserError
from relief_ray.training.config import TrainingConfig


@pytest.mark.parametrize("chosen", [{}, {"micro_batch": 4, "device": "auto", "autocast": "bf16"}, {"stack": 8}])
def test_all_settings_are_written_and_those_that_differ_are_identified(chosen):
    config = parse({"training": chosen})
    written = config.model_dump(mode="json")["training"]
    assert written.keys() == TrainingConfig.model_fields.keys() and written | chosen == written
    assert config.identity().get("training", {}) == chosen
    assert parse({"training": written}) == config


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
def test_a_stack_that_no_clients_could_share_is_refused(training, runtime, why):
    with pytest.raises(UserError, match=why):
        parse({"training": {"stack": 8, **training}, "runtime": runtime})


@pytest.mark.parametrize(("key", "value"), [("micro_batch", 0), ("stack", 0), ("device", "tpu"), ("autocast", "fp16")])
def test_other_values_are_refused(key, value):
    with pytest.raises(UserError, match=rf"training.{key} = {value!r}"):
        parse({"training": {key: value}})
