"""Deep mutual learning: who agrees does not move, who differs comes nearer, and nobody changes size."""

import pytest
import torch
from torch.nn import functional

from relief_ray.core.groups import WHOLE, Part
from relief_ray.core.streams import Streams
from relief_ray.models.backbone import BackboneNetwork
from relief_ray.strategies.helora import Pupil, Recipe, pull, teach_each_other, truncated
from tests import toy
from tests.training import scenario

DRAWS = (Streams(seed=0), 1)
LAYOUT = toy.build().layout
LORA = ("fusion.A.acc", "fusion.A.hr", "fusion.B", "encoder.acc.1", "encoder.hr.1")
FAST = Recipe(epochs=3, batch_size=8, lr=1e-2)


def network(missing="zero_input"):
    return BackboneNetwork(toy.build(), missing)


def model(seed, spread=0.3):
    make = torch.Generator().manual_seed(seed)
    start = toy.build(b_zero=False).params()
    return {j: x + spread * torch.randn(x.shape, generator=make) for j, x in start.items()}


def pupil(seed, own=None, modalities=toy.FULL, **options):
    own = own or LAYOUT.select()
    return Pupil(params=truncated(model(seed), own, LAYOUT), own=own, modalities=modalities, **options)


def at_rank(rank):
    return {g.id: Part(rank=rank) if g.id in LORA else WHOLE for g in LAYOUT}


def windows(num=20, seed=0):
    make = torch.Generator().manual_seed(seed)
    return {m: torch.randn(num, c, 8, generator=make) for m, c in toy.CHANNELS}


def teach(pupils, recipe=FAST, **options):
    data = options.pop("windows", windows())
    return teach_each_other(pupils, data, LAYOUT, network, recipe, DRAWS, **options)


def same(one, other):
    return all(torch.equal(one[j], other[j]) for j in LAYOUT.ids)


def logits_of(params, modalities=toy.FULL, data=None):
    net = network()
    net.load(params)
    seen = {m: x for m, x in (data or windows()).items() if m in modalities}
    return net.read(seen, (None,))[None].logits.detach()


# The gradient -------------------------------------------------------------------------------------------------------


def test_pull_by_hand():
    """Two classes: softmax(0, 0) = 1/2 against softmax(0, ln 3) = (1/4, 3/4), one window of two: a quarter over B."""
    own, target = torch.zeros(2, 2), torch.tensor([[0.0, torch.tensor(3.0).log()], [0.0, 0.0]])
    torch.testing.assert_close(pull(own, target), torch.tensor([[0.125, -0.125], [0.0, 0.0]]))


def test_pull_is_the_gradient_of_the_divergence():
    make = torch.Generator().manual_seed(1)
    own, target = (3 * torch.randn(7, 5, generator=make, dtype=torch.float64) for _ in range(2))
    own.requires_grad_()
    divergence = functional.kl_div(torch.log_softmax(own, 1), torch.softmax(target, 1), reduction="batchmean")
    (expected,) = torch.autograd.grad(divergence, own)
    torch.testing.assert_close(pull(own.detach(), target), expected)
    assert not pull(target, target).any()


# Agreement ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_identical_models_have_no_loss_no_gradient_and_stay(number):
    """Not one bit, although AdamW would turn the smallest gradient into a step; with decay all shrink alike."""
    taught = teach([pupil(0) for _ in range(number)], Recipe(epochs=2, batch_size=8, lr=0.1, weight_decay=0.0))
    assert all(same(theta, model(0)) for theta in taught)
    shrunk = teach([pupil(0) for _ in range(number)], Recipe(epochs=1, batch_size=20, lr=0.1, weight_decay=0.5))
    for theta in shrunk:
        for j, value in model(0).items():
            torch.testing.assert_close(theta[j], 0.95 * value)


def test_models_that_differ_come_nearer_to_their_mean():
    pupils = [pupil(seed) for seed in range(3)]
    after = teach(pupils, Recipe(epochs=20, batch_size=10, lr=3e-3))
    assert spread([p.params for p in pupils]) > 4 * spread(after) > 0


def spread(models):
    """Mean ``KL(softmax(t) | softmax(z_k))``."""
    said = [logits_of(m) for m in models]
    target = torch.softmax(torch.stack(said).mean(0), 1)
    return sum(functional.kl_div(torch.log_softmax(z, 1), target, reduction="batchmean").item() for z in said) / 3


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0)])
def test_mutual_learning_gives_what_a_plain_loop_gives(weights):
    """torch's own divergence and AdamW, one batch after the other, two models at once, equal or three to one."""
    pupils = [pupil(0, weight=weights[0]), pupil(1, weight=weights[1])]
    taught = teach(pupils, Recipe(epochs=2, batch_size=8, lr=1e-2))
    nets = [network(), network()]
    for net, p in zip(nets, pupils, strict=True):
        net.load(p.params)
    parameters = [[p for ps in net.parameters.values() for p in ps] for net in nets]
    optimizers = [torch.optim.AdamW(ps, lr=1e-2, weight_decay=0.01) for ps in parameters]
    for epoch in range(2):
        for index in torch.randperm(20, generator=DRAWS[0].torch("mutual", 1, epoch)).split(8):
            batch = {m: x[index] for m, x in windows().items()}
            said = [net.read(batch, (None,))[None].logits for net in nets]
            mean = (weights[0] * said[0] + weights[1] * said[1]) / sum(weights)
            target = torch.softmax(mean.detach(), 1)
            for z, optimizer in zip(said, optimizers, strict=True):
                optimizer.zero_grad()
                functional.kl_div(torch.log_softmax(z, 1), target, reduction="batchmean").backward()
                optimizer.step()
    for theta, net, p in zip(taught, nets, pupils, strict=True):
        for j, ps in net.parameters.items():
            torch.testing.assert_close(theta[j], torch.cat([x.detach().reshape(-1) for x in ps]), rtol=1e-3, atol=1e-5)
            assert not torch.equal(theta[j], p.params[j])


def test_the_order_of_the_pupils_does_not_matter():
    one, other = teach([pupil(0), pupil(1), pupil(2)]), teach([pupil(2), pupil(0), pupil(1)])
    for a, b in zip(one, (other[1], other[2], other[0]), strict=True):
        for j in LAYOUT.ids:
            torch.testing.assert_close(a[j], b[j], rtol=1e-3, atol=1e-5)


# Sizes and sensors --------------------------------------------------------------------------------------------------


def test_ranks_are_what_they_were():
    """Zeros beyond a pupil's rank are zeros afterwards, and what it has did move: A and B of every factor."""
    small, whole = teach([pupil(0, at_rank(1)), pupil(1)])
    for j in LORA:
        index = LAYOUT.indices(j, Part(rank=1))
        beyond = torch.ones(LAYOUT[j].numel, dtype=torch.bool)
        beyond[index] = False
        assert beyond.any() and not small[j][beyond].any()
        assert not torch.equal(small[j][index], pupil(0).params[j][index])
        assert whole[j][beyond].all(), "the other one has both ranks"


def test_rows_that_a_pupil_does_not_train_stay_bit_for_bit():
    backbone = scenario.build()
    layout, part = backbone.layout, Part(rows=0.75)
    own = {g.id: WHOLE if g.role == "head" else part for g in layout}
    seeds = [scenario.build(seed=s).params() for s in (0, 1)]
    pupils = [Pupil(params=theta, own=own, modalities=scenario.SHAPE.modalities) for theta in seeds]
    data, _ = scenario.windows(16)
    taught = teach_each_other(
        pupils, data, layout, lambda: BackboneNetwork(scenario.build(), "zero_input"), FAST, DRAWS
    )
    for theta, start in zip(taught, seeds, strict=True):
        for j in layout.ids:
            fixed = torch.ones(layout[j].numel, dtype=torch.bool)
            fixed[layout.indices(j, own[j])] = False
            assert torch.equal(theta[j][fixed], start[j][fixed])
            assert not torch.equal(theta[j], start[j]) and (fixed.any() or own[j] == WHOLE)


def test_a_pupil_does_not_see_sensors_that_it_lacks():
    first = [pupil(0, modalities=toy.ACC), pupil(1, modalities=toy.ACC)]
    other = {**windows(), "hr": 5.0 + windows()["hr"]}
    for one, two in zip(teach(first), teach(first, windows=other), strict=True):
        assert same(one, two)
    third = [pupil(0, modalities=toy.ACC), pupil(1)]
    taught, changed = teach(third), teach(third, windows=other)
    assert not same(taught[0], changed[0]), "what the other one sees reaches it through the target"


def test_threads_and_the_global_generator_are_left_alone():
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    assert same(teach([pupil(0), pupil(1)])[0], teach([pupil(0), pupil(1)])[0])
    assert torch.equal(torch.random.get_rng_state(), before) and torch.get_num_threads() == threads
