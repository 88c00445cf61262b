"""The C library: sums as the source writes them, whatever compiles them and whatever computes them."""

import ctypes
import math
import re
import shutil
import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from relief_ray.core import codec
from relief_ray.kernels import library
from relief_ray.kernels.library import Kind, Rule, coded, squares, steps
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.fused import cross_entropy
from relief_ray.support.errors import UserError
from relief_ray.training.forward_plan import compute_sources, plan_forward, run_stages
from tests.core.test_codec import of_tensors
from tests.kernels.builds import PLAIN, built, using

pytestmark = pytest.mark.skipif(bool(library.why_missing()), reason=f"no library here: {library.why_missing()}")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 33),
        "window": st.integers(7, 50),
        "channels": st.lists(st.integers(1, 9), min_size=1, max_size=3),
        "conv1": st.integers(1, 17),
        "conv2": st.integers(1, 20),
        "steps": st.integers(1, 4),
        "fusion": st.integers(1, 40),
        "classes": st.integers(2, 19),
        "absent": st.booleans(),
    }
)
PAMAP2 = {"batch": 32, "window": 256, "channels": [9, 9, 3], "conv1": 16, "conv2": 32, "steps": 32, "fusion": 304}
WHOLE = PAMAP2 | {"classes": 12, "absent": True}


def a_step(engine, shape, dtype=torch.float32, value=None, seed=0):
    """Loss, logits and every gradient of one batch, all groups trained."""
    shape = dict(shape)
    batch, window, classes = (shape.pop(k) for k in ("batch", "window", "classes"))
    sensors, has_absent = [(f"s{i}", c) for i, c in enumerate(shape.pop("channels"))], shape.pop("absent")
    config = CnnConfig(**shape)
    backbone = config.build(InputShape(channels=tuple(sensors), window=window, num_classes=classes), seed, engine)
    for stage in backbone.stages:
        stage.module.to(dtype)
    make = torch.Generator().manual_seed(seed)
    raw = {m: torch.randn(batch, c, window, generator=make).to(dtype) for m, c in sensors}
    labels = torch.randint(0, classes, (batch,), generator=make)
    if has_absent and len(sensors) > 1:
        raw.pop(sensors[-1][0])
    if value is not None:
        raw["s0"][-1, 0, window // 2] = value
    for p in (p for parameters in backbone.parameters.values() for p in parameters):
        p.requires_grad_(True)
    plan = plan_forward(backbone, set(raw), set(backbone.layout.ids), "zero_input", engine != "naive")
    inputs = {m: backbone.prepare(m, x) for m, x in raw.items()}
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        sources = compute_sources(backbone, plan, inputs, batch)
        logits = run_stages(plan.every_step, dict(sources), plan, batch)[backbone.output]
    finally:
        torch.set_default_dtype(before)
    loss = (cross_entropy if engine == "fused" else functional.cross_entropy)(logits, labels)
    loss.backward()
    gradients = {f"{j}.{i}": p.grad for j, ps in backbone.parameters.items() for i, p in enumerate(ps)}
    return {"loss": loss.detach(), "logits": logits.detach()} | gradients


def difference(ours, theirs):
    """The largest difference, each tensor's relative to its largest value."""
    return max(float((ours[k] - x).abs().max() / (x.abs().max() + 1e-12)) for k, x in theirs.items())


def are_equal(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], x) for k, x in theirs.items())


@pytest.mark.ci
@settings(max_examples=40, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 99))
def test_the_same_sums_in_double_precision_are_torchs(shape, seed):
    ours, theirs = (a_step(engine, shape, torch.float64, seed=seed) for engine in ("fused", "naive"))
    assert difference(ours, theirs) < 1e-9


@pytest.mark.ci
@settings(max_examples=40, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 99))
def test_vectors_give_the_bits_of_plain_c(shape, seed):
    with_vectors = a_step("fused", shape, seed=seed)
    with pytest.MonkeyPatch.context() as patched, using(patched, built(shutil.which("cc") or "gcc", PLAIN)):
        assert are_equal(a_step("fused", shape, seed=seed), with_vectors)


@pytest.mark.ci
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("flag", ["-O1", "-O2", PLAIN])
def test_every_compiler_gives_the_same_bits(compiler, flag, monkeypatch):
    chosen = a_step("fused", WHOLE)
    change = torch.randn(5003, generator=torch.Generator().manual_seed(1)), torch.zeros(5003)
    told, out = coded(*change, as_said := torch.empty(5003), [17, 4986]), torch.empty(5003)
    with using(monkeypatch, built(compiler, flag)):
        assert are_equal(a_step("fused", WHOLE), chosen)
        assert coded(*change, out, [17, 4986]) == told and torch.equal(out, as_said)
    assert difference(chosen, a_step("naive", WHOLE)) < 1e-4


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_not_lost(value):
    """A ReLU that turned NaN into zero would hide a broken sensor."""
    step = a_step("fused", WHOLE, value=value)
    assert not torch.isfinite(step["loss"]) and not torch.isfinite(step["logits"][-1]).all()
    assert torch.isfinite(step["logits"][:-1]).all()


@pytest.mark.parametrize("callers", [True, False])
def test_numbers_below_the_smallest_normal_one_are_zero_whatever_the_callers_mode_is(callers):
    """As read (1e-39) and as computed (1e-20 squared); the caller's mode is what it was afterwards."""
    p, grad, m, v = torch.ones(19), torch.full((19,), 1e-20), torch.full((19,), 1e-39), torch.zeros(19)
    rule = Rule(kind=Kind.ADAM, kept=1, rate=1.0, keep1=1.0, new1=0.5, keep2=1.0, new2=0.5, root=1.0, eps=1.0, shrink=1)
    assert torch.set_flush_denormal(callers)
    try:
        steps(rule, [(m, v, grad, p)])
        assert (float(torch.tensor(1e-38) * 0.1) == 0.0) == callers
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(m, 0.5 * grad) and not v.any() and torch.equal(p, torch.ones(19))


def test_no_number_above_it_is_lost():
    smallest = torch.finfo(torch.float32).tiny
    m = torch.full((19,), smallest)
    steps(Rule(kind=Kind.VELOCITY, kept=1, rate=0.0, keep1=1.0, shrink=1.0), [(m, m, torch.zeros(19), torch.ones(19))])
    assert torch.equal(m, torch.full((19,), smallest))


@pytest.mark.parametrize("numel", [1, 7, 8, 9, 31])
@pytest.mark.parametrize(("kind", "first", "kept"), [(k, f, m) for k in Kind for f, m in ((0, 1), (1, 1), (1, 0))])
def test_a_step_is_its_formula(kind, first, kept, numel):
    """g' = g + decay p; m = k1 m + n1 g', v = k2 v + n2 g'^2; p = shrink p - rate m / (sqrt(v) root + eps)."""
    make = torch.Generator().manual_seed(numel)
    p, g, m = (torch.randn(numel, generator=make) for _ in range(3))
    v = torch.rand(numel, generator=make)
    rule = Rule(
        kind=kind, first=first, kept=kept, rate=0.01, keep1=0.9, new1=0.1, keep2=0.99, new2=0.01, root=3.0, eps=1e-8,
        decay=0.02, shrink=0.9,
    )  # fmt: skip
    held = [functional.pad(x, (8, 8), value=7.0) for x in (p, m, v)]
    ours, *moments = (x[8:-8] for x in held)
    steps(rule, [(*moments, g, ours)])
    assert all(float(x[:8].sum() + x[-8:].sum()) == 16 * 7.0 for x in held), "nothing beside them is written"
    p, g, m, v = p.double(), g.double(), m.double() * (1 - first), v.double() * (1 - first)
    moved = g + 0.02 * p
    mean = {Kind.ADAM: 0.9 * m + 0.1 * moved, Kind.VELOCITY: 0.9 * m + moved, Kind.SGD: moved}[kind]
    square = 0.99 * v + 0.01 * moved**2
    by = mean / (square.sqrt() * 3.0 + 1e-8) if kind == Kind.ADAM else mean
    assert torch.allclose(ours.double(), 0.9 * p - 0.01 * by, rtol=1e-5, atol=1e-6)
    if kept and kind != Kind.SGD:
        assert torch.allclose(moments[0].double(), mean, rtol=1e-5, atol=1e-6)
    if kept and kind == Kind.ADAM:
        assert torch.allclose(moments[1].double(), square, rtol=1e-5, atol=1e-6)


@given(st.lists(st.lists(st.floats(-90, 90, width=32), min_size=3, max_size=3), min_size=1, max_size=9))
@settings(deadline=None)
def test_cross_entropy_is_torchs(rows):
    logits, labels = torch.tensor(rows, requires_grad=True), torch.arange(len(rows)) % 3
    exact = logits.detach().double().requires_grad_()
    ours, theirs = cross_entropy(logits, labels), functional.cross_entropy(exact, labels)
    ours.backward()
    theirs.backward()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-6, abs=1e-7)
    assert torch.allclose(logits.grad, exact.grad.float(), rtol=1e-5, atol=1e-7)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40))
@settings(deadline=None)
def test_squares_are_exact_up_to_the_sum(values):
    assert squares(torch.tensor(values)) == pytest.approx(math.fsum(x * x for x in values), rel=1e-15)


@pytest.mark.parametrize(
    "values",
    [torch.ones(1).expand(50), torch.arange(10.0)[::2], torch.ones(3, 4).T, torch.ones(64).bfloat16(), torch.arange(5)],
)
def test_squares_of_what_users_may_send(values):
    assert squares(values) == float(values.double().square().sum())


@pytest.mark.parametrize("numel", [1, 7, 8, 9, 16, 1003])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_change_is_taken_and_squared_in_one_pass(numel, in_place):
    make = torch.Generator().manual_seed(numel)
    local, start = torch.randn(numel, generator=make), torch.randn(numel, generator=make)
    change, before = local - start, start.clone()
    into = local if in_place else torch.full((numel + 3,), 7.0)[:numel]
    assert squares(local, start, into) == squares(change)
    assert torch.equal(into, change) and torch.equal(start, before)


def test_tiny_numbers_count_in_squares():
    y = torch.full((8,), 1e-40)
    assert torch.set_flush_denormal(True)
    try:
        found = squares(y)
    finally:
        torch.set_flush_denormal(False)
    assert found == pytest.approx(8e-80, rel=1e-4)


@pytest.mark.parametrize("label", [-100, -1, 3, 5000])
def test_a_label_that_is_no_class_gives_no_loss(label):
    assert math.isnan(float(cross_entropy(torch.zeros(2, 3), torch.tensor([0, label]))))


def test_a_second_derivative_is_refused():
    """The kernels have none; torch would take the first one for a constant."""
    logits = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(UserError, match=r"'fused': no second derivatives, .*; take training.engine=gemm"):
        torch.autograd.grad(cross_entropy(logits, torch.tensor([0, 1])), logits, create_graph=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 7, 8, 40])
def test_squares_are_finite_exactly_where_all_values_are(value, place):
    values = torch.full((41,), 3e38)
    assert math.isfinite(squares(values))
    values[place] = value
    assert not math.isfinite(squares(values))


@pytest.mark.skipif(not shutil.which("nm"), reason="binutils' nm is not here")
def test_nothing_is_asked_of_other_libraries():
    """A library's exp or sqrt would be another one on another machine."""
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", library.library()._name], capture_output=True, text=True, check=True
    ).stdout
    asked = set(re.findall(r" [Uu] (\w+)", listed))
    assert asked <= {"memcpy", "memset"}


def test_structures_are_those_of_the_source():
    text = library.SOURCE.read_text(encoding="utf-8")
    conv, rule = (re.search(r"typedef struct \{ ([^}]*) \} " + name, text)[1] for name in ("Conv", "Rule"))
    named = [re.findall(r"\w+", part)[1:] for part in (conv + rule).split(";")]
    fields = [name for of in (library.Conv, Rule) for name, _ in of._fields_]
    assert [name for part in named for name in part] == fields
    assert ctypes.sizeof(Rule) == 3 * 4 + 4 + 9 * 8


@pytest.mark.parametrize("sizes", [[1], [2, 15], [16, 17, 33], [1000, 8], [2047, 2, 5000, 3]])
@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-38, 1.6e-36, 1e-20, 1.0, 7e3, 1e30, 3e38])
def test_changes_as_int8_have_the_bits_of_the_codec(sizes, scale):
    """Halves of a step, signs of 0, what the smallest scales make 0; squares are those of the rounded change."""
    draw = torch.Generator().manual_seed(sum(sizes))
    change = torch.randn(sum(sizes), generator=draw).clamp(-1, 1).mul(scale).to(torch.float32)
    change[::3] = change[::3].sign() * (float(change.abs().max()) * 64.5 / 127)
    change[::7] = -0.0
    start = torch.zeros_like(change) if scale > 1e4 or scale < 1e-4 else torch.randn(len(change), generator=draw)
    values = change + start
    layout, params = of_tensors(*(x.tolist() for x in torch.split(values - start, sizes)))
    expected = codec.rounded(layout, layout.select(), params, "int8")["g"]
    square, before, after = coded(values, start, values, sizes)
    assert values.view(torch.int32).tolist() == expected.view(torch.int32).tolist()
    assert (before, after) == (int(params["g"].count_nonzero()), int(expected.count_nonzero()))
    assert square == squares(expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3.4028234663852886e38])
def test_where_int8_cannot_hold_a_value_the_change_stays_as_it_is(value):
    values, start = torch.linspace(-1, 1, 21), torch.zeros(21)
    values[4] = value
    out = torch.empty(21)
    square, before, after = coded(values, start, out, [10, 11])
    if (torch.tensor(abs(value)) / 127 * 127).isfinite():
        assert before == 20 and math.isfinite(square)
    else:
        assert (before, after) == (-1, -1) and torch.equal(out.view(torch.int32), values.view(torch.int32))
        assert math.isfinite(square) == math.isfinite(value)
