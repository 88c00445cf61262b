"""A host's data: the driver's file, the node's own, a shard, or rows that are sent; the same bits from each of them."""

from dataclasses import replace

import pytest
import ray
import torch

from actors.runtime.executor import JobData
from actors.runtime.worker import Identity
from actors.runtime.worker_data import JobBox, NodeData, WorkerData, refusal
from actors.runtime.worker_pool import RemoteWorker
from relief_ray.config.experiment import parse
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.data import open_dataset
from relief_ray.data.shard import write_shard
from relief_ray.data.window_set import WindowSet
from relief_ray.experiment.setup import prepare
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor, Worker, client_windows
from tests.actors.runtime.federation import make_job, make_states, make_targets, make_tasks, same_round, start_models

CONFIG = {
    "data": {"name": "dsa_mini", "subjects": [1, 2, 3], "stride_s": 10.0},
    "backbone": {"conv1": 2, "conv2": 2, "steps": 4, "fusion": 8},
}


@pytest.fixture(scope="module")
def job(run_cache):
    """Three clients of the packaged excerpt."""
    return prepare(parse(CONFIG)).job


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another machine: neither cache nor data."""
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path


def on_node(job, node, mode="auto"):
    return WorkerData(job, JobBox(job=None, data=mode, home="driver"), node)


def wanted(job, *clients):
    return {client_windows(c): (job.clients[c], job.fleet[c].modalities) for c in clients}


def test_the_driver_s_node_reads_the_driver_s_file(job, elsewhere):
    data = on_node(job, "driver", "node")
    assert data.node_data.kind == "driver" and data.lacking(wanted(job, 0, 1, 2)) == {}
    assert data.readable("client.0", job.clients[0]) is job.clients[0]


def test_another_node_reads_its_own(job, elsewhere):
    data = on_node(job, "board")
    windows = data.readable("client.1", job.clients[1])
    assert data.node_data.kind == "own" and data.lacking(wanted(job, 0, 1, 2)) == {}
    assert windows.signal_path.startswith(str(elsewhere)) and windows.rows is None, "mapped, not held"
    data.sent = {"client.1": None}
    assert data.readable("client.1", job.clients[1]).rows is None, "nothing is fetched that is here"
    same_values(windows, job.clients[1])


def same_values(windows, expected):
    assert isinstance(windows, WindowSet)
    loaded = windows.load(expected.modalities)
    assert all((loaded[m] == block).all() for m, block in expected.load().items())


def test_a_node_without_the_data_asks_for_rows_or_refuses(job, elsewhere):
    unknown = replace(job, data=replace(job.data, name="pamap2"))
    data = on_node(unknown, "board")
    assert data.lacking(wanted(job, 0, 2)) == wanted(job, 0, 2)
    data.sent = {"client.2": None}
    assert list(data.lacking(wanted(job, 0, 2))) == ["client.0"], "what was sent is here"
    with pytest.raises(UserError, match=r"node .* \(board\) lacks the data: .*relief-ray data fetch pamap2"):
        on_node(unknown, "board", "node").lacking(wanted(job, 0))


def test_a_dataset_in_the_package_is_missing_only_where_nothing_can_be_written(job, elsewhere, monkeypatch):
    monkeypatch.setenv("RELIEF_CACHE", "/proc/nowhere")
    data = on_node(job, "board").node_data
    assert data.kind == "none" and "set RELIEF_CACHE to a folder of yours" in refusal(job, data)
    command = (
        "relief-ray data shard dsa_mini --client 0 --set data.stride_s=10.0 --set 'data.subjects=[1,2,3]' --out DIR"
    )
    assert command in refusal(job, data)


def test_a_device_with_a_shard_serves_that_client_alone(job, elsewhere):
    config = parse(CONFIG).data
    write_shard(open_dataset(config), config, 2, elsewhere / "data" / "mine")
    data = on_node(job, "board")
    assert data.lacking(wanted(job, 2)) == {} and data.node_data.kind == "shard"
    same_values(data.readable("client.2", job.clients[2]), job.clients[2])
    with pytest.raises(UserError, match=r"shard of client 2 alone \(.*mine\).*windows client\.0"):
        data.lacking(wanted(job, 2, 0))
    data.sent = {"client.0": None}
    with pytest.raises(UserError, match=r"shard of client 2 alone"):
        data.lacking(wanted(job, 0))
    with pytest.raises(UserError, match=r"shard of client 2 alone .*windows test"):
        data.lacking(Worker(job).tested_windows("test", (0, 1)))
    assert on_node(job, "board", "ship").lacking(wanted(job, 0)), "rows that are sent replace any data"


def test_clients_change_places_with_their_likes_for_a_shard(job):
    """Hosts 1 to 3 have equal demands; the shard of client 3 is on node y, that of client 2 nowhere."""
    nodes = ["driver", "x", "y", "z"]
    workers = [
        RemoteWorker(index=i, name=f"client-{i}", handle=None, identity=replace(IDENTITY, node=node))
        for i, node in enumerate(nodes)
    ]
    data = JobData(job, None, RuntimeConfig(data="ship"), workers)
    data._nodes = {
        "x": NodeData(kind="shard", machine="x", shards={1: ()}),
        "y": NodeData(kind="shard", machine="y", shards={3: (), 0: ()}),
    }
    placed = data.by_shards({n: n for n in range(4)}, lambda i, j: 0 not in (i, j))
    assert placed == {0: 0, 1: 1, 2: 3, 3: 2}, "client 0 has a demand of its own"
    assert [worker.name for worker in workers] == ["client-0", "client-1", "client-3", "client-2"]


IDENTITY = Identity(version="", digest="", python="", torch="", hostname="", pid=0, node="")


@pytest.mark.ray
@pytest.mark.parametrize("options", [{"num_hosts": 2}, pytest.param({"mode": "actors"}, marks=pytest.mark.slow)])
def test_rows_that_are_sent_give_the_bits_of_the_file(on_warm_hosts, tmp_path, options):
    job = make_job(tmp_path, 4)
    serial, sent = SerialExecutor(job), on_warm_hosts(job, data="ship", **options)
    rounds = [sent.train(r, start_models(job), make_tasks(job), make_states(job)) for r in (1, 2, 3)]
    for number, trained in enumerate(rounds, 1):
        assert same_round(trained, serial.train(number, start_models(job), make_tasks(job), make_states(job)))
    models, targets, states = start_models(job), make_targets(job), make_states(job)
    counts, expected = (e.evaluate(models, targets, states, "test") for e in (sent, serial))
    assert all(torch.equal(counts[label], expected[label]) for label in expected)
    owned = sum(len(ray.get(ref).columns) for name, ref in sent._data._sent.items() if name.startswith("client"))
    assert owned == sum(len(c.modalities) for c in job.fleet.clients), "no sensor but the client's own"
    whole = sum(windows.cut().rows.nbytes for windows in (*job.clients, job.parts["test"]))
    assert 0 < sent.facts()["data_sent_bytes"] < whole, "each client's rows once, and the tested ones"


@pytest.mark.ray
def test_on_one_machine_no_rows_are_sent(on_warm_hosts, tmp_path):
    job = make_job(tmp_path, 4)
    for mode in ("auto", "node"):
        executor = on_warm_hosts(job, num_hosts=2, data=mode)
        trained = executor.train(1, start_models(job), make_tasks(job), make_states(job))
        executor.evaluate(start_models(job), make_targets(job), make_states(job), "test")
        facts = executor.facts()
        assert (facts["data"], facts["data_nodes"], facts["data_sent_bytes"]) == (mode, {}, 0)
        assert "_here" not in vars(executor), "hosts of the driver's node test"
        down, up = (
            2 * 4 * job.build().layout.numel,
            sum(4 * job.build().layout.num_values(t.up) for t in make_tasks(job)),
        )
        assert trained.moved_bytes < down + up + 50_000


@pytest.mark.ray
def test_the_driver_s_process_tests_where_its_node_has_no_host(on_warm_hosts, tmp_path):
    job = make_job(tmp_path, 4)
    executor = on_warm_hosts(job, num_hosts=2, data="node")
    for worker in executor.pool.workers:
        worker.identity = replace(worker.identity, node="board")
    models, targets, states = start_models(job), make_targets(job), make_states(job)
    counts, expected = (e.evaluate(models, targets, states, "test") for e in (executor, SerialExecutor(job)))
    assert "_here" in vars(executor) and list(counts) == list(expected)
    assert all(torch.equal(counts[label], expected[label]) for label in expected)
