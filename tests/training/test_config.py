import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, StepLR

from relief_ray.config.experiment import parse
from relief_ray.core.codec import Wire
from relief_ray.support.errors import UserError
from relief_ray.training.config import Schedule, TrainingConfig, trainer_config
from relief_ray.training.optimizer import UpdateRule


@pytest.mark.parametrize("chosen", [{}, {"micro_batch": 4, "device": "auto", "autocast": "bf16"}, {"stack": 8}])
def test_all_settings_are_written_and_those_that_differ_are_identified(chosen):
    config = parse({"training": chosen})
    written = config.model_dump(mode="json")["training"]
    assert written.keys() == TrainingConfig.model_fields.keys() and written | chosen == written
    assert config.identity().get("training", {}) == chosen
    assert parse({"training": written}) == config


def test_the_oracle_is_not_computed_in_bfloat16():
    with pytest.raises(UserError, match=r"autocast = 'bf16' with engine = 'naive'.*expected autocast=none"):
        parse({"training": {"engine": "naive", "autocast": "bf16"}})


@pytest.mark.parametrize(
    ("training", "runtime", "why"),
    [
        ({"engine": "naive"}, {}, r"stack = 8 with engine = 'naive'.*expected stack=1, or engine=auto"),
        ({"micro_batch": 4}, {}, r"stack = 8 with micro_batch = 4.*expected one of the two"),
        (
            {},
            {"mode": "actors"},
            r"configuration: training.stack = 8 where every client has.*'actors'.*mode=packed",
        ),
        ({}, {"placement": "typed"}, r"training.stack = 8 where every client has a host of its own.*'typed'"),
    ],
)
def test_a_stack_that_no_clients_could_share_is_refused(training, runtime, why):
    with pytest.raises(UserError, match=why):
        parse({"training": {"stack": 8, **training}, "runtime": runtime})


@pytest.mark.parametrize(("key", "value"), [("micro_batch", 0), ("stack", 0), ("device", "tpu"), ("autocast", "fp16")])
def test_other_values_are_refused(key, value):
    with pytest.raises(UserError, match=rf"training.{key} = {value!r}"):
        parse({"training": {key: value}})


# Optimizer and schedule ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("training", "why"),
    [
        (
            {"momentum": 0.9},
            r"training.momentum = 0.9 with optimizer = 'adam'.*set training.optimizer=sgd or remove momentum",
        ),
        (
            {"schedule_end": 0.1},
            r"schedule_end = 0.1 with schedule = 'constant'.*set training.schedule=cosine or linear",
        ),
        ({"schedule": "cosine", "schedule_every": 3}, r"schedule_every = 3 with schedule = 'cosine'.*schedule=step"),
        ({"schedule": "linear", "schedule_factor": 0.5}, r"schedule_factor = 0.5 with schedule = 'linear'"),
        ({"schedule": "step"}, r"schedule = 'step' without schedule_every; expected the rounds between two steps"),
        ({"optimizer": "lion"}, r"training.optimizer = 'lion': expected one of adam, adamw, sgd"),
        ({"momentum": 1.0, "optimizer": "sgd"}, r"training.momentum = 1.0"),
        ({"weight_decay": -0.1}, r"training.weight_decay = -0.1"),
        ({"clip_norm": 0.0}, r"training.clip_norm = 0.0"),
    ],
)
def test_settings_of_the_optimizer_that_nothing_reads_are_refused(training, why):
    with pytest.raises(UserError, match=why):
        parse({"training": training})


def shares(name, **facts):
    schedule = Schedule(name=name, num_rounds=8, **facts)
    return [schedule.share(r) for r in range(9)]


def torchs(make, **facts):
    """Learning rates of rounds 1 to 8 in torch's own scheduler, at a rate of 1."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler, rates = make(optimizer, **facts), []
    for _ in range(8):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("name", "facts", "make", "theirs"),
    [
        ("cosine", {"end": 0.2}, CosineAnnealingLR, {"T_max": 8, "eta_min": 0.2}),
        ("linear", {"end": 0.2}, LinearLR, {"start_factor": 1.0, "end_factor": 0.2, "total_iters": 8}),
        ("step", {"every": 3, "factor": 0.5}, StepLR, {"step_size": 3, "gamma": 0.5}),
    ],
)
def test_schedules_are_torchs_advanced_once_a_round(name, facts, make, theirs):
    rates = shares(name, **facts)
    assert rates[0] == rates[1] == 1.0, "a bootstrap round is like the first"
    assert rates[1:] == pytest.approx(torchs(make, **theirs), rel=1e-6)


def test_schedules_by_hand():
    assert shares("constant") == [1.0] * 9
    assert shares("cosine")[5] == pytest.approx(0.5) and shares("cosine")[8] > 0.0
    assert shares("linear")[1:] == pytest.approx([1 - i / 8 for i in range(8)])
    assert shares("step", every=3, factor=0.5)[1:] == [1.0] * 3 + [0.5] * 3 + [0.25] * 2


def test_the_trainer_gets_what_is_configured():
    chosen = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-4, "clip_norm": 2.0, "schedule": "step"}
    settings = trainer_config(TrainingConfig(**chosen, schedule_every=4), "gemm", 9, Wire(up="int8"))
    assert settings.rule == UpdateRule(name="sgd", momentum=0.9, weight_decay=1e-4) and settings.clip_norm == 2.0
    assert settings.wire == Wire(up="int8")
    assert settings.schedule == Schedule(name="step", num_rounds=9, every=4, factor=0.1)


@pytest.mark.parametrize(
    ("training", "flops"),
    [
        ({}, 12.0),
        ({"weight_decay": 0.1}, 14.0),
        ({"optimizer": "adamw", "weight_decay": 0.1}, 13.0),
        ({"optimizer": "sgd"}, 2.0),
        ({"optimizer": "sgd", "momentum": 0.9}, 4.0),
        ({"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1, "clip_norm": 1.0}, 9.0),
    ],
)
def test_flops_of_an_optimizer_step_per_value(training, flops):
    assert TrainingConfig(**training).optimizer_flops == flops
