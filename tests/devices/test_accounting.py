"""Tests the charges of a round: `method` counts what was done, `table` FedAvg's round for four methods."""

from functools import cache

import pytest

from relief_ray.conformance.runner import after_rounds
from relief_ray.core.codec import encoded_nbytes
from relief_ray.core.groups import WHOLE, GroupLayout, ParamGroup, pack
from relief_ray.core.messages import Assignment, ClientInfo, Fleet, Receipt, StageTimes, Work
from relief_ray.devices.accounting import CostAccountant, Counter, WholeRounds
from relief_ray.devices.fleet import PRESETS as DEVICES
from relief_ray.devices.time import FlopProportional, SplitNaive, SplitReuse
from relief_ray.experiment.setup import prepare
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.report.runs import load_runs
from relief_ray.strategies import PRESETS
from relief_ray.studies.what_if import what_if
from tests.conformance.cases import config_of, drive

TABLE = {"accounting": "table"}
CHARGED_WHOLE = {c.build().name for c in PRESETS.values() if c.paper_accounting == "fedavg"}


def group(name, role, numel):
    return ParamGroup(id=name, role=role, modality=None, layer=None, tensors=pack([("w", (numel,), "weight")]))


# The backbone is what toy.chain() has; a router and an early exit were added by a method.
LAYOUT = GroupLayout([group("enc", "encoder", 4), group("head", "head", 2)])
ADDED = GroupLayout([*LAYOUT, group("router.2", "router", 3), group("exit.1", "exit", 5)])
FLEET = Fleet(
    clients=tuple(ClientInfo(id=n, name=d, device=d, modalities=("acc",), num_windows=10) for n, d in enumerate("AC")),
    modalities=("acc",),
)


def done(client, up):
    task = Assignment(client=client, down={}, train={"head": WHOLE}, up=dict.fromkeys(up, WHOLE), epochs=2)
    work = Work(num_windows=10, epochs=2, num_steps=4, engine="reuse", loss=0.5, measured=StageTimes())
    return Receipt(assignment=task, work=work, bytes_down=0, bytes_up=7)


def accountant(toy, whole=True, **more):
    counter = Counter(toy.chain(), ADDED, "zero_input")
    bill = WholeRounds(counter=counter, own=ADDED.select(LAYOUT.ids), epochs=2, batch_size=8, engine="reuse")
    return CostAccountant(
        counter=counter,
        types=DEVICES["paper"],
        clocks={kind.name: kind(utilisation=1e-12) for kind in (FlopProportional, SplitNaive, SplitReuse)},
        whole=bill if whole else None,
        **more,
    )


def test_method_accounting_charges_what_was_done(toy):
    receipts = [done(1, ["head"])]
    assert accountant(toy, whole=False).charged(receipts, FLEET.clients) == tuple(receipts)


def test_table_accounting_by_hand(toy):
    """Client 0 did nothing, client 1 sent head, router and exit: both pay the 6 values, client 1 the router's 3 too."""
    idle, routed = accountant(toy).charged([done(1, ["head", "router.2", "exit.1"])], FLEET.clients)
    values = {name: ADDED.num_values(r.assignment.up) for name, r in (("idle", idle), ("routed", routed))}
    assert values == {"idle": 6, "routed": 9}
    for receipt in (idle, routed):
        assert set(receipt.assignment.train) == {"enc", "head"}, "computing is FedAvg's"
        assert receipt.bytes_up == receipt.bytes_down == encoded_nbytes(ADDED, receipt.assignment.up)
        assert (receipt.work.num_windows, receipt.work.epochs, receipt.work.num_steps) == (10, 2, 4)
    # 10 windows, 2 epochs: forward 100 + 10, weight gradients 80 + 8, the head's input gradient 9, per window; 4 steps
    # of Adam over 6 values. Types A and C do 275 and 5 FLOP/s here.
    cost = accountant(toy).cost((idle, routed), FLEET)
    flops = 20 * (110.0 + 88.0 + 9.0) + 4 * 12.0 * 6
    for client, speed in ((0, 275.0), (1, 5.0)):
        assert cost["split_naive"].clients[client].times.compute_s == pytest.approx(flops / speed)
        assert cost["flop_proportional"].clients[client].times.compute_s == pytest.approx(20 * (270 + 27) / speed)


def test_the_whole_bill_is_fedavgs_round_to_the_bit(toy):
    plain = CostAccountant(
        counter=Counter(toy.chain(), LAYOUT, "zero_input"), types=DEVICES["paper"], clocks=accountant(toy).clocks
    )
    bill = accountant(toy).cost(accountant(toy).charged([], FLEET.clients), FLEET)
    assert bill == plain.fedavg_reference(FLEET, epochs=2, batch_size=8, engine="reuse")


def test_counted_server_seconds_lengthen_every_clock_and_everybody_waits(toy):
    receipts = [done(0, ["head"]), done(1, ["head"])]
    plain, counting = (accountant(toy, whole=False, count_server_time=c) for c in (False, True))
    before = plain.cost(receipts, FLEET, 2.5)
    assert before == plain.cost(receipts, FLEET), "logged apart, not counted"
    idle_w = sum(DEVICES["paper"][c.device].power.idle_w for c in FLEET.clients)
    for name, cost in counting.cost(receipts, FLEET, 2.5).items():
        assert cost.round_s == before[name].round_s + 2.5
        assert cost.energy_j == pytest.approx(before[name].energy_j + 2.5 * idle_w)
        assert [c.wait_s for c in cost.clients] == pytest.approx([c.wait_s + 2.5 for c in before[name].clients])


# Whole runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(run_cache, tmp_path_factory):
    """Returns the folder of a method's run in one of the accountings; it is run where it is first asked for."""

    @cache
    def folder_of(case, mode):
        path = tmp_path_factory.mktemp("accounting") / f"{case}-{mode}"
        drive(config_of(case, costs={"accounting": mode}), path)
        return path

    return folder_of


def of(runs, case, mode):
    return read_rounds(runs(case, mode))


@pytest.mark.ci
@pytest.mark.parametrize("case", [*sorted(CHARGED_WHOLE), "relief"])
def test_accounting_changes_the_bill_and_nothing_that_is_learned(runs, case):
    for method, table in zip(of(runs, case, "method"), of(runs, case, "table"), strict=True):
        assert (table.model_sha256, table.metrics) == (method.model_sha256, method.metrics)
        work = [[(c.client, c.trained, c.uploaded, c.num_steps, c.loss) for c in r.clients] for r in (method, table)]
        assert work[0] == work[1] and table.trained_fraction == method.trained_fraction
        assert (table.costs == method.costs) is (case == "relief")


@pytest.mark.parametrize("case", ["fedsa_lora", "harmony"])
def test_methods_that_add_nothing_are_charged_fedavgs_round_to_the_bit(runs, case):
    setup = prepare(config_of(case, costs=TABLE))
    whole = setup.fedavg.counter.nbytes(setup.fedavg.counter.layout.select())
    for number, record in enumerate(of(runs, case, "table"), 1):
        for clock, reference in setup.reference.items():
            assert record.costs[clock].round_s == reference.round_s and record.speedup == 1.0
            assert record.costs[clock].energy_j == pytest.approx(reference.energy_j, rel=1e-12)
            assert record.totals[clock].bytes_up == number * len(setup.fleet) * whole
        assert {(c.bytes_up, c.bytes_down) for c in record.clients} == {(whole, whole)}
    cheaper = [r.costs["split_naive"].round_s for r in of(runs, case, "method")]
    assert all(s < setup.reference["split_naive"].round_s for s in cheaper), "what it really did"


@pytest.mark.parametrize(("case", "role"), [("pilot", "connector"), ("fedlease", "router")])
def test_adapters_and_routers_come_on_top(runs, case, role):
    setup = prepare(config_of(case, costs=TABLE))
    whole = setup.fedavg.counter.nbytes(setup.fedavg.counter.layout.select())
    last = of(runs, case, "table")[-1]
    sent = {j for c in last.clients for j in c.uploaded if setup.layout[j].role == role}
    assert sent, "it does send some in the last round"
    for c in last.clients:
        own = sum(setup.layout[j].numel for j in c.uploaded if j in sent)
        assert c.bytes_up - whole == pytest.approx(4 * own, abs=200), "the values and their place in the header"
    reference = setup.reference["split_naive"]
    assert reference.round_s < last.costs["split_naive"].round_s < 1.2 * reference.round_s
    for a, b in zip(last.costs["split_naive"].clients, reference.clients, strict=True):
        assert a.times.forward_s == b.times.forward_s and a.times.backward_s == b.times.backward_s


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["method", "table"])
@pytest.mark.parametrize("case", sorted(CHARGED_WHOLE))
def test_another_fleet_is_charged_in_the_accounting_of_the_run(runs, case, mode):
    (loaded,) = load_runs([runs(case, mode)])
    again = what_if(loaded, {})
    for before, after in zip(loaded.rounds, again.rounds, strict=True):
        assert (after.costs, after.totals, after.speedup) == (before.costs, before.totals, before.speedup)


def test_absent_clients_are_charged_for_nothing(run_cache, tmp_path):
    config = config_of("fedsa_lora", participation=0.5, costs=TABLE, rounds=1)
    drive(config, tmp_path / "run")
    (record,) = read_rounds(tmp_path / "run")
    busy = {c.client for c in record.costs["split_naive"].clients if c.times.backward_s}
    assert busy == set(record.participants) and len(busy) == len(prepare(config).fleet) // 2
    assert record.speedup == 1.0, "against a FedAvg round of the same clients"


def test_an_interrupted_run_goes_on_in_its_accounting(runs, tmp_path):
    drive(config_of("harmony", costs=TABLE), tmp_path / "run", should_stop=after_rounds(1))
    drive(config_of("harmony", costs=TABLE), tmp_path / "run")
    assert [r.costs for r in read_rounds(tmp_path / "run")] == [r.costs for r in of(runs, "harmony", "table")]


@pytest.mark.ci
def test_server_seconds_are_recorded_apart_and_counted_where_asked(run_cache, tmp_path):
    case = "darkdistill"
    for name, costs in (("apart", {}), ("counted", {"count_server_time": True})):
        drive(config_of(case, costs=costs), tmp_path / name)
    for apart, counted in zip(*(read_rounds(tmp_path / n) for n in ("apart", "counted")), strict=True):
        assert apart.server_s > 0.0 and counted.server_s > 0.0 and apart.model_sha256 == counted.model_sha256
        for clock in apart.costs:
            assert counted.costs[clock].round_s == apart.costs[clock].round_s + counted.server_s
    (loaded,) = load_runs([tmp_path / "counted"])
    assert [r.costs for r in what_if(loaded, {}).rounds] == [r.costs for r in loaded.rounds]


# Names --------------------------------------------------------------------------------------------------------------


def test_these_methods_are_charged_whole():
    """Those that the paper's tables list with FedAvg's bytes (docs/costs.md)."""
    assert CHARGED_WHOLE == {"fedsa_lora", "fedlease", "harmony", "pilot"}


def test_the_accounting_is_recorded_and_names_the_cell(runs):
    method, table = (read_run(runs("harmony", mode)) for mode in ("method", "table"))
    assert method.cell != table.cell and table.config["costs"]["accounting"] == "table"
    base = config_of("harmony")
    assert (
        base.identity()
        == config_of("harmony", costs={"planning_time": "split_naive", "accounting": "method"}).identity()
    )
    assert "accounting" not in base.identity()["costs"]
    accountant = prepare(base).accountant
    assert accountant.whole is None and not accountant.count_server_time
