import gc
import weakref
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.training.optimizer import LARGE, LocalOptimizer, UpdateRule, clip_gradients

KERNELS = ("torch", "torch_fused", "own")


def gradients(steps, seed=0):
    make = torch.Generator().manual_seed(seed)
    return [[torch.randn(3, 2, generator=make), torch.randn(5, generator=make)] for _ in range(steps)]


def fresh():
    return [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.zeros(5))]


def step(adam, parameters, grads, lr):
    for p, grad in zip(parameters, grads, strict=True):
        p.grad = None if grad is None else grad.clone()
    adam.step(parameters, lr)


@settings(max_examples=20, deadline=None)
@given(lr=st.floats(1e-5, 1.0), steps=st.integers(1, 6), seed=st.integers(0, 99))
def test_unfused_is_torchs_adam_to_the_bit(lr, steps, seed):
    ours, theirs = fresh(), fresh()
    adam, reference = LocalOptimizer(ours, "torch"), torch.optim.Adam(theirs, lr=lr, foreach=False)
    for grads in gradients(steps, seed):
        step(adam, ours, grads, lr)
        for p, grad in zip(theirs, grads, strict=True):
            p.grad = grad.clone()
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_fused_agrees_to_rounding():
    ours, theirs = fresh(), fresh()
    fused, plain = LocalOptimizer(ours, "torch_fused"), LocalOptimizer(theirs, "torch")
    for grads in gradients(20):
        step(fused, ours, grads, 1e-2)
        step(plain, theirs, grads, 1e-2)
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(ours, theirs, strict=True))


def test_first_step_by_hand():
    """m = 0.1 g, v = 0.001 g^2, both corrected to g and g^2: the step is lr g / (|g| + eps)."""
    (p, other), grad = fresh(), torch.tensor([[2.0, -4.0]] * 3)
    step(LocalOptimizer([p, other], "torch"), [p, other], [grad, None], 0.5)
    assert torch.allclose(p.detach(), torch.tensor([[0.5, 1.5]] * 3), atol=1e-6)
    assert torch.equal(other.detach(), torch.zeros(5))


@pytest.mark.parametrize("kernel", KERNELS)
def test_reset_forgets(kernel):
    used, new = fresh(), fresh()
    adam, clean = LocalOptimizer(used, kernel), LocalOptimizer(new, kernel)
    for grads in gradients(3):
        step(adam, used, grads, 1e-2)
    for p, q in zip(used, new, strict=True):
        p.data.copy_(q.data)
    adam.reset(used)
    (grads,) = gradients(1, seed=9)
    step(adam, used, grads, 1e-2)
    step(clean, new, grads, 1e-2)
    assert all(torch.equal(a, b) for a, b in zip(used, new, strict=True))


def test_gradients_are_dropped_after_a_step():
    parameters = fresh()
    step(LocalOptimizer(parameters, "torch_fused"), parameters, gradients(1)[0], 1e-2)
    assert all(p.grad is None for p in parameters)


def test_the_fused_kernel_is_torchs_fused_adam_to_the_bit():
    """Tensors of their own counts: the second takes every other step only."""
    ours, theirs = fresh(), fresh()
    adam, reference = LocalOptimizer(ours, "torch_fused"), torch.optim.Adam(theirs, lr=0.01, fused=True)
    for number, (first, second) in enumerate(gradients(7)):
        grads = [first, second if number % 2 else None]
        step(adam, ours, grads, 0.01)
        for p, grad in zip(theirs, grads, strict=True):
            p.grad = None if grad is None else grad.clone()
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_what_was_reset_begins_anew(kernel):
    """The second of two goes on at its fourth step, the first is new."""
    used, new = fresh(), fresh()
    adam, clean = LocalOptimizer(used, kernel), LocalOptimizer(new, kernel)
    for grads in gradients(3):
        step(adam, used, grads, 1e-2)
        step(clean, new, [None, grads[1]], 1e-2)
    used[0].data.copy_(new[0].data)
    adam.reset(used[:1])
    (grads,) = gradients(1, seed=9)
    step(adam, used, [None, grads[1]], 1e-2)
    step(clean, new, [None, grads[1]], 1e-2)
    step(adam, used, [grads[0], None], 1e-2)
    step(clean, new, [grads[0], None], 1e-2)
    assert all(torch.equal(a, b) for a, b in zip(used, new, strict=True))


@settings(max_examples=20, deadline=None)
@given(numel=st.integers(LARGE, 3 * LARGE + 40), seed=st.integers(0, 99), lr=st.floats(1e-5, 1.0))
def test_an_only_step_is_torchs_first_to_the_bit(numel, seed, lr):
    """Whatever came before: twice in a row, piece by piece, tensors that are large and one that is not."""
    make = torch.Generator().manual_seed(seed)
    sizes = (numel, 7, 2 * LARGE)
    ours = [torch.nn.Parameter(torch.randn(n, generator=make)) for n in sizes]
    adam = LocalOptimizer(ours, "torch_fused")
    for _ in range(2):
        theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
        grads = [torch.randn(n, generator=make) for n in sizes]
        adam.reset(ours, once=True)
        step(adam, ours, grads, lr)
        for p, grad in zip(theirs, grads, strict=True):
            p.grad = grad
        torch.optim.Adam(theirs, lr=lr, fused=True).step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert all(p.grad is None for p in ours)


def test_steps_after_an_only_one_begin_anew():
    """Its moments were nobody's: the next client's three steps are those of a new optimizer."""
    used, new = ([torch.nn.Parameter(torch.ones(LARGE + 5))] for _ in range(2))
    adam, clean = LocalOptimizer(used, "torch_fused"), LocalOptimizer(new, "torch_fused")
    adam.reset(used, once=True)
    step(adam, used, [torch.full((LARGE + 5,), 3.0)], 1e-2)
    used[0].data.fill_(1.0)
    adam.reset(used)
    for value in (1.0, -2.0, 0.5):
        for optimizer, parameters in ((adam, used), (clean, new)):
            step(optimizer, parameters, [torch.full((LARGE + 5,), value)], 1e-2)
    assert torch.equal(used[0], new[0])


@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_a_second_step_where_one_was_announced_is_an_error(kernel):
    parameters = [torch.nn.Parameter(torch.ones(LARGE))]
    adam = LocalOptimizer(parameters, kernel)
    adam.reset(parameters, once=True)
    step(adam, parameters, [torch.ones(LARGE)], 1e-2)
    with pytest.raises(AssertionError, match="a second step"):
        step(adam, parameters, [torch.ones(LARGE)], 1e-2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_buffers_go_with_their_optimizer(kernel):
    """A stack's moments must not wait for Python to look for circles."""
    gc.disable()
    try:
        adam = LocalOptimizer(parameters := fresh(), kernel)
        step(adam, parameters, gradients(1)[0], 1e-2)
        seen = weakref.ref(adam)
        del adam
        assert seen() is None
    finally:
        gc.enable()


# Other rules -----------------------------------------------------------------------------------------------------


def torchs(rule, parameters, lr, **how):
    """The same rule in torch's own class."""
    if rule.name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=rule.momentum, weight_decay=rule.weight_decay, **how)
    kind = torch.optim.Adam if rule.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=rule.weight_decay, **how)


RULES = [
    UpdateRule(name="sgd"),
    UpdateRule(name="sgd", momentum=0.9),
    UpdateRule(name="sgd", momentum=0.5, weight_decay=0.1),
    UpdateRule(weight_decay=0.1),
    UpdateRule(name="adamw", weight_decay=0.1),
]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule_is_torchs(rule, kernel):
    """To the bit where torch computes it; twice in a row: what a client left behind must not reach the next one."""
    ours, fused = fresh(), kernel == "torch_fused"
    optimizer = LocalOptimizer(ours, kernel, rule)
    are_equal = partial(torch.allclose, rtol=1e-5, atol=1e-7) if kernel == "own" else torch.equal
    for seed in range(2):
        for p, first in zip(ours, fresh(), strict=True):
            p.data.copy_(first.data)
        optimizer.reset(ours)
        theirs = fresh()
        reference = torchs(rule, theirs, 0.05, fused=fused, foreach=None if fused else False)
        for grads in gradients(5, seed):
            step(optimizer, ours, grads, 0.05)
            for p, grad in zip(theirs, grads, strict=True):
                p.grad = grad.clone()
            reference.step()
        assert all(are_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_an_only_step_of_every_rule_is_torchs_first(rule):
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1.0, 1.0, LARGE + 5)) for _ in range(2))
    optimizer = LocalOptimizer([ours], "torch_fused", rule=rule)
    optimizer.reset([ours], once=True)
    ours.grad, theirs.grad = (torch.linspace(2.0, -3.0, LARGE + 5) for _ in range(2))
    optimizer.step([ours], 0.05)
    torchs(rule, [theirs], 0.05, fused=True).step()
    assert torch.equal(ours, theirs)


def values(rule, start, grads, lr, kernel="torch_fused"):
    """One number's way through steps with these gradients."""
    p = torch.nn.Parameter(torch.tensor([start]))
    optimizer, way = LocalOptimizer([p], kernel, rule), []
    for grad in grads:
        step(optimizer, [p], [None if grad is None else torch.tensor([grad])], lr)
        way.append(float(p.detach()))
    return way


@pytest.mark.parametrize("kernel", KERNELS)
def test_three_steps_of_sgd_by_hand(kernel):
    """theta = 1, g = 1, 2, -1, lr 0.1, momentum 0.5, decay 0.1.

    u = 1 + 0.1 = 1.1, theta = 0.89; u = 0.55 + 2 + 0.089 = 2.639, theta = 0.6261; u = 1.3195 - 1 + 0.06261 = 0.38211,
    theta = 0.587889.
    """
    rule = UpdateRule(name="sgd", momentum=0.5, weight_decay=0.1)
    assert values(rule, 1.0, [1.0, 2.0, -1.0], 0.1, kernel) == pytest.approx([0.89, 0.6261, 0.587889], abs=1e-6)
    plain = UpdateRule(name="sgd")
    assert values(plain, 1.0, [1.0, 2.0, -1.0], 0.1, kernel) == pytest.approx([0.9, 0.7, 0.8], abs=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_three_steps_of_adamw_by_hand(kernel):
    """With the gradient 1 in every step both corrected moments are 1: theta <- (1 - 0.1 * 0.2) theta - 0.1."""
    rule = UpdateRule(name="adamw", weight_decay=0.2)
    assert values(rule, 1.0, [1.0] * 3, 0.1, kernel) == pytest.approx([0.88, 0.7624, 0.647152], abs=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_tensor_without_gradient_decays_and_otherwise_stays(kernel):
    assert values(UpdateRule(name="sgd"), 1.0, [None], 0.1, kernel) == [1.0]
    decaying = UpdateRule(name="sgd", weight_decay=0.5)
    assert values(decaying, 1.0, [None, None], 0.1, kernel) == pytest.approx([0.95, 0.9025], abs=1e-6)
    assert values(UpdateRule(name="adamw", weight_decay=0.5), 1.0, [None], 0.1, kernel) == pytest.approx([0.95])


def test_only_the_buffers_that_a_rule_needs_are_kept():
    assert [rule.num_buffers for rule in RULES] == [0, 1, 1, 2, 2]


def test_a_long_gradient_is_scaled_to_the_norm_over_all_tensors():
    """|(3, 4)| = 5: with 1 allowed each is divided by 5; with 6 none is changed. One tensor has no gradient."""
    for largest, expected in ((1.0, [0.6, 0.8]), (6.0, [3.0, 4.0])):
        p, q, unreached = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
        p.grad, q.grad = torch.tensor([3.0]), torch.tensor([4.0])
        clip_gradients([p, q, unreached], largest)
        assert [float(p.grad), float(q.grad)] == pytest.approx(expected, rel=1e-5) and unreached.grad is None


def test_nothing_to_clip_is_left_alone():
    p = torch.nn.Parameter(torch.zeros(1))
    clip_gradients([p], 1.0)
    assert p.grad is None
