"""Data-free distillation on a real small backbone: who changes, what is learned, what is remembered."""

from dataclasses import replace
from math import exp, log

import pytest
import torch
from torch.nn import functional

from relief_ray.core.extra_modules import Classifier
from relief_ray.core.protocols import Reading
from relief_ray.core.streams import Streams
from relief_ray.models.backbone import BackboneNetwork, seeded
from relief_ray.models.extra import with_extra_modules
from relief_ray.strategies.darkdistill import distillation
from relief_ray.strategies.darkdistill.distillation import (
    DepthModel,
    ExitWeights,
    Generator,
    Recipe,
    distil,
    diversity,
    exit_statistics,
    from_vector,
    generator_loss,
    relational_loss,
    to_vector,
)
from tests.training.scenario import SHAPE, TINY

EARLY = Classifier(id="exit.1", after=tuple(f"encoder.{m}.1" for m in SHAPE.modalities), layer=1)
SMALL = Recipe(epochs=1, steps=2, batch_size=16, hidden=8)
CLASS_1 = {*(f"encoder.{m}.1" for m in SHAPE.modalities), "exit.1"}
DRAWS = (Streams(seed=0), 1)


def build():
    return BackboneNetwork(with_extra_modules(TINY.build(SHAPE, 0), [EARLY], 0), "zero_input")


def params(seed):
    return with_extra_modules(TINY.build(SHAPE, seed), [EARLY], seed).params()


def models(**changes):
    make = torch.Generator().manual_seed(0)
    common = {
        "labels": torch.randint(SHAPE.num_classes, (40,), generator=make),
        "difficulty": 2.0 * torch.rand(40, generator=make),
        "modalities": frozenset(SHAPE.modalities),
        **changes,
    }
    return [
        DepthModel(depth=1, params=params(1), weight=3.0, exits=("exit.1",), **common),
        DepthModel(depth=2, params=params(2), weight=1.0, exits=("exit.1", None), **common),
    ]


def test_the_shallowest_class_keeps_its_bits():
    """Not even weight decay touches it; nor what no feature of the student depends on."""
    before = models()
    after, _ = distil(before, params(5), {}, build, SMALL, DRAWS)
    assert all(torch.equal(after[0][j], before[0].params[j]) for j in after[0])
    moved = {j for j in after[1] if not torch.equal(after[1][j], before[1].params[j])}
    assert moved == set(after[1]) - {"exit.1", "head.1"}, "features are distilled, classifiers are not"
    assert all(bool(torch.isfinite(x).all()) for x in after[1].values())


def test_generators_are_judged_by_the_model_that_was_given(monkeypatch):
    """Not by a class's own network, which says how difficult its clients find a window, not how difficult it is."""
    judges, plain = [], distillation.generator_loss

    def watched(made, wanted, model, judge):
        judges.append({j: torch.cat([p.detach().reshape(-1) for p in ps]) for j, ps in judge.parameters.items()})
        assert judge is not model[0]
        return plain(made, wanted, model, judge)

    monkeypatch.setattr(distillation, "generator_loss", watched)
    first, second = (distil(models(), params(seed), {}, build, SMALL, DRAWS)[1]["generator.1"] for seed in (5, 6))
    for seen, seed in zip(judges, (5, 6), strict=True):
        assert all(torch.equal(seen[j], theta) for j, theta in params(seed).items())
    assert not torch.equal(first, second), "what the judge finds difficult decides what is generated"


def test_noise_is_uniform_between_0_and_1():
    """4,000 draws: mean 1/2 and variance 1/12, within four standard errors; other keys draw others."""
    known = rung(models()[0])
    noise = torch.cat([distillation._noise(known, 100, Streams(seed=0), i).reshape(-1) for i in range(10)])
    assert len(noise) == 4000 and 0.0 <= float(noise.min()) < 0.01 and 0.99 < float(noise.max()) <= 1.0
    assert float(noise.mean()) == pytest.approx(1 / 2, abs=4 * (1 / 12 / 4000) ** 0.5)
    assert float(noise.var()) == pytest.approx(1 / 12, abs=4 * (1 / 180 / 4000) ** 0.5)
    assert len(noise.unique()) > 3900


def test_the_same_draws_give_the_same_bits_on_any_number_of_threads():
    first = distil(models(), params(5), {}, build, SMALL, DRAWS)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        second = distil(models(), params(5), {}, build, SMALL, DRAWS)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    for a, b in zip(first[0][1].values(), second[0][1].values(), strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(first[1][k], second[1][k]) for k in first[1])
    other, _ = distil(models(), params(5), {}, build, SMALL, (Streams(seed=0), 2))
    assert not torch.equal(other[1]["fusion.B"], first[0][1]["fusion.B"]), "another round draws anew"


def test_what_is_remembered_goes_on():
    """Only teachers have generators; they and the scores continue from where they were."""
    _, memory = distil(models(), params(5), {}, build, SMALL, DRAWS)
    assert set(memory) == {"generator.1", "scores"}
    _, later = distil(models(), params(5), memory, build, SMALL, (Streams(seed=0), 2))
    _, fresh = distil(models(), params(5), {}, build, SMALL, (Streams(seed=0), 2))
    for name in memory:
        assert not torch.equal(later[name], memory[name]) and not torch.equal(later[name], fresh[name])
    assert float((later["scores"] - memory["scores"]).abs().max()) < 5e-3, "a few steps of 1e-3"


def test_one_sgd_step_by_hand(monkeypatch):
    """``theta - lr (g + wd theta)`` with the gradient of the pair's own loss; the teacher's share is 1."""
    seen = []
    plain = distillation._pair_loss

    def watched(*args):
        loss = plain(*args)
        parameters = args[1].network.parameters["fusion.B"]
        seen.append(torch.autograd.grad(loss, parameters, retain_graph=True)[0])
        return loss

    monkeypatch.setattr(distillation, "_pair_loss", watched)
    before = models()[1].params["fusion.B"]
    after, _ = distil(models(), params(5), {}, build, replace(SMALL, steps=1), DRAWS)
    torch.testing.assert_close(after[1]["fusion.B"], before - 0.05 * (seen[0].reshape(-1) + 1e-3 * before))


def test_three_classes_share_a_step_by_their_teachers_clients_by_hand(monkeypatch):
    """``theta - lr (N_k / sum N g + wd theta)``: teachers of 3 and 1, so 3/4 of the second's loss, 1/4 of the third's.

    Each pair's loss is the sum of the student's fusion bias here, times 8 for the third: its gradient is 1, or 8.
    """
    first, second = models()
    third = replace(second, depth=3, params=params(3), weight=100.0)
    factor = {2: 1.0, 3: 8.0}

    def plain_sum(teacher, student, wanted, noise, weights):
        unused = sum(p.sum() for p in weights.parameters())
        return factor[student.model.depth] * student.network.parameters["fusion.B"][0].sum() + 0.0 * unused

    monkeypatch.setattr(distillation, "_pair_loss", plain_sum)
    after, _ = distil([first, second, third], params(5), {}, build, replace(SMALL, steps=1), DRAWS)
    for model, new, gradient in zip((second, third), after[1:], (3 / 4 * 1.0, 1 / 4 * 8.0), strict=True):
        before = model.params["fusion.B"]
        torch.testing.assert_close(new["fusion.B"], before - 0.05 * (gradient + 1e-3 * before), rtol=1e-6, atol=1e-7)
    assert torch.equal(after[0]["fusion.B"], first.params["fusion.B"])


def test_only_samples_that_reach_the_teachers_last_exit_teach_by_hand():
    """Of ten, the four most confident at the first exit leave there; the pair's loss is of the other six alone.

    Each exit's loss is weighted by how its difficulties match those of the six; all ten tell what leaves where.
    """
    teacher, student = (rung(replace(m, exits=("exit.1", None))) for m in models())
    wanted = teacher.model.labels[:10], teacher.model.difficulty[:10]
    noise, weights = torch.rand(10, 4, generator=torch.Generator().manual_seed(1)), seeded(ExitWeights, 0)
    loss = distillation._pair_loss(teacher, student, wanted, noise, weights)
    teacher.generator.eval()
    made = teacher.generator.windows(teacher.generator(noise, *wanted))
    taught, learned = (r.network.read(made, ("exit.1", None)) for r in (teacher, student))

    def six(reading):
        confidence = reading["exit.1"].logits.softmax(1).amax(1).tolist()
        return sorted(sorted(range(10), key=lambda i: -confidence[i])[4:])

    stay, of_student = six(taught), six(learned)
    assert stay != of_student, "the student's exits would send others on"
    d = wanted[1]
    groups = [d[[i for i in range(10) if i not in of_student]], d[of_student]]
    means, variances = (torch.stack([f(x) for x in groups]) for f in (torch.mean, lambda x: x.var(correction=0)))
    each = torch.stack(
        [relational_loss(learned[e].features[stay], taught[None].features[stay]) for e in ("exit.1", None)]
    )
    expected = (weights(d[stay], means, variances) * each).sum() / 2
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    everybody = torch.stack([relational_loss(learned[e].features, taught[None].features) for e in ("exit.1", None)])
    assert not torch.allclose(everybody, each, rtol=1e-2), "ten samples would teach something else"


def test_a_student_comes_nearer_to_its_teacher():
    """Many small steps lower the relational loss on windows it has not seen."""
    before = models()
    after, memory = distil(before, params(5), {}, build, replace(SMALL, epochs=30, steps=5, lr=0.02), DRAWS)
    teacher, student = build(), build()
    teacher.load(before[0].params)
    generator = seeded(lambda: Generator(dict(SHAPE.channels), SHAPE.window, SHAPE.num_classes, 8), 0).eval()
    from_vector(generator, memory["generator.1"])
    make = torch.Generator().manual_seed(9)
    noise = torch.rand(64, SHAPE.num_classes, generator=make)
    with torch.no_grad():
        made = generator.windows(generator(noise, before[0].labels.repeat(2)[:64], before[0].difficulty.repeat(2)[:64]))
        known = teacher.read(made, ["exit.1"])["exit.1"].features
        losses = []
        for theta in (before[1].params, after[1]):
            student.load(theta)
            read = student.read(made, ["exit.1", None])
            losses.append(sum(float(relational_loss(read[e].features, known)) for e in read))
    assert losses[1] < 0.9 * losses[0]


def rung(model):
    return distillation._rung(model, {}, build(), SMALL, Streams(seed=0))


@pytest.mark.parametrize("num", [1, 2, 3, 12])
def test_fewer_than_two_samples_at_the_teachers_last_exit_teach_nothing(num):
    """Of one or two samples all stay to the end, of three two do: a single one has no distance to anything."""
    teacher, student = (replace(m, exits=("exit.1", None)) for m in models())
    drawn = student.labels[:num], student.difficulty[:num]
    loss = distillation._pair_loss(rung(teacher), rung(student), drawn, torch.rand(num, 4), seeded(ExitWeights, 0))
    assert (loss is None) == (num == 1) and (loss is None or bool(torch.isfinite(loss)))


def test_what_no_client_of_the_class_senses_is_not_generated():
    known = rung(models(modalities=frozenset(["acc", "hr"]))[0])
    latent, made = known.generate(torch.rand(5, 4), (torch.zeros(5, dtype=torch.int64), torch.rand(5)))
    assert set(made) == {"acc", "hr"} and latent.shape[1] == SHAPE.window * sum(c for _, c in SHAPE.channels)


def test_weights_of_exits_are_a_distribution():
    weights = seeded(ExitWeights, 3)
    means, variances = exit_statistics(torch.tensor([1.0, 2.0, 5.0, 7.0]), torch.tensor([0, 0, 2, 2]), 3)
    assert means.tolist() == [1.5, 3.75, 6.0], "an exit where nobody leaves has everybody's"
    assert variances.tolist() == pytest.approx([0.25, 5.6875, 1.0])
    w = weights(torch.tensor([1.0, 2.0]), means, variances)
    assert bool((w >= 0).all()) and w.sum().item() == pytest.approx(1.0)


def test_scores_have_relu_inside_by_hand():
    """Two of the 100 hidden units count, d - 1 and 1 - d: 3 max(0, d - 1) + 5 max(0, 1 - d) + 0.5."""
    weights = seeded(ExitWeights, 3)
    first, last = weights.score[0], weights.score[2]
    with torch.no_grad():
        for p in weights.parameters():
            p.zero_()
        first.weight[:2, 0], first.bias[:2] = torch.tensor([1.0, -1.0]), torch.tensor([-1.0, 1.0])
        last.weight[0, :2], last.bias[0] = torch.tensor([3.0, 5.0]), 0.5
    inputs = torch.tensor([[3.0, 9.0, 9.0], [0.5, 9.0, 9.0], [1.0, 9.0, 9.0]])
    assert weights.score(inputs).squeeze(1).tolist() == pytest.approx([6.5, 3.0, 0.5])


def test_the_generator_has_relu_inside_by_hand():
    """One hidden unit is the noise n, another its negative: 3 max(0, n) + 5 max(0, -n) + 0.5."""
    net = seeded(lambda: Generator({"acc": 1}, 1, 2, 4), 0).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net.body[0].weight[0, 0], net.body[0].weight[1, 0] = 1.0, -1.0
        net.body[1].weight.fill_((1.0 + net.body[1].eps) ** 0.5)
        net.out.weight[0, :2], net.out.bias[0] = torch.tensor([3.0, 5.0]), 0.5
    noise = torch.tensor([[2.0, 9.0], [-0.5, 9.0], [0.0, 9.0]])
    made = net(noise, torch.tensor([0, 1, 0]), torch.tensor([1.0, 2.0, 3.0]))
    assert made.squeeze(1).tolist() == pytest.approx([6.5, 3.0, 0.5])


def test_exit_weights_by_hand():
    weights = seeded(ExitWeights, 3)
    d, means, variances = torch.tensor([0.5, 2.0]), torch.tensor([1.0, 3.0]), torch.tensor([0.1, 0.4])
    total = torch.zeros(2)
    for x in d:
        rows = [torch.stack([x, m, v]) for m, v in zip(means, variances, strict=True)]
        raw = functional.softplus(weights.score(torch.stack(rows))).squeeze(1)
        total = total + raw / raw.sum()
    torch.testing.assert_close(weights(d, means, variances), torch.softmax(-total, 0))


# The generator ---------------------------------------------------------------------------------------------------


def generator(hidden=8):
    return seeded(lambda: Generator(dict(SHAPE.channels), SHAPE.window, SHAPE.num_classes, hidden), 4)


def test_windows_have_the_shape_of_windows():
    made = generator().windows(torch.arange(2.0 * 6 * 24).view(2, -1))
    assert {m: tuple(x.shape) for m, x in made.items()} == {m: (2, c, SHAPE.window) for m, c in SHAPE.channels}
    assert made["gyro"][0, 0, 0] == 3 * 24


def test_a_generator_survives_as_a_vector_with_its_statistics():
    first, second = generator(), seeded(lambda: generator(), 99)
    first.train()(torch.rand(6, 4), torch.zeros(6, dtype=torch.int64), torch.rand(6))
    from_vector(second, to_vector(first))
    given = torch.rand(3, 4), torch.tensor([0, 1, 2]), torch.rand(3)
    assert torch.equal(first.eval()(*given), second.eval()(*given))


def test_diversity_by_hand():
    """Two samples: noise MSE 1, latent MAE 0.5; half of the four pairs are of a sample with itself."""
    noise, latent = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    assert float(diversity(noise, latent)) == pytest.approx(float(torch.exp(torch.tensor(-0.25))))


class Says:
    """A network that says the same logits whatever it reads, by exit."""

    def __init__(self, **logits):
        self.logits = logits

    def read(self, windows, outputs):
        return {e: Reading(logits=torch.tensor(self.logits[e or "own"]), features=torch.zeros(3, 1)) for e in outputs}


def test_the_generators_loss_by_hand():
    """Three samples of class 0, two exits: floor(3 x 0.4) = 1 leaves first, the one that is certain.

    CE where they leave: log(1 + e^-4), log 4/3, log 4. The judge is undecided, so each is log 2 difficult, where
    log 2 + 1, log 2 and log 2 - 2 were wanted. Noise times latent distances of the pairs: 2, 4 and 0, each twice of 9.
    """
    model = Says(early=[[4.0, 0.0], [0.0, 0.0], [0.1, 0.0]], own=[[-9.0, 0.0], [log(3), 0.0], [0.0, log(3)]])
    judge = Says(early=[[0.0, 0.0]] * 3)
    noise, latent = torch.tensor([[0.0], [1.0], [1.0]]), torch.tensor([[0.0], [2.0], [4.0]])
    wanted = torch.zeros(3, dtype=torch.int64), torch.tensor([log(2) + 1, log(2), log(2) - 2])
    loss = generator_loss((noise, latent, {}), wanted, (model, ("early", None)), judge)
    label = (log(1 + exp(-4)) + log(4 / 3) + log(4)) / 3
    difficulty = (1.0 + 0.0 + 4.0) / 3
    spread = exp(-2 * (1.0 * 2.0 + 1.0 * 4.0 + 0.0 * 2.0) / 9)
    assert float(loss) == pytest.approx(label + difficulty + spread, rel=1e-5)


def test_training_lowers_the_generators_loss():
    model, judge, made = build(), build(), generator(32)
    model.load(params(1)), judge.load(params(5))
    wanted = torch.tensor([0, 1, 2, 3] * 8), torch.full((32,), 0.7)
    noise = torch.rand(32, SHAPE.num_classes, generator=torch.Generator().manual_seed(0))
    adam = torch.optim.Adam(made.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        latent = made(noise, *wanted)
        loss = generator_loss((noise, latent, made.windows(latent)), wanted, (model, ("exit.1", None)), judge)
        distillation._step(adam, loss)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.grad is None for ps in model.parameters.values() for p in ps), "only the generator learns"
