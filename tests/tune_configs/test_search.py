"""The search: fifteen different tries per method, and a number of its own that really changes what the method does."""

import pytest

from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies import DESCRIBED
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import SGD_RATES
from relief_ray.support.errors import UserError
from tests.actors.grids.tiny_plans import TINY
from tests.actors.trials import run_alone
from tests.plans import cells_of
from tune_configs.registry import load_grid
from tune_configs.search import BATCH, METHODS, own_levels

# Enough windows for batches to differ, enough rounds for a warm-up to end, devices so slow that computing counts.
SETTINGS = {
    **TINY,
    "data.max_windows_per_client": 40,
    "data.stride_s": 2.5,
    "rounds": 6,
    "costs.utilisation": 1e-6,
    "tracking.enabled": False,
}
QUICK = ("fedprox", "relief")


def cells(*settings, grid="search_lr"):
    return cells_of(load_grid(grid), ["datasets=dsa_mini", *settings])


@pytest.mark.parametrize("grid", ["search_lr", "search_sgd"])
def test_every_method_has_fifteen_different_tries(grid):
    hashes = {}
    for cell in cells(grid=grid):
        hashes.setdefault(cell.label, set()).add(cell.hash)
    assert {m: len(tries) for m, tries in hashes.items()} == dict.fromkeys(METHODS, 15)


def test_only_methods_without_a_number_of_their_own_get_the_batch_size():
    assert {m for m in METHODS if own_levels(m) is BATCH} == {"fedavg", "fedsa_lora", "v1"}
    for cell in cells():
        rate, *own = cell.config.choice.parameters
        assert rate == "training.lr"
        assert all(key.startswith("strategy.") for key in own) == bool(DESCRIBED[cell.label].search), cell.name


def test_a_choice_of_sgd_is_frozen_with_its_momentum_and_clipping():
    tried = cells("methods=[fedprox]", grid="search_sgd")
    assert {c.config.training.lr for c in tried} == set(SGD_RATES)
    for cell in tried:
        training = cell.config.training
        assert (training.optimizer, training.momentum, training.clip_norm) == ("sgd", 0.9, 1.0)
        frozen = {f"training.{k}" for k in ("lr", "optimizer", "momentum", "clip_norm")}
        assert frozen < set(cell.config.choice.parameters)


def test_the_small_search_tries_two_optimizers_at_three_rates_and_keeps_a_methods_own_numbers():
    for method in METHODS:
        tried = cells(f"methods=[{method}]", grid="search_optimizer")
        assert {(c.config.training.optimizer, c.config.training.lr) for c in tried} == {
            ("adam", 3e-4), ("adam", 1e-3), ("adam", 3e-3), ("sgd", 0.03), ("sgd", 0.1), ("sgd", 0.3),
        }  # fmt: skip
        assert all(c.config.strategy == tried[0].config.strategy for c in tried)
        assert {c.config.seed for c in tried} == {1000, 1001}
        assert all(c.config.training.optimizer == "adam" or c.config.training.clip_norm == 1.0 for c in tried)


def test_what_the_method_has_by_itself_is_among_its_tries():
    defaults = {c.label: c.hash for c in cells_of(load_grid("main_cnn"), ["datasets=dsa_mini", "seeds=[1000]"])}
    tried = {c.hash for c in cells_of(load_grid("search_lr"), ["datasets=dsa_mini", "evaluation.parts=[test]"])}
    assert {m for m, digest in defaults.items() if m in METHODS and digest not in tried} == set()


@pytest.mark.parametrize(("rounds", "fix"), [(1, "rounds=2"), (5, "rounds=6")])
def test_a_search_too_short_for_a_methods_last_phase_is_refused_by_name(rounds, fix):
    """Five rounds are FedLEASE's warm-up: its tries would be judged before there is any expert."""
    with pytest.raises(UserError, match=rf"fedlease, .*warmup\d.*rounds = {rounds} ends .*--set {fix} or more"):
        cells("methods=[fedavg,fedlease]", f"rounds={rounds}")
    assert cells("methods=[fedavg,harmony,pilot]", f"rounds={max(2, rounds)}")


def test_six_rounds_are_enough_for_every_method_unless_clients_miss_some():
    assert len({c.label for c in cells("rounds=6")}) == len(METHODS)
    with pytest.raises(UserError, match="rounds=11 or more"):
        cells("rounds=10", "participation=0.5")


@pytest.mark.ci
@pytest.mark.parametrize("method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in METHODS])
def test_the_number_decides_something(tmp_path, method):
    settings = [f"methods={method}", *(f"{k}={v}".replace("'", "") for k, v in SETTINGS.items())]
    plan = Plan(kind="grid", out=tmp_path, name="search_lr", title="", cells=cells(*settings))
    models = set()
    for entry in plan.look():
        if entry.cell.config.training.lr == 1e-3:
            assert run_alone(entry) == "done", entry.folder
            models.add(read_rounds(entry.folder)[-1].model_sha256)
    assert len(models) == 3
