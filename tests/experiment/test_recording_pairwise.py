"""Fig. 2's cosines by hand."""

import math

import pytest
import torch

from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import Assignment, Receipt, StageTimes, Update, Work
from relief_ray.experiment.recording import pairwise_cosine


def sent(client, **delta):
    selection = dict.fromkeys(delta, WHOLE)
    task = Assignment(client=client, down=selection, train=selection, up=selection, epochs=1)
    work = Work(num_windows=1, epochs=1, num_steps=1, engine="naive", loss=0.0, measured=StageTimes())
    receipt = Receipt(assignment=task, work=work, bytes_down=0, bytes_up=0)
    return Update(receipt=receipt, delta={j: torch.tensor(v) for j, v in delta.items()})


def test_cosines_of_all_pairs_that_sent_the_block():
    cosines = pairwise_cosine([sent(0, a=[1.0, 0.0], b=[1.0]), sent(3, a=[1.0, 1.0]), sent(5, a=[-1.0, 0.0], b=[0.0])])
    assert cosines["a"] == (
        (0, 3, pytest.approx(math.sqrt(0.5))),
        (0, 5, -1.0),
        (3, 5, pytest.approx(-math.sqrt(0.5))),
    )
    # A zero update points nowhere.
    assert cosines["b"] == ((0, 5, 0.0),)
