"""Bad configuration is refused with the key named; good configuration is canonical."""

import pytest
from pydantic import ValidationError

from relief_ray.data.config import DataConfig


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "pamap"}, "known: "),
        ({"stride": 1.0}, "stride"),
        ({"stride_s": 0.0}, "stride_s"),
        ({"stride_s": 1e-300}, r"data\.stride_s=1e-300: is less than a row of dsa_mini, expected at least 0\.04"),
        ({"stride_s": 0.019}, r"data\.stride_s=0\.019: is less than a row"),
        ({"name": "mhealth", "stride_s": 0.009}, r"expected at least 0\.02 \(its 50 Hz\)"),
        ({"fold": 1}, r"data\.fold=1"),
        ({"split": "held_out_subject", "fold": 4}, r"folds 0\.\.3"),
        ({"name": "pamap2", "units": ("T",)}, "selectable units"),
        ({"name": "dsa", "units": ("XX",)}, r"data\.units"),
        ({"subjects": (1, 99)}, r"\[99\] unknown"),
        ({"num_clients": 0}, "num_clients"),
        ({"split": "random"}, "split"),
    ],
)
def test_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DataConfig.model_validate(given)


def test_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        DataConfig().stride_s = 2.0


def test_units_are_canonical() -> None:
    assert DataConfig(name="dsa", units=("LL", "T")) == DataConfig(name="dsa", units=("T", "LL"))


def test_round_trip() -> None:
    config = DataConfig(name="dsa", split="held_out_subject", fold=2, units=("RL",), subjects=(1, 2, 3, 4, 5, 6))
    assert DataConfig.model_validate_json(config.model_dump_json()) == config
