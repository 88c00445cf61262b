"""Methods that derive from FedAvg: what each hook is given, what it decides, and what is refused."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

import relief_ray as rr
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.core.federated import RoundVoid
from relief_ray.plugins.blame import ContractViolated
from relief_ray.strategies import facts_of
from relief_ray.strategies.fedavg import recalled, with_memory
from relief_ray.strategies.fedprox import FedProx
from tests.toy import FOUR, bench, build, context_of, reduced_of, update_of

LAYOUT = build(b_zero=False).layout
START = {g.id: torch.zeros(g.numel) for g in LAYOUT}
ZEROS = {j: torch.zeros(len(value), dtype=torch.float64) for j, value in START.items()}
STATE = rr.ServerState(models={"global": START})


class Mine(rr.FedAvg):
    beta: float = 0.5
    most: int = 8

    def weight(self, client, fleet):
        assert client is fleet[client.id]
        return min(client.num_windows, self.most)

    def server_step(self, mean, memory):
        v = {j: d + self.beta * memory.get("v", {}).get(j, 0) for j, d in mean.items()}
        return v, {"v": v, "rounds": memory.get("rounds", 0) + 1}


class Prox(rr.FedAvg):
    mu: float = 0.01
    flops_per_value = 3.0

    def client_loss(self, step):
        drift = sum(((w - step.start[j]) ** 2).sum() for j, w in step.params.items())
        return super().client_loss(step) + self.mu / 2 * drift


class HeadOnly(rr.FedAvg):
    flops_per_value = 2.0

    def train(self, client, groups):
        return [g for g in groups if g.role == "head" or client.id < 2]


def tasks_of(config, **options):
    return config.build().allocate(STATE, context_of(LAYOUT, **options))


def after(config, values, state=STATE):
    """The state after a round in which client n changed every value that it sends by ``values[n]``."""
    strategy, context = config.build(), context_of(LAYOUT)
    tasks = [t for t in strategy.allocate(state, context) if t.client in values]
    sent = [update_of(t, {j: torch.full((LAYOUT[j].numel,), float(values[t.client])) for j in t.up}) for t in tasks]
    return strategy.aggregate(state, reduced_of(sent, strategy.reduction, LAYOUT, FOUR), context)


def test_weights_are_kept_with_the_task_and_weigh_the_mean():
    """Four clients of 6, 7, 8 and 9 windows, at most 8 of which count: 6 + 7 + 8 + 8 = 29."""
    assert [t.weight for t in tasks_of(Mine())] == [6.0, 7.0, 8.0, 8.0]
    moved = after(Mine(), {0: 1, 1: 2, 2: 3, 3: 4}).models["global"]["head.1"]
    torch.testing.assert_close(moved, torch.full_like(moved, (6 + 14 + 24 + 32) / 29))


def test_the_step_is_the_servers_and_its_memory_stays():
    """Means of 1 twice with beta 0.5: steps of 1 and 1.5."""
    one = dict.fromkeys(range(4), 1)
    first = after(Mine(), one)
    second = after(Mine(), one, first)
    assert {float(x) for theta in second.models["global"].values() for x in theta} == {2.5}
    assert sorted(first.facts) == ["memory/rounds"] and set(first.tensors) == {f"memory/v/{j}" for j in LAYOUT.ids}
    assert recalled(STATE) == {} and recalled(second)["rounds"] == 2
    assert {float(x) for v in recalled(second)["v"].values() for x in v} == {1.5}


def test_a_memory_comes_back_as_it_was_and_the_rest_of_a_state_stays():
    state = replace(STATE, tensors={"t": torch.ones(1), "memory/old": torch.ones(1)}, facts={"k": 1})
    memory = {"a/b": {"%": torch.tensor([1.0, 2.0], dtype=torch.float64), "": 3}, "n": [1, {"x": None}], "none": {}}
    kept = with_memory(state, memory)
    assert recalled(kept) == memory and kept.tensors.keys() >= {"t"} and kept.facts["k"] == 1
    assert "memory/old" not in kept.tensors and recalled(with_memory(kept, {})) == {}


def test_what_a_client_does_not_send_counts_as_unchanged():
    """Clients 2 and 3 train the head alone: of a change of 1 the other groups move by a half."""
    tasks = tasks_of(HeadOnly())
    assert [set(t.up) for t in tasks] == [set(LAYOUT.ids)] * 2 + [{"head.1"}] * 2
    assert all(t.train == t.up and set(t.down) == set(LAYOUT.ids) for t in tasks)
    assert [t.step_flops for t in tasks] == [2.0 * LAYOUT.num_values(t.train) for t in tasks]
    moved = after(HeadOnly(), dict.fromkeys(range(4), 1)).models["global"]
    assert {j: float(theta[0]) for j, theta in moved.items()} == {j: 1.0 if j == "head.1" else 0.5 for j in LAYOUT.ids}


def test_groups_that_nobody_sends_have_a_mean_of_zero_and_stay_as_they_are():
    class Seen(rr.FedAvg):
        def train(self, client, groups):
            return [groups[-1]]

        def server_step(self, mean, memory):
            assert list(mean) == list(LAYOUT.ids) and {j for j, d in mean.items() if d.any()} == {LAYOUT.ids[-1]}
            assert all(d.dtype == torch.float64 for d in mean.values())
            return mean, memory

    moved = after(Seen(), dict.fromkeys(range(4), 1)).models["global"]
    assert all(moved[j] is START[j] for j in LAYOUT.ids[:-1]) and float(moved[LAYOUT.ids[-1]][0]) == 1.0


@pytest.mark.parametrize("mu", [0.01, 0.3])
def test_a_tether_of_ones_own_is_fedprox_to_the_bit_and_in_flops(tmp_path, mu):
    runs = [bench(kind(mu=mu).build(), tmp_path, epochs=3, build_args={"b_zero": False}) for kind in (Prox, FedProx)]
    for round_ in (1, 2):
        mine, theirs = (run.round(round_).trained.reduced.receipts for run in runs)
        assert [r.work.extra_flops for r in mine] == [r.work.extra_flops for r in theirs] != [0.0] * 4
    models = [run.state.models["global"] for run in runs]
    assert all(torch.equal(models[0][j], models[1][j]) for j in LAYOUT.ids)


def test_a_derived_fedprox_with_another_loss_claims_no_mean_over_windows():
    class Other(FedProx):
        def client_loss(self, step):
            return super().client_loss(step)

    assert FedProx().build().client.is_mean and not Other().build().client.is_mean


@pytest.mark.parametrize(
    ("hook", "returned", "said"),
    [
        ("weight", 0, "weight returned 0 for all 4 clients of round 1, expected more for one of them"),
        ("weight", 1e308, "weight returned inf in sum for all 4 clients of round 1, expected a sum"),
        ("weight", 5e-324, "weight returned 1.97626e-323 in sum for all 4 clients of round 1, expected a sum"),
        ("weight", -1, "weight returned -1 for client 0, expected a number, at least 0"),
        ("weight", float("nan"), "weight returned nan for client 0"),
        ("weight", None, "weight returned None for client 0"),
        ("train", [], "train returned no group for client 0, expected a list of one at least of"),
        ("train", None, "train returned None for client 0"),
        ("train", ["tail.1"], r"train returned \['tail.1'\] for client 0, expected some of"),
        ("server_step", None, "server_step returned None, expected two mappings"),
        ("server_step", ({}, {}, {}), "expected two mappings"),
        ("server_step", ({"tail.1": torch.zeros(1)}, {}), "server_step: the step has group 'tail.1', expected some"),
        ("server_step", ({"head.1": torch.zeros(1)}, {}), r"the step of group 'head.1' is torch.float32 \(1,\)"),
        ("server_step", ({"head.1": 0.0}, {}), "the step of group 'head.1' is a float, expected a vector like its"),
        ("server_step", ({}, {}), f"the step lacks group '{LAYOUT.ids[0]}', expected every group of mean"),
        ("server_step", (ZEROS, {"v": {3: 1}}), r"memory\['v'\]\[3\]: its name is a int, expected a text"),
        ("server_step", (ZEROS, {"\ud800": 1}), "its name is .*expected a text without lone surrogates"),
        ("server_step", (ZEROS, {"v": [torch.ones(1)]}), r"memory\['v'\] is a list, expected a tensor, a JSON value"),
        ("server_step", (ZEROS, {"v": float("nan")}), r"memory\['v'\] is a float, expected .*no NaN"),
        ("server_step", (ZEROS, {"v": object()}), r"memory\['v'\] is a object, expected a tensor, a JSON value"),
    ],
)
def test_a_wrong_value_is_refused_by_the_hooks_name(hook, returned, said):
    wrong = type("Wrong", (rr.FedAvg,), {"__module__": __name__, hook: lambda self, *_: returned})
    with pytest.raises(ContractViolated, match=rf"{said}[^$]*\(.*test_hooks.py, line \d+"):
        after(wrong(), {0: 1})


@pytest.mark.parametrize("flops", ["3", -1.0, float("nan"), None])
def test_flops_are_a_number(flops):
    wrong = type("Wrong", (rr.FedAvg,), {"__module__": __name__, "flops_per_value": flops})
    with pytest.raises(rr.UserError, match=r"class Wrong: flops_per_value = .*, expected FLOPs per trained value"):
        wrong().build()


def test_a_round_of_which_only_clients_of_weight_0_come_back_is_void():
    class Some(rr.FedAvg):
        def weight(self, client, fleet):
            return client.id

    assert float(after(Some(), {0: 1, 3: 1}).models["global"]["head.1"][0]) == 1.0
    with pytest.raises(RoundVoid, match="round 1: all 1 clients that answered have weight 0"):
        after(Some(), {0: 1})


def test_a_method_has_a_name_and_facts_of_its_own():
    assert (Mine().build().name, Prox().build().name) == ("Mine", "Prox")
    facts = facts_of(Mine(), "lab:Mine")
    assert (facts.name, facts.title, facts.kind, facts.citation) == ("Mine", "Mine", "own", None)
    assert Mine.search == {} and FedProx.search


def test_an_optimizer_beside_a_step_of_its_own_is_refused():
    server = {"optimizer": "fedadam"}
    with pytest.raises(ValidationError, match=r"server.optimizer = 'fedadam' with strategy .*:Mine: its server_step "):
        ExperimentConfig(strategy=Mine(), server=server)
    assert ExperimentConfig(strategy=Prox(), server=server).strategy.no_average == ""


def test_a_name_that_nearly_is_a_hooks_is_refused():
    class Typo(rr.FedAvg):
        def server_stpe(self, mean, memory):
            return mean, memory

        def _server_stop(self):
            """Private, as nobody calls it."""

    with pytest.raises(rr.UserError, match=r"Typo: server_stpe is called by nobody \(did you mean 'server_step'\?\)"):
        Typo().build()


def test_a_loss_of_ones_own_says_what_it_costs_or_is_warned_of():
    class Free(Prox):
        flops_per_value = 0.0

    assert Prox().build().insight.warnings(None) == () == rr.FedAvg().build().insight.warnings(None)
    (line,) = Free().build().insight.warnings(None)
    assert line.startswith("Free: its client_loss is charged nothing") and "flops_per_value" in line
