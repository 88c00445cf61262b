"""Exit policy, relational losses and histograms by hand."""

import pytest
import torch

from relief_ray.strategies.darkdistill.distillation import angle_loss, binned, distance_loss, exit_shares, leave_at


def features(num=9, width=5, seed=0):
    return torch.randn(num, width, generator=torch.Generator().manual_seed(seed))


def test_shares_of_two_exits():
    assert exit_shares(2) == pytest.approx((0.4, 0.6))
    assert exit_shares(1) == (1.0,) and sum(exit_shares(4)) == pytest.approx(1.0)


@pytest.mark.parametrize("num", [1, 2, 7, 10, 32])
@pytest.mark.parametrize("num_exits", [1, 2, 3, 4])
def test_the_policy_partitions_the_batch(num, num_exits):
    """floor(n pi_i) leave at exit i, the last gets the rest; who leaves first is at least as sure as who stays."""
    logits = [features(num, 6, e) for e in range(num_exits)]
    leaves = leave_at(logits)
    counts = torch.bincount(leaves, minlength=num_exits).tolist()
    expected = [int(num * share + 1e-9) for share in exit_shares(num_exits)[:-1]]
    assert counts == [*expected, num - sum(expected)]
    for e in range(num_exits - 1):
        sure = logits[e].softmax(1).amax(1)
        if counts[e]:
            assert sure[leaves == e].min() >= sure[leaves > e].max()


def test_the_policy_by_hand():
    """Five samples, two exits: the two most confident at the first leave there; equals keep their order."""
    first = torch.tensor([[0.0, 0.0], [3.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    assert leave_at([first, features(5, 2)]).tolist() == [1, 0, 1, 0, 1]
    assert leave_at([torch.zeros(5, 2), features(5, 2)]).tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_a_scaled_copy_has_no_distance_and_a_moved_one_no_angle(seed):
    known = features(seed=seed)
    assert float(distance_loss(3.7 * known, known)) == pytest.approx(0.0, abs=1e-9)
    assert float(angle_loss(0.3 * known + 5.0, known)) == pytest.approx(0.0, abs=1e-8)
    other = features(seed=seed + 100, width=3)
    assert float(distance_loss(other, known)) > 1e-3 and float(angle_loss(other, known)) > 1e-3


def test_distance_by_hand():
    """Points 0, 1, 3: distances 1, 3, 2 over their mean 2; student 0, 1, 2: 1, 2, 1 over 4/3."""
    student, teacher = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [1.0], [3.0]])
    gaps = [3 / 4 - 1 / 2, 3 / 2 - 3 / 2, 3 / 4 - 1]
    assert float(distance_loss(student, teacher)) == pytest.approx(2 * sum(g * g / 2 for g in gaps) / 9)


def test_angle_by_hand():
    """A right angle at the middle of a bent line against a straight one."""
    bent = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    straight = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    at_ends, at_middle = 1 - 0.5**0.5, 1.0  # cosines: 1 against sqrt(1/2) at both ends, -1 against 0 between
    expected = 2 * (2 * at_ends**2 / 2 + at_middle**2 / 2) / 27
    assert float(angle_loss(bent, straight)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("student", [torch.zeros(4, 3), torch.ones(4, 3), torch.zeros(2, 3)])
def test_features_that_all_agree_have_finite_gradients(student):
    """Dead units give equal features: neither loss nor gradient may be NaN."""
    learned = student.clone().requires_grad_()
    loss = distance_loss(learned, features(len(student))) + angle_loss(learned, features(len(student)))
    loss.backward()
    assert torch.isfinite(loss) and bool(torch.isfinite(learned.grad).all())


def test_two_samples_with_the_same_features_have_no_direction_to_learn():
    """A huge gradient there (1 over almost 0) once made a model of few features diverge in its first step."""
    learned = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    angle_loss(learned, features(4)).backward()
    assert float(learned.grad.abs().max()) < 1.0


def test_only_the_student_learns():
    student, teacher = features(seed=1).requires_grad_(), features(seed=2).requires_grad_()
    (distance_loss(student, teacher) + angle_loss(student, teacher)).backward()
    assert student.grad is not None and teacher.grad is None


def test_a_histogram_by_hand():
    labels, distances = torch.tensor([1, 0, 1, 1]), torch.tensor([0.1, 2.6, 0.4, 0.6])
    sorted_labels, centres, num_cells = binned(labels, distances, 0.5)
    assert sorted_labels.tolist() == [0, 1, 1, 1] and num_cells == 3
    assert centres.tolist() == pytest.approx([2.75, 0.25, 0.25, 0.75])
