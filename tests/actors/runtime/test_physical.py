"""Devices of a physical run: measured by one clock each, with a model object of their own and the plain loop's bits."""

import socket
import time
from dataclasses import replace

import pytest

from actors.runtime.physical import DeviceWatch, ModelBox, RoundLog
from relief_ray.core.messages import OnDevice
from relief_ray.server.reduction import blocks
from relief_ray.training.executor import SerialExecutor
from tests.actors.runtime.federation import (
    TYPES,
    make_job,
    make_states,
    make_targets,
    make_tasks,
    same_round,
    start_models,
)
from tests.devices.boards import BOARDS

PHYSICAL = {"mode": "actors", "data": "node", "physical": True}


@pytest.mark.slow
@pytest.mark.ray
def test_devices_have_the_plain_loops_bits_and_measure_themselves(on_ray, tmp_path):
    job = replace(make_job(tmp_path, 4), device_by_host=True)
    serial, devices = SerialExecutor(job), on_ray(job, TYPES, **PHYSICAL)
    states = make_states(job)
    for round_ in (1, 2):
        models = start_models(job)
        trained = devices.train(round_, models, make_tasks(job), states)
        assert same_round(trained, serial.train(round_, models, make_tasks(job), states))
    assert list(trained.measured) and set(trained.measured) == {0, 1, 2, 3}
    for measured in trained.measured.values():
        seen = measured.on_device
        assert (seen.host, seen.device) == (socket.gethostname(), "cpu")
        assert 0 < seen.down_s < seen.call_s < 60 and 0 < measured.up_s < 60
        model = sum(4 * x.numel() for x in models["global"].values())
        assert model < measured.bytes_down < model + 20_000, "one view of the model, and the task"
        assert measured.bytes_up > 0
    assert min(m.wait_s for m in trained.measured.values()) < 1.0, "the last one waits for nobody"
    counts = devices.evaluate(start_models(job), make_targets(job), states, "test")
    expected = serial.evaluate(start_models(job), make_targets(job), states, "test")
    assert all((counts[label] == expected[label]).all() for label in expected)
    assert devices.facts()["physical"] and devices.facts()["data"] == "node"
    assert devices._limits.heard_types == {client.device for client in job.fleet.clients}


@pytest.mark.slow
@pytest.mark.ray
def test_each_client_gets_a_model_object_of_its_own(on_ray, tmp_path):
    job = make_job(tmp_path, 4)
    devices, models = on_ray(job, TYPES, **PHYSICAL), start_models(job)
    supply, cut = devices._supply(models), blocks(make_tasks(job))
    calls = [
        devices._train_call(1, supply, {}, None, None, len(cut), pieces) for pieces in devices._scheduler.calls(cut)
    ]
    boxes = [call.args[1] for call in calls]
    assert all(isinstance(box, ModelBox) for box in boxes) and len({box.ref for box in boxes}) == len(calls) == 4


def test_a_device_tells_its_energy_mode_and_heat_and_nothing_that_it_cannot(tmp_path, monkeypatch):
    monkeypatch.setattr("relief_ray.devices.meter.MAX_DROPPED", 1.0)  # a busy machine takes samples late
    monkeypatch.setenv("RELIEF_SYSFS", str(BOARDS["orin_nx"](tmp_path / "board")))
    with DeviceWatch() as watch:
        time.sleep(0.1)
    seen = watch.measured("cpu")
    assert seen.energy_j == pytest.approx(8.0 * seen.call_s, rel=0.02) and seen.energy_of == "VDD_IN"
    assert (
        seen.energy_by_rail == {rail.label: rail.energy_j for rail in watch.by_rail()} and len(seen.energy_by_rail) > 1
    )
    assert (seen.power_mode, seen.temperature_c, seen.throttled, seen.down_s) == ("15W", 51.0, False, None)
    monkeypatch.setenv("RELIEF_SYSFS", str(tmp_path / "nothing"))
    with DeviceWatch() as watch:
        pass
    unknown = replace(watch.measured("cpu"), host="", call_s=None)
    assert unknown == OnDevice(host="", device="cpu"), "None, never 0"


def test_who_answers_first_waits_for_the_last(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr("actors.runtime.physical.time.monotonic", lambda: now_s)
    log, seen = RoundLog(), OnDevice(host="board", device="cpu")
    log.add(0, seen, 0.5, 10, 20)
    log.add(1, None, None, 10, 20)
    now_s = 103.0
    log.add(2, seen, None, 30, 40)
    now_s = 104.0
    measured = log.finish()
    assert {client: m.wait_s for client, m in measured.items()} == {0: 4.0, 2: 1.0}, "no measurement, no entry"
    assert (measured[0].up_s, measured[2].up_s, measured[2].bytes_up) == (0.5, None, 40)
