"""Formats on the wire: the plain loop's bits wherever clients run, and charges that are the bytes which travelled."""

from dataclasses import replace

import pytest

import actors.runtime.executor as executors
from actors.runtime.serialization import EncodedSums, unpack
from relief_ray.core.codec import FLOAT32, Broadcast, Wire
from relief_ray.core.messages import Collect
from relief_ray.training.executor import SerialExecutor
from tests.actors.runtime import federation
from tests.actors.runtime.federation import make_job, make_states, make_tasks, same_round, start_models

pytestmark = pytest.mark.ray

FULL = "int8 up, bfloat16 down, reachable"
WIRES = {
    "float32": FLOAT32,
    "float16": Wire(up="float16", down="float16"),
    "int8 up, float16 down": Wire(up="int8", down="float16"),
    FULL: Wire(up="int8", down="bfloat16", reachable=True),
    "reachable": Wire(reachable=True),
}


def job_with(tmp_path, wire, **changes):
    job = make_job(tmp_path, 6, **changes)
    return replace(job, trainer=replace(job.trainer, wire=wire))


def round_of(job, round_):
    """Arguments of a round, whose models are what clients decode."""
    models = Broadcast(layout=job.layout, form=job.trainer.wire.down)(start_models(job))
    return round_, models, make_tasks(job), make_states(job)


@pytest.fixture
def travelled(monkeypatch):
    """Bytes of the payloads that travel, by direction: of what a client receives, and of what it sends."""
    seen = {"down": {}, "up": {}}
    add, supply = executors.add_answer, executors.RayExecutor._supply

    def counted(gather, call, answer, layout):
        rest = unpack(answer.rest)
        for (_, part), result, sums in zip(call.pieces, rest, unpack(answer.sums), strict=True):
            payload = sums.payload if isinstance(sums, EncodedSums) else result.updates[0].payload
            seen["up"][part[0].client] = len(payload)
        return add(gather, call, answer, layout)

    def supplied(self, models):
        own = supply(self, models)

        def of(task):
            ref = own(task)
            model = unpack(executors.ray.get(ref))
            seen["down"][task.client] = len(model.payload) + len(model.rows)
            return ref

        return of

    monkeypatch.setattr(executors, "add_answer", counted)
    monkeypatch.setattr(executors.RayExecutor, "_supply", supplied)
    return seen


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("reachable", [False, True])
def test_kernels_round_to_int8_as_the_codec_does(tmp_path, reachable, stack):
    """Where payloads are kept, updates are rounded by the codec; sums, squares and shares of underflow are the same."""
    job = job_with(tmp_path, wire := Wire(up="int8", down="float16", reachable=reachable))
    kernels, codec = (
        replace(job, trainer=replace(job.trainer, engine="fused", stack=stack, wire=each))
        for each in (wire, replace(wire, keeps_payload=True))
    )
    rounds = [SerialExecutor(each).train(*round_of(each, 1)) for each in (kernels, codec)]
    assert same_round(*rounds)
    assert [r.underflow for r in rounds[0].worked] == [r.underflow for r in rounds[1].worked]


REDUCTIONS = {"sums": None, "single updates": Collect()}
PAIRS = [
    pytest.param(wire, reduction, id=f"{name}, {kind}")
    for name, wire in WIRES.items()
    for kind, reduction in REDUCTIONS.items()
    if kind == "sums" or name in (FULL, "float32")
]


@pytest.mark.ci
@pytest.mark.parametrize(("wire", "reduction"), PAIRS)
def test_clients_with_a_worker_each_have_the_plain_loops_bits_and_are_charged_what_travelled(
    on_ray, tmp_path, travelled, wire, reduction
):
    job = job_with(tmp_path, wire, **({} if reduction is None else {"reduction": reduction}))
    serial, on_workers = SerialExecutor(job), on_ray(job, federation.TYPES, mode="actors")
    for round_ in (1, 2):
        arguments = round_of(job, round_)
        trained, plain = on_workers.train(*arguments), serial.train(*arguments)
        assert same_round(trained, plain)
        for receipt, other in zip(trained.worked, plain.worked, strict=True):
            client = receipt.assignment.client
            sizes = receipt.bytes_down, receipt.bytes_up
            assert sizes == (other.bytes_down, other.bytes_up)
            assert sizes == (travelled["down"][client], travelled["up"][client])
    assert on_workers.facts()["num_lost_calls"] == 0


@pytest.mark.ci
@pytest.mark.parametrize("wire", [WIRES["int8 up, float16 down"], WIRES["reachable"]], ids=["formats", "reachable"])
def test_packed_workers_send_sums_of_decoded_values(on_ray, tmp_path, wire):
    job = job_with(tmp_path, wire)
    arguments = round_of(job, 2)
    trained, plain = on_ray(job, num_hosts=3).train(*arguments), SerialExecutor(job).train(*arguments)
    assert same_round(trained, plain)
    assert [r.bytes_up for r in trained.worked] == [r.bytes_up for r in plain.worked]
