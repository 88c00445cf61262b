import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.support.errors import UserError
from relief_ray.training.evaluation import CHUNK, confusion, predict, share_rows
from tests.training.scenario import SHAPE, build, windows

MODALITIES = SHAPE.modalities
MASKS = [frozenset(MODALITIES), *(frozenset([m]) for m in MODALITIES), frozenset(["acc", "hr"])]


def plain(backbone, raw, mask, missing):
    """Logits of the whole set at once, absent sensors zeroed by hand."""
    values = {f"x.{m}": x if m in mask else torch.zeros_like(x) for m, x in raw.items()}
    for stage in backbone.stages:
        output = stage.module(*(values[i] for i in stage.spec.inputs))
        off = missing == "zero_feature" and stage.spec.feature and stage.spec.modality not in mask
        values[stage.spec.id] = torch.zeros_like(output) if off else output
    return values["head"]


@pytest.mark.parametrize("engine", ["naive", "gemm", "fused"])
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_masked_predictions_are_those_of_zeroed_sensors(engine, missing):
    """More windows than one chunk holds."""
    num = CHUNK + 77
    raw, _ = windows(num)
    backbone, oracle = build(engine), build()
    classes = predict(backbone, {m: backbone.prepare(m, x) for m, x in raw.items()}, MASKS, missing)
    for mask in MASKS:
        logits = plain(oracle, raw, mask, missing).detach()
        first, second = logits.topk(2, dim=1).values.unbind(1)
        clear = first - second > 1e-5
        assert classes[mask].shape == (num,) and clear.float().mean() > 0.99
        assert torch.equal(classes[mask][clear], logits.argmax(1)[clear])


def test_masks_share_what_they_have_in_common():
    raw, _ = windows(CHUNK + 40)
    backbone, calls = build(), []
    for stage in backbone.stages:
        stage.module.register_forward_hook(lambda m, x, y, name=stage.spec.id: calls.append((name, len(x[0]))))
    predict(backbone, raw, MASKS, "zero_input")
    for m in MODALITIES:
        assert sorted(rows for name, rows in calls if name == f"encoder.{m}.1") == [1, 40, CHUNK], (
            "present once a chunk, absent once"
        )
    assert len([c for c in calls if c[0] == "head"]) == 2 * len(MASKS)


def test_without_any_sensor_all_windows_get_one_class():
    raw, _ = windows(10)
    classes = predict(build(), raw, [frozenset()], "zero_input")[frozenset()]
    assert classes.shape == (10,) and len(classes.unique()) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("mask", [frozenset(MODALITIES), frozenset(["hr"])])
def test_a_window_without_finite_logits_has_no_class(value, mask):
    backbone = build()
    with torch.no_grad():
        next(backbone.stages[-1].module.parameters()).view(-1)[3] = value
    raw, _ = windows(10)
    with pytest.raises(UserError, match=r"10 of 10 windows logits that are NaN or infinite.*lower training\.lr"):
        predict(backbone, raw, [mask], "zero_input")


def test_a_share_without_windows_predicts_nothing():
    raw, _ = windows(4)
    classes = predict(build(), {m: x[:0] for m, x in raw.items()}, MASKS, "zero_input")
    assert all(p.shape == (0,) and p.dtype == torch.int64 for p in classes.values())


def test_confusion_by_hand():
    labels, predicted = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 1, 0, 2])
    matrices = confusion(labels, predicted, torch.tensor([0, 0, 0, 1, 1]), num_subjects=2, num_classes=3)
    assert matrices.tolist() == [[[1, 1, 0], [0, 1, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0], [1, 0, 1]]]
    assert matrices.dtype == torch.int64


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=40), st.integers(1, 3))
def test_confusions_of_shares_add_up(rows, shares):
    table = torch.tensor(rows, dtype=torch.int64).view(-1, 3)
    whole = confusion(table[:, 1], table[:, 2], table[:, 0], 3, 4)
    parts = [confusion(t[:, 1], t[:, 2], t[:, 0], 3, 4) for i in range(shares) if (t := table[i::shares]) is not None]
    assert torch.equal(sum(parts), whole) and int(whole.sum()) == len(rows)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_are_whole_chunks_of_the_undivided_evaluation(workers):
    total = 4 * CHUNK + 17
    whole = {tuple(rows.tolist()) for rows in torch.arange(total).split(CHUNK)}
    shares = [share_rows(total, (i, workers)) for i in range(workers)]
    batches = [tuple(rows.tolist()) for share in shares for rows in share.split(CHUNK) if len(rows)]
    assert len(batches) == len(whole) and set(batches) == whole
