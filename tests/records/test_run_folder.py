"""When a run is done: the one rule of grids, reports and what-if questions."""

import pytest

from relief_ray.records.run_folder import is_done
from tests.records.scenario import make_run


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ((1, 2, 3), True),
        ((0, 1, 2, 3), False),
        ((0, 1, 2), False),
        ((0, 2, 3), False),
        ((1, 3), False),
        ((2, 3), False),
        ((1, 2), False),
        ((1, 2, 2), False),
        ((2, 1, 3), False),
        ((1, 2, 3, 4), False),
        ((), False),
    ],
)
def test_a_finished_run_has_every_round_to_the_last_planned_one(rounds, expected):
    run = make_run(status="done", config={"rounds": 3})
    assert is_done(run, rounds) is expected


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_a_run_that_did_not_finish_is_not_done_with_all_its_rounds(status):
    """Killed between its last line and its last checkpoint: a resume finishes it."""
    run = make_run(status=status, config={"rounds": 3})
    assert not is_done(run, (1, 2, 3))
