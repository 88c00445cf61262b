import io
import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from relief_ray.core.codec import encoded_nbytes
from relief_ray.devices.calibration import (
    MODELS,
    TARGET_ENERGY_J,
    CalibrationFile,
    calibration,
    fit,
    load_calibrations,
    nominal_energy_j,
    utilisations,
)
from relief_ray.devices.time import FlopProportional, Split
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.costs import count_costs
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.support.errors import UserError

PAMAP2 = InputShape(channels=(("acc", 9), ("gyro", 9), ("mag", 9), ("hr", 1)), window=256, num_classes=12)
DOCS = Path(__file__).parents[2] / "docs" / "costs.md"


@pytest.fixture(scope="module")
def counted():
    """Costs by group ids: those of Backbone 2 take seconds to count, and are asked for twice."""
    known = {}

    def count(backbone):
        if (key := tuple(backbone.layout.ids)) not in known:
            known[key] = count_costs(backbone)
        return known[key]

    return count


@pytest.fixture(scope="module")
def cnn():
    backbone = CnnConfig().build(PAMAP2, seed=0)
    return count_costs(backbone), encoded_nbytes(backbone.layout, backbone.layout.select())


@pytest.mark.slow
def test_shipped_file_is_what_the_documented_command_prints(run_cache, counted, monkeypatch):
    monkeypatch.setattr("relief_ray.models.costs.count_costs", counted)
    block = re.search(r"```python\n(# refit.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    assert block, "docs/costs.md has lost the block that refits the calibration"
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(block.group(1), {})
    again = CalibrationFile.model_validate(json.loads(printed.getvalue()))
    for shipped, fitted in zip(load_calibrations().entries, again.entries, strict=True):
        assert shipped.model_copy(update={"utilisation": 1.0}) == fitted.model_copy(update={"utilisation": 1.0})
        assert shipped.utilisation == pytest.approx(fitted.utilisation, rel=1e-8)


def test_calibrated_fleet_spends_the_papers_energy(cnn):
    costs, nbytes = cnn
    for kind, utilisation in zip((FlopProportional, Split), utilisations("cnn").values(), strict=True):
        assert nominal_energy_j(costs, kind(utilisation=utilisation), nbytes) == pytest.approx(847.0, rel=1e-6)


def test_every_entry_says_that_it_is_fitted():
    entries = load_calibrations().entries
    assert {e.origin for e in entries} == {"FITTED"}
    assert len({(e.backbone, e.time_model) for e in entries}) == len(entries)
    assert {e.target_energy_j for e in entries} <= set(TARGET_ENERGY_J.values())
    assert calibration("cnn", "split") in entries


def test_energy_falls_as_utilisation_grows(cnn):
    costs, nbytes = cnn
    for kind in (FlopProportional, Split):
        energies = [nominal_energy_j(costs, kind(utilisation=10.0**k), nbytes) for k in range(-6, 1)]
        assert energies == sorted(energies, reverse=True)
        assert len(set(energies)) == len(energies)


def test_fit_is_inverse_to_the_work(cnn):
    costs, nbytes = cnn
    doubled = replace(
        costs,
        flops={
            s: replace(
                f,
                forward_flops=2 * f.forward_flops,
                input_grad_flops=2 * f.input_grad_flops,
                weight_grad_flops={j: 2 * w for j, w in f.weight_grad_flops.items()},
            )
            for s, f in costs.flops.items()
        },
    )
    once, twice = (fit(c, nbytes, backbone="cnn", time_model="flop_proportional") for c in (costs, doubled))
    assert twice.utilisation == pytest.approx(2 * once.utilisation, rel=1e-8)


def test_unknown_backbones_and_impossible_links(cnn):
    costs, nbytes = cnn
    with pytest.raises(UserError, match=r"'mine' is not calibrated yet.*cnn"):
        utilisations("mine")
    with pytest.raises(UserError, match="no energy in the paper"):
        fit(costs, nbytes, backbone="mine", time_model="split")
    with pytest.raises(UserError, match="without any computing"):
        fit(costs, 100 * nbytes, backbone="cnn", time_model="split")


def test_a_user_may_bring_a_utilisation():
    assert utilisations("mine", utilisation=0.25) == dict.fromkeys(MODELS, 0.25)


@pytest.mark.ci
def test_backbone_2s_fleet_spends_table_2s_energy(run_cache, counted):
    backbone = MomentConfig().build(PAMAP2, seed=0)
    costs, nbytes = counted(backbone), encoded_nbytes(backbone.layout, backbone.layout.select())
    for kind, utilisation in zip((FlopProportional, Split), utilisations("moment_lora").values(), strict=True):
        assert nominal_energy_j(costs, kind(utilisation=utilisation), nbytes) == pytest.approx(1284.0, rel=1e-8)
