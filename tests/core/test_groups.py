"""Section III-B: the groups, their storage order and the column blocks of Eq. (1)."""

from math import fsum

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.groups import WHOLE, GroupLayout, ParamGroup, Part, all_finite, inner_product, pack
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from tests.toy import CHANNELS, FEATURES, RANK, SCALE, SHAPE, build

KINDS = ("weight", "bias", "lora_a", "lora_b")
A, B, DENSE = Part(kinds=frozenset({"lora_a"})), Part(kinds=frozenset({"lora_b"})), Part(kinds=frozenset({"weight"}))

shapes = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 5)),
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)),
)


@st.composite
def layouts(draw):
    """One to five groups of one to three tensors of any kind; LoRA factors are matrices."""
    groups = []
    for i in range(draw(st.integers(1, 5))):
        tensors = []
        for t in range(draw(st.integers(1, 3))):
            shape = draw(shapes)
            kind = draw(st.sampled_from(KINDS if len(shape) == 2 else KINDS[:2]))
            tensors.append((f"t{t}", shape, kind))
        modality = draw(st.sampled_from([None, "acc", "hr"]))
        groups.append(ParamGroup(id=f"g{i}", role="encoder", modality=modality, layer=i, tensors=pack(tensors)))
    return GroupLayout(groups)


parts = st.builds(
    Part,
    kinds=st.one_of(st.none(), st.frozensets(st.sampled_from(KINDS))),
    rank=st.one_of(st.none(), st.integers(0, 5)),
)


def random_params(layout, seed=0):
    make = torch.Generator().manual_seed(seed)
    return {g.id: torch.randn(g.numel, generator=make) for g in layout}


# Eq. (1) ---------------------------------------------------------------------------------------------------------


def test_eq_1_column_blocks_lie_side_by_side_in_modality_order():
    layout = GroupLayout(
        ParamGroup(
            id=f"fusion.A.{m}", role="fusion_a", modality=m, layer=None, tensors=pack([("a", (2, width), "lora_a")])
        )
        for m, width in (("acc", 3), ("hr", 1))
    )
    theta = {"fusion.A.acc": torch.tensor([1.0, 2, 3, 4, 5, 6]), "fusion.A.hr": torch.tensor([7.0, 8])}
    assert torch.equal(layout.matrix("fusion_a", theta), torch.tensor([[1.0, 2, 3, 7], [4, 5, 6, 8]]))


def test_eq_1_sum_of_the_blocks_is_the_whole_projection():
    """``B [A_1 | .. | A_M] [h_1; ..; h_M] = B sum_m A_m h_m``, on the backbone's own fusion stage."""
    backbone = build(b_zero=False)
    theta = backbone.params()
    stage = {s.spec.id: s for s in backbone.stages}
    h = {m: torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(i)) for i, (m, _) in enumerate(CHANNELS)}
    z = {m: stage[f"fusion.A.{m}"].module(h[m]) for m in h}
    fused = stage["fusion.B"].module(*h.values(), *z.values())

    whole_a = backbone.layout.matrix("fusion_a", theta)
    factor_b = backbone.layout.unflatten("fusion.B", theta["fusion.B"])["b"]
    concat = torch.cat(list(h.values()), 1)
    assert whole_a.shape == (RANK, FEATURES * len(CHANNELS))
    frozen = stage["fusion.B"].module.w0
    expected = torch.relu(concat @ (frozen + SCALE * factor_b @ whole_a).T)
    torch.testing.assert_close(fused, expected)
    assert not torch.allclose(expected, torch.relu(concat @ frozen.T)), "the adapter has to matter here"


def test_matrix_leaves_out_biases():
    group = ParamGroup(
        id="head.1", role="head", modality=None, layer=1, tensors=pack([("w", (2, 3), "weight"), ("b", (2,), "bias")])
    )
    layout = GroupLayout([group])
    assert layout.matrix("head", {"head.1": torch.arange(8.0)}).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


# The number of groups and who reaches them --------------------------------------------------------------------------


@pytest.mark.parametrize("num_modalities", [1, 2, 3, 4])
def test_number_of_groups_on_backbone_1(num_modalities):
    """``G = M + 1 + sum_m L_m + L_H`` with ``L_m = 2``, ``L_H = 1``."""
    channels = tuple((f"m{i}", i + 1) for i in range(num_modalities))
    shape = InputShape(channels=channels, window=64, num_classes=5)
    layout = CnnConfig(conv1=2, conv2=3, steps=4, fusion=6).build(shape, 0).layout
    assert len(layout) == num_modalities + 1 + 2 * num_modalities + 1
    for modality, _ in channels:
        assert sum(g.modality == modality and g.role == "encoder" for g in layout) == 2
        assert sum(g.modality == modality and g.role == "fusion_a" for g in layout) == 1


def test_accessible_and_mandatory():
    layout = build().layout
    assert [g.id for g in layout.accessible(["acc"])] == ["encoder.acc.1", "fusion.A.acc", "fusion.B", "head.1"]
    assert [g.id for g in layout.accessible(["hr", "acc"])] == list(layout.ids)
    assert [g.id for g in layout.mandatory(["acc"])] == ["fusion.A.acc"]
    assert [g.id for g in layout.mandatory(["hr", "acc"])] == ["fusion.A.acc", "fusion.A.hr"]
    assert layout.mandatory([]) == ()
    assert layout.modalities == ("acc", "hr")


def test_repeated_ids_are_refused():
    group = ParamGroup(id="g", role="head", modality=None, layer=1, tensors=pack([("w", (1,), "weight")]))
    with pytest.raises(ValueError, match=r"unique; repeated: \['g'\]"):
        GroupLayout([group, group])


def test_select_refuses_unknown_groups_and_keeps_storage_order():
    layout = build().layout
    assert list(layout.select(["head.1", layout["fusion.A.acc"]])) == ["fusion.A.acc", "head.1"]
    assert layout.select() == dict.fromkeys(layout.ids, WHOLE)
    assert layout.select([]) == {}
    with pytest.raises(ValueError, match=r"\['head.9'\] are unknown"):
        layout.select(["head.9"])


def test_membership():
    layout = build().layout
    assert "head.1" in layout and "head.2" not in layout and 3 not in layout
    assert [g.id for g in layout] == list(layout.ids)


# Parts ------------------------------------------------------------------------------------------------------------


def test_parts_by_kind_and_rank_of_a_lora_group():
    """``a`` is (2, 3) at 0..5, ``b`` is (4, 2) at 6..13."""
    group = ParamGroup(
        id="e",
        role="encoder",
        modality="acc",
        layer=1,
        tensors=pack([("a", (2, 3), "lora_a"), ("b", (4, 2), "lora_b")]),
    )
    layout = GroupLayout([group])
    assert layout.indices("e", A) == slice(0, 6)
    assert layout.indices("e", B) == slice(6, 14)
    assert layout.indices("e", Part(rank=1)).tolist() == [0, 1, 2, 6, 8, 10, 12]
    assert layout.indices("e", Part(kinds=frozenset({"lora_a"}), rank=1)) == slice(0, 3)
    assert layout.indices("e", Part(rank=2)) == slice(0, 14)
    assert layout.indices("e", Part(rank=9)) == slice(0, 14), "a larger rank than there is means all of them"
    assert len(layout.indices("e", DENSE)) == 0
    assert layout.num_values({"e": A}) == 6 and layout.num_values({"e": DENSE}) == 0


def test_rank_cuts_lora_factors_only():
    group = ParamGroup(
        id="h", role="head", modality=None, layer=1, tensors=pack([("w", (3, 2), "weight"), ("a", (2, 2), "lora_a")])
    )
    assert GroupLayout([group]).indices("h", Part(rank=1)) == slice(0, 8)


def test_rows_cut_dense_tensors_only_and_round_up():
    """``w`` is (10, 2) at 0..19, its bias at 20..29, ``a`` (2, 3) behind them."""
    tensors = pack([("w", (10, 2), "weight"), ("b", (10,), "bias"), ("a", (2, 3), "lora_a")])
    layout = GroupLayout([ParamGroup(id="h", role="head", modality=None, layer=1, tensors=tensors)])
    assert layout.indices("h", Part(rows=0.25)).tolist() == [*range(6), *range(20, 23), *range(30, 36)]
    assert layout.indices("h", Part(rows=0.1, rank=1)).tolist() == [0, 1, 20, 30, 31, 32]
    assert layout.indices("h", Part(rows=1.0)) == slice(0, 36) and not Part(rows=1.0).whole
    for rows, number in ((0.7, 7), (0.1 + 0.2, 3), (0.31, 4), (1e-6, 1)):
        assert Part(rows=rows).lead(tensors[0]) == (0, number)


@given(layouts(), parts)
def test_a_part_names_exactly_the_elements_of_its_tensors(layout, part):
    for group in layout:
        flags = torch.zeros(group.numel, dtype=torch.bool)
        flags[layout.indices(group.id, part)] = True
        for spec in group.tensors:
            mine = flags[spec.offset : spec.offset + spec.numel].view(spec.shape)
            wanted = torch.zeros(spec.shape, dtype=torch.bool)
            if part.kinds is None or spec.kind in part.kinds:
                wanted[:] = True
                if part.rank is not None and spec.kind == "lora_a":
                    wanted[part.rank :] = False
                if part.rank is not None and spec.kind == "lora_b":
                    wanted[:, part.rank :] = False
            assert torch.equal(mine, wanted)
        assert int(flags.sum()) == layout.num_values({group.id: part})


# The flat vector ----------------------------------------------------------------------------------------------------


@given(layouts())
def test_spans_partition_the_flat_vector(layout):
    covered = torch.zeros(layout.numel, dtype=torch.int64)
    for group in layout:
        covered[layout.span(group.id)] += 1
        inside = torch.zeros(group.numel, dtype=torch.int64)
        for spec in group.tensors:
            inside[spec.offset : spec.offset + spec.numel] += 1
        assert bool((inside == 1).all())
    assert bool((covered == 1).all())
    assert layout.num_values(layout.select()) == layout.numel


@given(layouts(), st.integers(0, 99))
def test_flatten_views_unflatten_round_trip(layout, seed):
    params = random_params(layout, seed)
    flat = layout.flatten(params)
    views = layout.views(flat)
    assert all(torch.equal(views[j], params[j]) for j in layout.ids)
    flat += 1.0
    assert all(torch.equal(views[j], params[j] + 1.0) for j in layout.ids), "views must share memory"
    for j in layout.ids:
        tensors = layout.unflatten(j, params[j])
        assert [tuple(t.shape) for t in tensors.values()] == [s.shape for s in layout[j].tensors]
        assert torch.equal(torch.cat([t.reshape(-1) for t in tensors.values()]), params[j])


def test_views_refuse_a_vector_of_another_length():
    layout = build().layout
    with pytest.raises(ValueError, match=rf"expected \({layout.numel},\)"):
        layout.views(torch.zeros(layout.numel + 1))


def test_the_layout_follows_the_backbone():
    """Loading a flat vector through the views puts every value where ``unflatten`` says it is."""
    backbone = build(b_zero=False)
    flat = torch.arange(float(backbone.layout.numel))
    backbone.load(backbone.layout.views(flat))
    for group in backbone.layout:
        tensors = backbone.layout.unflatten(group.id, backbone.layout.views(flat)[group.id])
        for spec, parameter in zip(group.tensors, backbone.parameters[group.id], strict=True):
            assert torch.equal(tensors[spec.name], parameter.detach())
    assert backbone.forward({m: torch.zeros(2, c, SHAPE.window) for m, c in CHANNELS}).shape == (2, 3)


@pytest.mark.parametrize(
    ("values", "finite"),
    [([], True), ([0.0, -3.0], True), ([1.0, float("nan"), 2.0], False), ([float("inf")], False), ([-1e400], False)],
)
def test_all_finite(values, finite):
    assert all_finite(torch.tensor(values)) is finite


def test_an_inner_product_is_added_up_by_halves():
    """Five products 1, 2, 3, 4, 5e-16: the last joins the first, which float64 rounds to 1 + 4.4e-16."""
    x, y = torch.tensor([1.0, 2.0, 3.0, 4.0, 5e-16], dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    assert inner_product(x, y) == ((1.0 + 5e-16) + 3.0) + (2.0 + 4.0)
    assert inner_product(x[:0], y[:0]) == 0.0 and inner_product(x[:1], y[:1]) == 1.0


@given(st.lists(st.floats(-1e6, 1e6, width=32), max_size=70))
def test_an_inner_product_is_the_exact_one_to_rounding(values):
    x = torch.tensor(values, dtype=torch.float32)
    exact = fsum(v * v for v in values)
    assert inner_product(x, x) == pytest.approx(exact, rel=1e-14, abs=0.0)
