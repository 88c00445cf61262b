"""``budget: epochs``: what T* buys a client that trains everything within its reach, and what it is told about it."""

from dataclasses import dataclass, replace

import pytest
from pydantic import ValidationError

from relief_ray.config.experiment import parse
from relief_ray.core.federated import ExplainRequest, PlannedRun
from relief_ray.core.messages import ServerState, StageTimes
from relief_ray.devices.fleet import with_windows
from relief_ray.experiment.setup import configured_fleet, model_of
from relief_ray.strategies.relief import PRESETS, Relief
from relief_ray.strategies.relief.strategy import target_s
from tests.strategies.relief.test_relief import CNN, PAPER
from tests.toy import LinearPlanner, context_of

EPOCHS = Relief(budget="epochs", mean="participants")


@dataclass(frozen=True, kw_only=True)
class PerEpoch(LinearPlanner):
    """One second on the link, and ``tau_n`` seconds for a group and epoch; a byte for each group."""

    def times(self, client, assignment):
        return StageTimes(backward_s=self.tau_s[client] * len(assignment.train) * assignment.epochs, up_s=1.0)

    def nbytes(self, client, assignment):
        return len(assignment.down), len(assignment.up)


# A reaches 14 groups (4 x 2 encoder layers, 4 blocks, B, head), B 8, C 5.
TAUS = PerEpoch(tau_s={n: (0.1, 0.1, 0.1, 1.3, 1.3, 1.3, 5.5, 5.5)[n] for n in range(8)})


def context(epochs=3, **changes):
    return context_of(CNN, PAPER, 1, PerEpoch(**changes) if changes else TAUS, epochs=epochs)


def tasks_of(config, **options):
    return config.build().allocate(ServerState(models={}), context(**options))


def test_t_star_is_that_of_the_groups_budget():
    """The slowest type trains its one block in three epochs: 1 + 3 x 5.5 s, whatever the epochs are bought for."""
    assert target_s(EPOCHS, context()) == target_s(Relief(), context()) == pytest.approx(17.5)


def test_epochs_by_hand():
    """T* = 17.5 s. A: 1 + 3 x 14 x 0.1 = 5.2. B: 1 + e x 8 x 1.3 = 11.4, 21.8. C: 1 + 5 x 5.5 = 28.5 > T*: one."""
    tasks = tasks_of(EPOCHS)
    assert [t.epochs for t in tasks] == [3, 3, 3, 1, 1, 1, 1, 1]
    assert [len(t.train) for t in tasks] == [14] * 3 + [8] * 3 + [5] * 2
    assert all(t.up == t.train and t.phase == "train" for t in tasks), "there is no bootstrap"


CODED = {"up": "int8", "down": "float16"}


def on_dsa(epochs, formats, **fleet):
    """What a round plans for the six clients of 931 windows that `dsa` held out has, without its files."""
    sections = {
        "data": {"name": "dsa", "split": "held_out_subject"},
        "training": {"epochs": epochs, "optimizer": "sgd"},
        "transfer": {**formats, "download": "reachable"},
        "strategy": {"name": "relief", "budget": "epochs", "mean": "participants"},
        "fleet": fleet,
    }
    config = parse(sections)
    clients, types = configured_fleet(config, 6)
    return model_of(config, config.data.spec(), with_windows(clients, [931] * 6), types, "naive")


@pytest.mark.parametrize(
    ("epochs", "formats", "expected"),
    [
        (2, {}, {"A": 2, "B": 2, "C": 2}),
        (2, CODED, {"A": 2, "B": 1, "C": 1}),
        (5, {}, {"A": 5, "B": 4, "C": 3}),
        (5, CODED, {"A": 5, "B": 3, "C": 1}),
    ],
)
def test_epochs_that_t_star_buys_on_dsa(epochs, formats, expected):
    model = on_dsa(epochs, formats)
    tasks = model.strategy.allocate(ServerState(models={}), model.context())
    assert {model.fleet[t.client].device: t.epochs for t in tasks} == expected


def test_with_all_sensors_on_the_slowest_device_not_one_epoch_fits():
    """T* = 0.944 s is the time of a device of type C for the blocks of three sensors; an epoch takes it 1.185 s."""
    model = on_dsa(2, {}, coupling="inverted")
    (said,) = model.strategy.insight.warnings(PlannedRun(context=model.context(), clock="c", participation=1.0))
    assert said.startswith("T* = 0.944") and "(1.185 s, 0.24" in said


def test_relief_plus_is_one_epoch_of_everything_within_reach():
    tasks = tasks_of(PRESETS["relief_plus"].config)
    assert [t.epochs for t in tasks] == [1] * 8 and [len(t.up) for t in tasks] == [14] * 3 + [8] * 3 + [5] * 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"deadline_s": 33.0}, [3, 3, 3, 3, 3, 3, 1, 1]),  # B: 1 + 3 x 10.4 = 32.2
        ({"deadline_s": 32.0}, [3, 3, 3, 2, 2, 2, 1, 1]),
        ({"deadline_s": 200.0}, [3] * 8),
        ({"deadline_s": 200.0, "max_epochs": 2}, [2] * 8),
        ({"deadline_s": 200.0, "max_epochs": 9}, [9, 9, 9, 9, 9, 9, 7, 7]),  # C: 1 + 7 x 27.5 = 193.5
        ({"deadline_s": 0.5}, [1] * 8),
    ],
)
def test_other_deadlines_buy_other_epochs(settings, expected):
    assert [t.epochs for t in tasks_of(EPOCHS.model_copy(update=settings))] == expected


def test_a_client_for_whom_no_epoch_fits_is_named_with_its_excess():
    run = PlannedRun(context=context(), clock="c", participation=1.0)
    (line,) = EPOCHS.build().insight.warnings(run)
    assert line == (
        "T* = 17.5 s is too short for one epoch of client 6 (28.5 s, 11 s more) and client 7 (28.5 s, 11 s more); such "
        "a client runs one all the same"
    )
    assert EPOCHS.model_copy(update={"deadline_s": 29.0}).build().insight.warnings(run) == ()


def explained(config, client):
    request = ExplainRequest(context=context(), client=PAPER[client], before=None, fedavg_s=232.0)
    return config.build().insight.explain(request)


def test_an_explanation_says_the_seconds_the_epochs_and_the_bytes():
    why = explained(EPOCHS, 3)
    assert [s.heading for s in why.sections] == [
        "1. The budget of a round is T* = 17.500 s",
        "2. It buys this client 1 epoch, done after 11.400 s",
        "3. It receives 14 and sends 8 bytes",
    ]
    assert why.sections[1].rows == (
        ("1", "11.400", "", "yes"),
        ("2", "21.800", "+4.300", ""),
        ("3", "32.200", "+14.700", ""),
    )
    assert why.sections[2].lines == ("That is 0% less down and 43% less up than the whole model in the same formats.",)
    assert any("The slowest of them is client 6 (Type" in line for line in why.sections[0].lines)
    given = explained(EPOCHS.model_copy(update={"deadline_s": 33.0}), 3).sections[0].lines
    assert given[0].startswith("T* was set in the configuration")
    assert (why.facts["epochs"], why.facts["planned_s"], len(why.groups)) == (1, pytest.approx(11.4), 8)
    assert "Not one epoch fits: it runs one, and is done 11.000 s after T*." in explained(EPOCHS, 6).sections[1].lines


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": "epochs", "slots_slowest": 2},
        {"budget": "epochs", "fill": "time"},
        {"budget": "none", "cover": True},
        {"budget": "none", "deadline_s": 3.0},
        {"budget": "none", "select": "random"},
        {"budget": "groups", "max_epochs": 1},
        {"budget": "none", "max_epochs": 1},
    ],
)
def test_what_a_budget_does_not_read_is_refused(settings):
    with pytest.raises(ValidationError, match="which does not read it"):
        Relief(**settings)


def test_relief_plus_warns_of_epochs_of_few_steps():
    """640 windows in batches of 32 are 20 steps; 608 are 19."""

    def said(num_windows):
        fleet = replace(PAPER, clients=tuple(replace(c, num_windows=num_windows) for c in PAPER.clients))
        run = PlannedRun(context=context_of(CNN, fleet, 1, TAUS, epochs=5, batch_size=32), clock="c", participation=1.0)
        return PRESETS["relief_plus"].config.build().insight.warnings(run)

    assert said(640) == ()
    (line,) = said(608)
    assert line.startswith("one epoch is 19 steps for most clients") and "--set strategy.max_epochs=5" in line
