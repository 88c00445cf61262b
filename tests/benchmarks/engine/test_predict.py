import pytest

from benchmarks.engine.local import make_backbone
from benchmarks.engine.predict import ASSIGNMENTS, load_of, models, spread, typical
from relief_ray.messages import StageTimes
from relief_ray.models.costs import count_costs

SEEN = StageTimes(forward_s=1.0, backward_s=2.0, optimizer_s=0.5)


def test_both_models_repeat_what_they_were_fitted_to(scene):
    load = load_of(scene, count_costs(make_backbone(scene, "naive")), None, "gemm")
    fitted = {kind: model.times(device, load) for kind, (model, device) in models(load, SEEN).items()}
    assert fitted["split"].compute_s == pytest.approx(SEEN.compute_s)
    measured = fitted["measured"]
    assert (measured.forward_s, measured.backward_s, measured.optimizer_s) == pytest.approx((1.0, 2.0, 0.5))


def test_less_to_train_is_predicted_faster(scene):
    costs = count_costs(make_backbone(scene, "naive"))
    loads = {name: load_of(scene, costs, groups, "gemm") for name, groups in ASSIGNMENTS.items()}
    model, device = models(loads["everything"], SEEN)["split"]
    seconds = {name: model.times(device, load).compute_s for name, load in loads.items()}
    assert seconds["head"] < seconds["blocks"] < seconds["blocks_upper_layer"] < seconds["everything"]


def test_typical_is_the_median_of_each_phase():
    times = [StageTimes(forward_s=f, backward_s=b, optimizer_s=1.0) for f, b in ((1, 9), (2, 8), (30, 7))]
    assert typical(times) == StageTimes(forward_s=2, backward_s=8, optimizer_s=1.0)


def test_spread():
    assert spread([3.0]) == 0.0
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(0.5)
