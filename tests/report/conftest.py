"""Hand-made records: three clients (one of each type), five groups, one clock with round seconds and joules."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from relief_ray.core.messages import ClientCost, RoundCost, StageTimes
from relief_ray.records.cells import Claim, Claims
from relief_ray.records.committed import CommittedClaims
from relief_ray.records.schema import ClientRecord, Machine, MethodFacts, Metrics, RoundRecord, RunRecord, Totals
from relief_ray.report.build import build as build_report
from relief_ray.report.claims import Registered, Registry
from relief_ray.report.comparison import HEADLINE_CLOCK
from relief_ray.report.runs import GridItem, Inventory, Loaded
from relief_ray.strategies import PRESETS, facts_of
from tests.sealed import put_rounds, put_run

CLOCK = "split_naive"
MIB = 2**20
GROUPS = {
    0: ("fusion.A.acc", "fusion.A.gyro", "fusion.A.mag", "fusion.B", "head.1"),
    1: ("fusion.A.acc", "fusion.A.gyro", "fusion.B", "head.1"),
    2: ("fusion.A.acc", "fusion.B", "head.1"),
}
ALL = GROUPS[0]
MACHINE = Machine(
    cpu="cpu",
    architecture="x86_64",
    system="Linux",
    num_cores=2,
    num_threads=1,
    python="3.11.7",
    torch="2.13.0",
    numpy="2.4",
)

STRATEGIES = {
    "fedavg": {"name": "fedavg"},
    "relief": {"name": "relief", "select": "divergence", "mandatory": True},
    "v1": {"name": "relief", "budget": "none"},
    "v2": {"name": "relief", "select": "divergence", "mandatory": False, "mean": "participants"},
    "v2_mandatory": {"name": "relief", "select": "divergence", "mandatory": True, "mean": "participants"},
    "v3": {"name": "relief", "select": "random", "mandatory": False},
}


def client(number, trained, up_bytes=2 * MIB, sq_norm=1.0):
    return ClientRecord(
        client=number, view="global", phase="train", epochs=2, trained=trained, uploaded=trained, bytes_down=3 * MIB,
        bytes_up=up_bytes, num_windows=10, num_steps=1, engine="gemm", loss=0.5, measured_stages=StageTimes(),
        sq_norm=dict.fromkeys(trained, sq_norm),
    )  # fmt: skip


def fedavg_round(round_s, energy_j):
    """A FedAvg round of which a tenth is link."""
    return {"round_s": round_s, "energy_j": energy_j, "compute_s": 0.9 * round_s, "link_share": 0.1}


def cost(round_s, energy_j):
    stages = {
        0: StageTimes(down_s=0.25 * round_s, up_s=0.25 * round_s),
        1: StageTimes(down_s=0.25 * round_s, forward_s=0.25 * round_s, up_s=0.25 * round_s),
        2: StageTimes(
            down_s=0.25 * round_s, forward_s=0.25 * round_s, backward_s=0.125 * round_s, optimizer_s=0.125 * round_s,
            up_s=0.25 * round_s,
        ),
    }  # fmt: skip
    waits = {0: 0.5 * round_s, 1: 0.25 * round_s, 2: 0.0}
    rows = [ClientCost(client=n, times=stages[n], wait_s=waits[n], energy_j=energy_j / 3) for n in stages]
    return RoundCost(round_s=round_s, energy_j=energy_j, clients=tuple(rows))


def metrics(f1, by_subject, rare_by_subject=None, personalised=False, own=None):
    rare = rare_by_subject or {}
    if personalised:
        return Metrics(f1=None, f1_fleet=f1, f1_fleet_by_subject=by_subject)
    f1_rare = sum(rare.values()) / len(rare) if rare else None
    return Metrics(
        f1=f1, f1_rare=f1_rare, accuracy=f1, f1_by_modality={"acc": f1 / 2, "mag": f1 / 4}, f1_by_class=(f1, f1),
        f1_by_subject=by_subject, num_windows=40, f1_fleet=own,
        f1_fleet_by_subject={} if own is None else dict.fromkeys(by_subject, own),
    )  # fmt: skip


def config(strategy, seed, fold, rounds):
    return {
        "name": "t", "strategy": STRATEGIES.get(strategy, {"name": strategy}), "seed": seed, "rounds": rounds,
        "data": {"name": "dsa", "split": "held_out_subject", "fold": fold, "stride_s": 5.0},
        "fleet": {"rotation": 0}, "training": {"epochs": 2, "missing": "zero_input"}, "evaluation": {"every": 1},
        "runtime": {"mode": "inline"},
    }  # fmt: skip


def method_facts(strategy):
    """Facts of a preset, or of a method that says nothing of itself."""
    if strategy in PRESETS:
        return facts_of(PRESETS[strategy], strategy)
    return MethodFacts(name=strategy, title=strategy, kind="own")


def build(
    strategy="fedavg", *, seed=0, fold=0, scores=(0.5, 0.6), subjects=None, rare=None, round_s=2.0, energy_j=100.0,
    validation=(), up_bytes=2 * MIB, trained=None, model="m", origin="real", personalised=False,
    planned=None, deadline_s=None, sq_norm=1.0, reference=(2.0, 100.0), extra=None, pairwise=None,
    own=None, facts=None, title="",
):  # fmt: skip
    """A run whose last evaluated F1 is ``scores[-1]``; ``subjects`` are that evaluation's F1 by subject.

    ``own``: F1 of the clients' own models beside the canonical one's, round by round; ``facts``: of the method;
    ``title``: the data set's.
    """
    settings = STRATEGIES.get(strategy, {})
    # V1 has no budget, ranks nothing and so has no bootstrap.
    bootstrap = settings.get("name") == "relief" and settings.get("budget") != "none"
    groups = trained or dict.fromkeys(GROUPS, ALL)
    rounds, total = [], Totals()
    for n, score in enumerate(scores, 1):
        is_bootstrap = bootstrap and n == 1
        taught = GROUPS if is_bootstrap else groups
        spent = cost(round_s, energy_j)
        total = Totals(
            time_s=total.time_s + round_s,
            energy_j=total.energy_j + energy_j,
            bytes_up=total.bytes_up + len(taught) * up_bytes,
        )
        by_subject = subjects if n == len(scores) and subjects else {"1": score or 0.0, "2": score or 0.0}
        rounds.append(
            RoundRecord(
                round=n,
                phase="bootstrap" if is_bootstrap else "train",
                wall_s=0.5,
                ended_unix_s=0.0,
                participants=(0, 1, 2),
                clients=tuple(client(c, taught[c], up_bytes, sq_norm) for c in taught),
                costs={CLOCK: spent},
                totals={CLOCK: total},
                model_sha256=f"{model}-{n}",
                trained_fraction=0.5,
                deadline_s=deadline_s,
                metrics=None if score is None else metrics(score, by_subject, rare, personalised, own and own[n - 1]),
                validation=metrics(validation[n - 1], {}, None, False) if validation else None,
                d_bar={"fusion.A.acc": 2.0, "fusion.B": 0.1} if bootstrap else {},
                divergence={"fusion.A.acc": 1.0 + n, "fusion.B": 0.1},
                pairwise=pairwise or {},
            )
        )
    run = RunRecord(
        cell="c", name="t", strategy=strategy, method=facts or method_facts(strategy), created="2026-01-01T00:00:00Z",
        config=config(strategy, seed, fold, planned or len(scores)) | (extra or {}), config_hash="h", data_digest="d",
        data_origin=origin, data_title=title, code_version="0.1.0", source_digest="s" * 64, machine=MACHINE,
        engine="gemm", planning_model=CLOCK, status="done", groups=ALL,
        coverage={
            "classes": ["a", "b"], "train": [15, 15], "validation": [3, 3], "test": [20, 20], "window_s": 5.12,
            "clients": [{"client": n, "subject": 3 + n, "train": [5, 5], "validation": [1, 1]} for n in GROUPS],
        },
        budget={"fedavg_reference": {CLOCK: fedavg_round(*reference)}},
        calibration={"origin": "FITTED"},
    )  # fmt: skip
    return Loaded(where=f"{strategy}-{fold}-{seed}", run=run, rounds=tuple(rounds))


def write(loaded: Loaded, folder: Path) -> Path:
    folder.mkdir(parents=True)
    put_run(folder, loaded.run)
    put_rounds(folder, loaded.rounds)
    return folder


@pytest.fixture(scope="session")
def make() -> Callable[..., Loaded]:
    return build


@pytest.fixture(scope="session")
def put() -> Callable[[Loaded, Path], Path]:
    return write


@pytest.fixture(scope="session")
def groups():
    return GROUPS


EIGHT = {str(s): 0.5 + 0.01 * s for s in range(1, 9)}


@pytest.fixture(scope="session")
def eight():
    """F1 of eight subjects."""
    return dict(EIGHT)


@pytest.fixture(scope="session")
def family():
    """FedAvg, V0-V3 and v2_mandatory over eight subjects: V1 and V0 above, V2 equal to v2_mandatory, V3 mixed."""

    def shifted(by):
        return {s: v + by for s, v in EIGHT.items()}

    def rare(by):
        return {s: 0.1 + by for s in EIGHT}

    mixed = {s: v + (0.02 if int(s) % 2 else -0.02) for s, v in EIGHT.items()}
    fast = {"round_s": 1.0, "energy_j": 60.0, "up_bytes": MIB, "trained": GROUPS, "deadline_s": 1.0}
    return (
        build("fedavg", scores=(0.50, 0.545), subjects=EIGHT, rare=rare(0)),
        build("v1", scores=(0.55, 0.645), subjects=shifted(0.10), rare=rare(0.05), model="v1"),
        build("relief", scores=(0.53, 0.595), subjects=shifted(0.05), rare=rare(0.04), model="v0", **fast),
        build("v2", scores=(0.51, 0.555), subjects=shifted(0.01), rare=rare(0.01), model="v2", **fast),
        build("v2_mandatory", scores=(0.51, 0.555), subjects=shifted(0.01), rare=rare(0.01), model="v2", **fast),
        build("v3", scores=(0.52, 0.545), subjects=mixed, rare=rare(0.0), model="v3", **fast),
    )


def item(loaded, status="done", why=""):
    kept = loaded if status in ("done", "untested") else None
    run = loaded.run
    return GridItem(
        name=loaded.where, label=loaded.label, config=run.config, status=status, why=why, loaded=kept, method=run.method
    )


def on(loaded, *, by_paper=True, digest=None, where=None, **config):
    """The run with other configuration values, other sources, and the headline clock beside its own."""
    base = loaded.run.config
    merged = {k: {**base.get(k, {}), **v} if isinstance(v, dict) else v for k, v in config.items()}
    changed = {"config": base | merged} | ({"source_digest": digest} if digest else {})
    rounds = loaded.rounds
    if by_paper:
        rounds = tuple(
            r.model_copy(
                update={
                    "costs": {HEADLINE_CLOCK: next(iter(r.costs.values())), **r.costs},
                    "totals": {HEADLINE_CLOCK: next(iter(r.totals.values())), **r.totals},
                }
            )
            for r in rounds
        )
        reference = loaded.run.budget["fedavg_reference"]
        changed["budget"] = {"fedavg_reference": {HEADLINE_CLOCK: next(iter(reference.values())), **reference}}
    run = loaded.run.model_copy(update=changed)
    return dataclasses.replace(loaded, run=run, rounds=rounds, where=where or loaded.where)


@pytest.fixture(scope="session")
def put_on():
    return on


@pytest.fixture(scope="session")
def inventory_of():
    """A stock of finished runs, and of cells with another status given as (run, status, why)."""

    def build(runs=(), others=()):
        return Inventory(items=(*(item(r) for r in runs), *(item(*o) for o in others)), titles=("a grid",))

    return build


@pytest.fixture(scope="session")
def usual(family, put_on, inventory_of):
    """The family of methods with both clocks."""
    return inventory_of([put_on(r) for r in family])


@pytest.fixture(scope="session")
def usual_report(usual):
    """Their report, without claims."""
    return build_report(usual)


def named(*claims, planned=None, at="2025-01-01T00:00:00Z", **file):
    """A registry of one file of claims about the runs that ``make`` makes; each claim as keyword arguments."""
    content = Claims(data="dsa", split="held_out_subject", claims=tuple(Claim(**c) for c in claims), **file)
    rows = {name: tuple((*key, *value) for key, value in of.items()) for name, of in (planned or {}).items()}
    committed = CommittedClaims(text=content.model_dump_json(), at=at, planned=rows)
    return Registry(files=(Registered(claims=content, committed=committed),))


@pytest.fixture(scope="session")
def registry():
    return named


def repeated(method, scores, **more):
    """Runs of a method from a table of scores: a row per fold, a column per replicate."""
    return [
        build(
            method, fold=fold, seed=10_000 + 100 * r + fold, scores=(score / 2, score), extra={"replicate": r},
            model=f"{method}-{fold}-{r}", **more,
        )
        for fold, row in enumerate(scores)
        for r, score in enumerate(row)
    ]  # fmt: skip


@pytest.fixture(scope="session")
def repeat():
    return repeated
