"""Which host a call goes to, played on a clock of its own: the pool's choice is real, hosts only take time."""

from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest

from actors.runtime.limits import Deadline, Limits
from actors.runtime.serialization import pack
from actors.runtime.worker import EvalAnswer, identify
from actors.runtime.worker_pool import Call, RemoteWorker, WorkerPool
from relief_ray.support.errors import UserError


def call(work, **more):
    return Call(method="train", args=(), clients=(0,), work=work, **more)


class Player:
    """Sends calls as the pool would and lets them take ``work / speed``."""

    def __init__(self, speeds, monkeypatch, known=True, places=None):
        self.now_s = 0.0
        monkeypatch.setattr("actors.runtime.worker_pool.time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("actors.runtime.worker_pool.hanging_in", lambda actor_id: "")  # asks Ray, which is not here
        identity = SimpleNamespace(node="n")
        handle = SimpleNamespace(train=SimpleNamespace(remote=lambda: object()), _actor_id=b"")
        self.speeds = speeds
        self.workers = [
            RemoteWorker(index=i, name=f"host-{i}", handle=handle, identity=identity, work_s=1 / v if known else None)
            for i, v in enumerate(speeds)
        ]
        self.pool = WorkerPool(workers=self.workers, per_node={"n": places or len(speeds)}, should_stop=lambda: False)

    def play(self, works):
        """Seconds until all is done, and the most calls that lay with a host."""
        todo, deepest = deque(call(w) for w in works), 0
        while todo or any(h.flights for h in self.workers):
            self.pool._send(todo)
            deepest = max(deepest, *(len(h.flights) for h in self.workers))
            ends = {
                h.index: h.flights[0].since_s + h.flights[0].call.work / self.speeds[h.index]
                for h in self.workers
                if h.flights
            }
            first = min(ends, key=ends.__getitem__)
            self.now_s = ends[first]
            self.workers[first].land()
        return self.now_s, deepest


@pytest.mark.parametrize(
    ("works", "speeds", "makespan_s"),
    [
        # Two hosts of one speed, calls by descending work: as if each had waited for a free host.
        ([10, 3, 3], [1, 1], 10),
        ([10, 4, 4, 1], [1, 1], 10),
        ([10, 2, 2, 2, 2], [1, 1], 10),
        ([3, 3, 3, 2, 2, 2, 1, 1], [1, 1], 9),
        # A host five times slower gets one of four.
        ([1, 1, 1, 1], [1, 0.2], 5),
        ([1] * 6, [1, 1, 1], 2),
    ],
)
def test_a_second_call_at_hand_costs_no_balance(works, speeds, makespan_s, monkeypatch):
    found_s, deepest = Player(speeds, monkeypatch).play(works)
    assert found_s == pytest.approx(makespan_s) and deepest == 2


def test_a_host_that_was_never_timed_gets_one_call_at_a_time(monkeypatch):
    assert Player([1, 1], monkeypatch, known=False).play([1] * 6) == (3.0, 1)


def test_a_call_that_was_lost_before_has_a_host_for_itself(monkeypatch):
    player, suspect = Player([1], monkeypatch), call(1, attempt=1)
    (worker,), todo = player.workers, deque([call(1), suspect, call(1), call(1)])
    lying = []
    while todo or worker.flights:
        player.pool._send(todo)
        lying.append([flight.call.attempt for flight in worker.flights])
        worker.land()
    assert [1] in lying and all(attempts == [1] for attempts in lying if 1 in attempts)
    assert [0, 0] in lying, "others lie there in twos"


def test_no_more_hosts_of_a_node_work_than_it_has_places(monkeypatch):
    player = Player([1, 1, 1], monkeypatch, places=2)
    todo = deque(call(1) for _ in range(6))
    player.pool._send(todo)
    assert [len(h.flights) for h in player.workers] == [2, 2, 0] and len(todo) == 2


def test_a_call_waits_for_its_own_host(monkeypatch):
    player = Player([1, 1], monkeypatch)
    player.pool._send(deque([call(1, worker=1), call(1, worker=1), call(1, worker=1)]))
    assert [len(h.flights) for h in player.workers] == [0, 2]


def test_calls_queued_behind_a_lost_one_come_back_in_order(monkeypatch):
    player = Player([1, 0.1], monkeypatch)
    first, behind = call(1), call(0.5)
    player.workers[0].send(first)
    player.workers[0].send(behind)
    lost, todo = player.workers[0].land(), deque([call(0.1)])
    why = player.pool._lose(player.workers[0], "gone", todo)
    assert lost.call is first and todo[0] is behind and len(todo) == 2 and "gone" in why.why
    assert not player.workers[0].flights and not player.workers[0].usable


def test_a_host_whose_time_is_over_is_killed_since_it_would_hold_its_place(monkeypatch):
    killed = []
    monkeypatch.setattr("actors.runtime.worker_pool.ray.kill", lambda handle, no_restart: killed.append(no_restart))
    come = []
    monkeypatch.setattr(
        "actors.runtime.worker_pool.ray.wait", lambda refs, timeout: ([r for r in refs if r in come], [])
    )
    player = Player([1, 1, 1], monkeypatch)
    for worker in player.workers:
        worker.send(replace(call(1), limits=Limits(setting=5.0)))
    player.now_s = 4.9
    assert list(player.pool._overdue(deque())) == [] and not killed
    player.workers[1].land()
    come.append(player.workers[2].flights[0].ref)  # heard of after the driver was busy for a while
    player.now_s = 5.1
    ((_, lost),) = player.pool._overdue(deque())
    assert lost.cause == "timeout" and killed == [False], "and Ray starts it anew"


def test_a_call_whose_time_is_over_is_not_sent(monkeypatch):
    player = Player([1, 1], monkeypatch)
    todo = deque([call(1, deadline=Deadline(limits=Limits(setting=5.0), began_s=0.0)), call(1)])
    player.now_s = 5.1
    player.pool._send(todo)
    assert [len(worker.flights) for worker in player.workers] == [1, 0] and len(todo) == 1
    ((_, lost),) = player.pool._hopeless(todo, 0.0)
    assert lost.cause == "timeout" and not todo and all(worker.usable for worker in player.workers)


def test_calls_without_work_are_shared_out(monkeypatch):
    player = Player([1, 1], monkeypatch)
    player.pool._send(deque([call(0.0), call(0.0)]))
    assert [len(worker.flights) for worker in player.workers] == [1, 1]


def test_idle_workers_of_a_node_that_lost_sums_are_asked_and_passed_over_where_there_are_others(monkeypatch):
    player, notes = Player([1, 1, 1], monkeypatch), []
    frozen, busy, healthy = player.workers
    frozen.identity = busy.identity = SimpleNamespace(node="frozen")
    busy.send(call(1))
    player.pool.on_note = notes.append
    player.pool.doubt({"frozen"}, is_over=False)
    assert frozen.trouble and not frozen.passed_over and busy.usable and healthy.usable
    assert notes == ["host-0: its node did not give out the sums that it held"]
    assert player.pool.is_doubtful({"frozen"}) and not player.pool.is_doubtful({"n"})
    player.pool.doubt({"frozen"}, is_over=True)
    assert frozen.passed_over and not busy.passed_over and len(notes) == 1
    player.pool.doubt({"frozen", "n"}, is_over=True)
    assert healthy.trouble and not healthy.passed_over, "without it the next round would have nobody"


@pytest.mark.parametrize("change", [{"digest": "f" * 64}, {"version": "0.0.1"}])
def test_an_answer_of_a_host_that_runs_other_code_is_refused(monkeypatch, change):
    """Ray may have started its process anew where the code has changed meanwhile."""
    player = Player([1], monkeypatch)
    (worker,) = player.workers
    worker.send(call(1))
    answer = EvalAnswer(identity=replace(identify(), **change), counts=pack({}))
    monkeypatch.setattr("actors.runtime.worker_pool.ray.get", lambda ref, timeout: answer)
    with pytest.raises(UserError, match="install the same version on every node"):
        player.pool._take(worker, worker.land(), deque())
