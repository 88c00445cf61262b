import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import ClientView, EvalPlan, EvalTarget
from relief_ray.records.metrics import accuracy, class_f1, constant_f1, macro_f1, summarise
from relief_ray.records.schema import Metrics
from relief_ray.training.evaluation import confusion

# Subject a: three right, one of class 0 taken for 1; subject b: class 1 always taken for 0; class 2 never met.
FIRST = [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
SECOND = [[0, 0, 0], [2, 0, 0], [0, 0, 0]]
BOTH = torch.tensor([FIRST, SECOND])


def matrix(pairs, num_classes):
    table = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    return confusion(table[:, 0], table[:, 1], torch.zeros(len(table), dtype=torch.int64), 1, num_classes)[0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=50))
def test_macro_f1_and_accuracy_are_scikit_learns(pairs):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn comes with the dev extra")
    true, predicted = zip(*pairs, strict=True)
    counts = matrix(pairs, 5)
    assert macro_f1(counts) == pytest.approx(metrics.f1_score(true, predicted, average="macro", zero_division=0.0))
    assert accuracy(counts) == pytest.approx(metrics.accuracy_score(true, predicted))
    named = sorted({*true, *predicted})
    each = metrics.f1_score(true, predicted, labels=named, average=None, zero_division=0.0)
    assert class_f1(counts)[named].tolist() == pytest.approx(each.tolist())


def test_by_hand():
    """Subject a: F1 of class 0 is 2*2 / (2*2 + 0 + 1) = 0.8, of class 1 2*1 / (2*1 + 1 + 0) = 2/3."""
    scores = class_f1(torch.tensor(FIRST))
    assert scores[:2].tolist() == pytest.approx([0.8, 2 / 3]) and math.isnan(scores[2])
    assert macro_f1(torch.tensor(FIRST)) == pytest.approx((0.8 + 2 / 3) / 2)
    assert accuracy(torch.tensor(FIRST)) == pytest.approx(0.75)


def test_a_class_that_is_only_guessed_counts_as_zero():
    assert macro_f1(torch.tensor([[1, 1], [0, 0]])) == pytest.approx((2 / 3 + 0.0) / 2)


def test_a_class_that_nobody_showed_or_guessed_has_no_f1():
    """One that occurs and is never found has 0, and so has one that is only guessed."""
    counts = torch.tensor([[[3, 1, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]])
    plan = EvalPlan(canonical=EvalTarget(label="global"))
    metrics = summarise({"global": counts}, plan, (), ["a"])
    assert metrics.f1_by_class == (pytest.approx(6 / 10), 0.0, None, 0.0)
    assert metrics.f1 == pytest.approx(6 / 10 / 3) == macro_f1(counts[0])
    assert Metrics.model_validate_json(metrics.model_dump_json()) == metrics


def test_one_class_only():
    assert macro_f1(torch.tensor([[4, 0], [0, 0]])) == 1.0


def canonical(**by_mask):
    """Metrics of one model with single-sensor masks."""
    plan = EvalPlan(canonical=EvalTarget(label="global"))
    return summarise(
        {"global": BOTH, **{f"global|{m}": c for m, c in by_mask.items()}}, plan, ("hr", "mag"), ["a", "b"]
    )


def test_canonical_model():
    metrics = canonical(acc=BOTH, mag=torch.tensor([FIRST, FIRST]), hr=BOTH)
    pooled = macro_f1(BOTH.sum(0))
    assert metrics.f1 == pooled == metrics.f1_by_modality["acc"]
    assert metrics.f1_rare == pytest.approx((pooled + macro_f1(torch.tensor(FIRST))) / 2)
    assert metrics.f1_by_subject == {"a": macro_f1(torch.tensor(FIRST)), "b": 0.0}
    assert metrics.f1_by_class[:2] == pytest.approx((4 / 7, 2 / 5))
    assert metrics.f1_by_class[2] is None, "the third class neither occurs nor is guessed"
    assert metrics.accuracy == pytest.approx(0.5) and metrics.num_windows == 6
    assert metrics.confusion == ((tuple(FIRST[0]), tuple(FIRST[1]), (0, 0, 0)), ((0, 0, 0), (2, 0, 0), (0, 0, 0)))
    assert metrics.f1_fleet is None and metrics.f1_by_client == {}


@pytest.mark.parametrize("label", ["global", "mean+ema", "a|b"])
def test_a_model_of_any_name_has_f1_of_its_sensors(label):
    plan = EvalPlan(canonical=EvalTarget(label=label))
    counts = {label: BOTH, f"{label}|acc": BOTH, f"{label}|hr": torch.tensor([FIRST, FIRST]), f"{label}|acc+hr": BOTH}
    metrics = summarise(counts, plan, ("hr",), ["a", "b"])
    assert list(metrics.f1_by_modality) == ["acc", "hr"]
    assert metrics.f1_rare == metrics.f1_by_modality["hr"] == macro_f1(torch.tensor(FIRST))


def test_without_rare_modalities_there_is_no_rare_f1():
    plan = EvalPlan(canonical=EvalTarget(label="global"))
    metrics = summarise({"global": BOTH, "global|acc": BOTH}, plan, (), ["a", "b"])
    assert metrics.f1_rare is None and metrics.f1_by_modality == {"acc": metrics.f1}


def test_personal_models():
    targets = tuple(EvalTarget(label=f"client.{n}", client=n, keep={"head.1": WHOLE}) for n in (0, 3))
    other = torch.tensor([FIRST, FIRST])
    counts = {"client.0": BOTH, "client.3": other}
    metrics = summarise(counts, EvalPlan(canonical=None, clients=targets), ("hr",), ["a", "b"])
    assert metrics.f1 is None and metrics.f1_rare is None and metrics.confusion == ()
    assert metrics.f1_by_client == {0: macro_f1(BOTH.sum(0)), 3: macro_f1(other.sum(0))}
    assert metrics.f1_fleet == pytest.approx(sum(metrics.f1_by_client.values()) / 2)
    assert metrics.f1_fleet_by_subject["b"] == pytest.approx(macro_f1(torch.tensor(FIRST)) / 2)


def test_every_client_s_own_view_by_hand():
    """Client 0 has a model of its own, client 1 the canonical one through acc and gyro; each knows one subject."""
    other = torch.tensor([FIRST, FIRST])
    plan = EvalPlan(
        canonical=EvalTarget(label="global"), clients=(EvalTarget(label="client.0", client=0, modalities=("acc",)),)
    )
    matrices = {"global": BOTH, "global|acc": BOTH, "global|acc+gyro": other, "client.0": BOTH}
    views = [
        ClientView(client=0, modalities=("acc",), rows=(0,)),
        ClientView(client=1, modalities=("acc", "gyro"), rows=(1,)),
    ]
    names = ("acc", "gyro", "mag")
    metrics = summarise(matrices, plan, ("mag",), ["a", "b"], views, names)
    first = macro_f1(torch.tensor(FIRST))
    assert metrics.f1_by_client == {0: macro_f1(BOTH.sum(0)), 1: macro_f1(other.sum(0))}
    assert metrics.f1_own_sensors == pytest.approx((macro_f1(BOTH.sum(0)) + macro_f1(other.sum(0))) / 2)
    assert metrics.f1_own_subjects == pytest.approx((first + first) / 2)
    assert metrics.f1_by_modality == {"acc": metrics.f1}, "a set of sensors is no modality"
    stranger = [views[0], ClientView(client=1, modalities=("acc", "gyro"), rows=())]
    assert summarise(matrices, plan, (), ["a", "b"], stranger, names).f1_own_subjects is None
    unknown = [ClientView(client=1, modalities=("gyro",), rows=(0,))]
    untold = summarise(matrices, plan, (), ["a", "b"], unknown, names)
    assert untold.f1_own_sensors is None and untold.f1_by_client == {0: macro_f1(BOTH.sum(0))}


def test_a_constant_answer_by_hand():
    """3 of 4 windows: precision 3/4, recall 1, F1 6/7, and 0 for the other class; a class without windows is none."""
    assert constant_f1([3, 1]) == pytest.approx(6 / 14)
    assert constant_f1([3, 1, 0]) == pytest.approx(6 / 14)
    assert constant_f1([1, 1, 1, 1]) == pytest.approx(2 * 0.25 / 1.25 / 4)
    predicted = torch.tensor([[3, 0], [1, 0]])
    assert constant_f1([3, 1]) == pytest.approx(macro_f1(predicted))


def test_one_model_that_clients_run_to_outputs_of_their_own_leads_as_one_model():
    """Their F1 is recorded, but the canonical model's stays the headline."""
    targets = tuple(EvalTarget(label=f"client.{n}", client=n, output="exit.1") for n in (0, 3))
    plan = EvalPlan(canonical=EvalTarget(label="global"), clients=targets, personal=False)
    other = torch.tensor([FIRST, FIRST])
    metrics = summarise({"global": BOTH, "client.0": BOTH, "client.3": other}, plan, (), ["a", "b"])
    assert metrics.f1_by_client == {0: macro_f1(BOTH.sum(0)), 3: macro_f1(other.sum(0))}
    assert metrics.f1_fleet is None and metrics.f1_fleet_by_subject == {}
    assert metrics.headline == metrics.f1 == macro_f1(BOTH.sum(0))
