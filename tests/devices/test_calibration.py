from dataclasses import replace

import pytest

from benchmarks import calibrate
from benchmarks.calibrate import PAMAP2, TARGET_ENERGY_J, fit, nominal_energy_j
from relief_ray.core.groups import GroupLayout, pack
from relief_ray.devices.calibration import FITTED, MODELS, utilisations
from relief_ray.devices.time import FlopProportional, SplitClock
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.costs import count_costs
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.models.registry import BACKBONES
from relief_ray.support.errors import UserError


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
    return count_costs(backbone), backbone.layout


@pytest.mark.slow
def test_shipped_figures_are_what_the_documented_command_prints(run_cache, counted, monkeypatch):
    monkeypatch.setattr(calibrate, "count_costs", counted)
    again = calibrate.fitted()
    assert again.keys() == FITTED.keys()
    for name, shipped in FITTED.items():
        assert shipped == pytest.approx(again[name], rel=1e-8)


def test_calibrated_fleet_spends_the_papers_energy(cnn):
    costs, layout = cnn
    for kind, utilisation in zip((FlopProportional, SplitClock), utilisations("cnn").values(), strict=True):
        assert nominal_energy_j(costs, kind(utilisation=utilisation), layout) == pytest.approx(847.0, rel=1e-6)


def test_every_backbone_with_an_energy_in_the_paper_is_fitted_for_every_model():
    assert FITTED.keys() == TARGET_ENERGY_J.keys() == BACKBONES.keys()
    assert all(set(figures) == set(MODELS) for figures in FITTED.values())


def test_energy_falls_as_utilisation_grows(cnn):
    costs, layout = cnn
    for kind in (FlopProportional, SplitClock):
        energies = [nominal_energy_j(costs, kind(utilisation=10.0**k), layout) for k in range(-6, 1)]
        assert energies == sorted(energies, reverse=True)
        assert len(set(energies)) == len(energies)


def test_fit_is_inverse_to_the_work(cnn):
    costs, layout = cnn
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
    once, twice = (fit(c, layout, backbone="cnn", time_model="flop_proportional") for c in (costs, doubled))
    assert twice == pytest.approx(2 * once, rel=1e-8)


def test_unknown_backbones_and_impossible_links(cnn):
    costs, layout = cnn
    with pytest.raises(UserError, match="no energy in the paper"):
        fit(costs, layout, backbone="mine", time_model="split")
    large = GroupLayout(replace(g, tensors=pack([("w", (100 * g.numel,), "weight")])) for g in layout)
    with pytest.raises(UserError, match="without any computing"):
        fit(costs, large, backbone="cnn", time_model="split")


def test_a_user_may_bring_a_utilisation():
    assert utilisations("mine", utilisation=0.25) == dict.fromkeys(MODELS, 0.25)


@pytest.mark.ci
def test_backbone_2s_fleet_spends_table_2s_energy(run_cache, counted):
    backbone = MomentConfig().build(PAMAP2, seed=0)
    costs, layout = counted(backbone), backbone.layout
    for kind, utilisation in zip((FlopProportional, SplitClock), utilisations("moment_lora").values(), strict=True):
        assert nominal_energy_j(costs, kind(utilisation=utilisation), layout) == pytest.approx(1284.0, rel=1e-8)
