"""Hosts that fall silent, die or hang: how long a round waits for them, what it says, and when they are used again."""

import os
import signal
import time
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import ActorUnavailableError

from actors.runtime.errors import EvaluationFailed
from actors.runtime.limits import FIRST_S, LEAST_S, Deadline, Limits
from actors.runtime.serialization import pack
from actors.runtime.worker import EvalAnswer, identify
from actors.runtime.worker_pool import Call, RemoteWorker, WorkerPool
from relief_ray.core.federated import RoundVoid
from relief_ray.support.errors import LeftOut
from relief_ray.training.executor import SerialExecutor
from tests.actors.runtime import federation
from tests.actors.runtime.federation import make_job, make_states, make_targets, make_tasks, same_round, start_models

# Limits ----------------------------------------------------------------------------------------------------------


def test_a_fixed_limit_is_that_of_one_client_and_grows_with_those_that_wait_for_their_turn():
    limits = Limits(setting=10.0)
    assert (limits.one_s, limits.round_s(1), limits.round_s(4)) == (10.0, 10.0, 40.0)
    limits.mean_s = 0.1
    assert (limits.call_s(1), limits.call_s(3)) == (10.0, 20.0)
    assert (limits.round_s(1), limits.round_s(4)) == (10.0, 13.0)
    limits.note(99.0, 99.0)
    assert limits.one_s == 10.0 and limits.news() is None


def test_an_automatic_limit_is_ten_times_the_slowest_answer_and_a_minute_at_least():
    limits = Limits(setting="auto")
    assert limits.one_s == FIRST_S and limits.news() is None
    limits.note(0.4, 0.4)
    assert limits.one_s == LEAST_S == 60.0
    assert limits.news() is None, "nobody needs to know while answers are quick"
    limits.note(5.9, 5.9)
    assert limits.one_s == LEAST_S and limits.news() is None
    limits.note(9.0, 9.0)
    assert limits.one_s == 90.0
    assert limits.news() == (
        "a client has 90 s for its round from now on (runtime.client_timeout_s=auto: 10 x the slowest answer so far, "
        "9 s, at least 60 s)"
    )
    limits.note(0.2, 0.2)
    assert limits.one_s == 90.0 and limits.news() is None, "the slowest so far, told once"
    limits.note(10.0, 10.0)
    assert limits.one_s == 100.0 and limits.news() is None, "not much longer"
    limits.note(14.0, 14.0)
    assert limits.one_s == 140.0 and limits.news().startswith("a client has 140 s")


def test_before_the_first_answer_one_client_has_ten_minutes_and_each_further_one_a_minute():
    """A core with fifty clients in turn had more than eight hours before."""
    limits = Limits(setting="auto")
    assert (limits.call_s(1), limits.call_s(4), limits.round_s(50)) == (600.0, 780.0, 600.0 + 49 * 60.0)
    limits.note(0.5, 2.0, num_clients=4)
    assert limits.mean_s == 0.5 and limits.round_s(50) == 60.0 + 49 * 5.0, "the first answers shorten what is left"
    limits.note(0.5, 6.0, num_clients=4)
    assert limits.mean_s == 1.0
    limits.end_round()
    limits.note(0.5, 0.1)
    assert limits.mean_s == 1.0, "that of the last round"
    limits.end_round()
    assert limits.mean_s == pytest.approx(0.1)
    limits.end_round()
    assert limits.mean_s == pytest.approx(0.1), "a round without answers teaches nothing"


def test_a_client_with_more_work_than_any_that_answered_has_more_time_in_proportion():
    limits = Limits(setting="auto", due_work=500.0)
    limits.note(2.0, 2.0, work=100.0)
    assert limits.one_s == 100.0, "five times as much work, and the slowest took 2 s"
    limits.note(2.0, 2.0, work=1.0)
    assert limits.one_s == 100.0, "the most work so far"
    limits.due_work = 1e6
    assert limits.one_s == FIRST_S, "never more than before any answer"
    limits.note(70.0, 70.0, work=1.0)
    assert limits.one_s == 700.0, "but for the slowest answer itself"
    limits.end_round()
    assert limits.one_s == 700.0 and limits.due_work == 0.0


def test_a_device_type_that_was_not_heard_yet_keeps_the_first_limit():
    """A type C that is 55 times slower than type A would be cut for ever, and never be heard."""
    limits = Limits(setting="auto", due_types=frozenset("AC"))
    limits.note(1.0, 1.0, types="A")
    assert limits.one_s == FIRST_S
    limits.note(55.0, 55.0, types="C")
    assert limits.one_s == 550.0
    limits.end_round()
    limits.due_types = frozenset("ABC")
    assert limits.one_s == FIRST_S, "a type that takes part for the first time"
    assert Limits(setting=9.0, due_types=frozenset("C")).one_s == 9.0


# A pool on a clock of its own --------------------------------------------------------------------------------------


class Played:
    """A pool whose hosts never answer, on a clock that is moved by hand."""

    def __init__(self, monkeypatch, number=1, **options):
        self.now_s, self.notes = 100.0, []
        monkeypatch.setattr("actors.runtime.worker_pool.time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("actors.runtime.worker_pool.ray.kill", lambda handle, no_restart: None)
        monkeypatch.setattr("actors.runtime.worker_pool.hanging_in", lambda actor_id: "")  # asks Ray, which is not here
        monkeypatch.setattr(
            "actors.runtime.worker_pool.ray.wait",
            lambda refs, timeout, num_returns=0: (refs if num_returns else [], []),  # no answer, but to probes
        )
        monkeypatch.setattr("actors.runtime.worker_pool.ray.get", self.get)
        method, self.answer, self.num_asked = SimpleNamespace(remote=lambda: object()), None, 0
        handle = SimpleNamespace(train=method, hello=method, _actor_id=b"")
        self.identity = replace(identify(), node="n", pid=1)
        self.workers = [
            RemoteWorker(index=i, name=f"host-{i}", handle=handle, identity=self.identity) for i in range(number)
        ]
        self.pool = WorkerPool(
            workers=self.workers,
            per_node={"n": number},
            should_stop=lambda: False,
            on_note=self.notes.append,
            **options,
        )

    def get(self, ref, timeout):
        """What the hosts answer now; None: nothing."""
        self.num_asked += 1
        if self.answer is None:
            raise ActorUnavailableError("it cannot be reached", None)
        return self.answer

    def lose(self, cause, seconds=0.0):
        """The first host loses a call, is silent for so long, and answers as another process of its node."""
        self.pool._lose(self.workers[0], "no answer", deque(), cause)
        self.answer = None
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.pool._probe()
            self.now_s += 0.1
        self.identity = self.answer = replace(self.identity, pid=self.identity.pid + 1)
        self.now_s += 5.0
        self.pool._probe()

    def hopeless(self, todo, elapsed_s):
        self.now_s += elapsed_s
        return list(self.pool._hopeless(todo, elapsed_s))

    def ask(self):
        """The question that the pool would ask of every lost host."""
        for worker in self.workers:
            worker.probe, worker.probe_at_s = object(), self.now_s


def call(**more):
    return Call(method="train", args=(), clients=(0,), **{"limits": Limits(setting=10.0), **more})


def until(at_s):
    return Deadline(limits=Limits(setting=at_s - 100.0), began_s=100.0)


def test_a_lost_host_is_waited_for_once_per_loss(monkeypatch):
    played = Played(monkeypatch, lost_wait_s=60.0)
    (worker,), todo = played.workers, deque([call()])
    worker.suspect("its node died")
    played.ask()
    assert played.hopeless(todo, 59.0) == [] and played.hopeless(todo, 0.9) == []
    ((_, lost),) = played.hopeless(todo, 0.2)
    assert (lost.why, lost.cause, list(todo)) == ("host-0: its node died", "lost", [])
    # The next round waits no longer for the same question.
    assert len(played.hopeless(deque([call()]), 0.0)) == 1
    # Asked anew, it has half a second to say that it is back; where asking failed, none.
    todo, worker.probe = deque([call()]), None
    assert played.hopeless(todo, 0.0) == []
    played.ask()
    assert played.hopeless(todo, 0.3) == []
    assert len(played.hopeless(todo, 0.3)) == 1
    worker.probe, worker.probe_failed = None, True
    assert len(played.hopeless(deque([call()]), 0.1)) == 1
    worker.suspect("no answer", "timeout")
    todo = deque([call()])
    played.ask()
    assert played.hopeless(todo, 59.0) == [], "another loss, another wait"
    assert [lost.cause for _, lost in played.hopeless(todo, 2.0)] == ["timeout"]


def test_a_host_that_one_round_went_on_without_delays_no_later_one(monkeypatch):
    played = Played(monkeypatch)
    (worker,) = played.workers
    worker.suspect("no answer", "timeout")
    played.ask()
    assert played.hopeless(deque([call()]), 1.0) == []
    played.pool.pass_over(0)
    assert len(played.hopeless(deque([call()]), 0.0)) == 1
    worker.suspect("no answer", "timeout")
    played.ask()
    assert played.hopeless(deque([call()]), 1.0) == [], "another loss, another wait"


def test_a_void_round_is_tried_again_when_lost_hosts_are_back_or_were_waited_for(monkeypatch):
    played = Played(monkeypatch, number=2, lost_wait_s=60.0)

    def sleep(seconds):
        played.now_s += seconds
        if played.now_s > 105.0:
            played.workers[0].trouble = ""

    monkeypatch.setattr("actors.runtime.worker_pool.time.sleep", sleep)
    monkeypatch.setattr(WorkerPool, "_probe", lambda self: None)
    played.workers[0].suspect("no answer", "timeout")
    played.pool.pass_over(0)
    played.pool.recover()
    assert played.now_s == pytest.approx(105.1, abs=0.2)
    played.workers[1].suspect("no answer", "timeout")
    played.pool.recover()
    assert played.now_s == pytest.approx(165.3, abs=0.5)
    played.pool.recover()
    assert played.now_s == pytest.approx(165.3, abs=0.5), "once per loss"


def test_time_in_which_no_call_needs_the_host_is_no_wait(monkeypatch):
    played = Played(monkeypatch, number=2)
    played.workers[0].suspect("its node died")
    anywhere = deque([call()])
    assert played.hopeless(anywhere, 1e6) == [] and played.workers[0].waited_s == 0.0, "the other host may take it"
    played.workers[1].suspect("its node died")
    played.ask()
    assert played.hopeless(anywhere, 59.0) == [] and len(played.hopeless(anywhere, 2.0)) == 1


def test_at_the_rounds_end_nothing_is_waited_for(monkeypatch):
    played = Played(monkeypatch, number=2)
    played.workers[1].suspect("its node died")
    bound, free = call(worker=1, deadline=until(110.0)), call(deadline=until(110.0))
    todo = deque([free, bound, call(deadline=until(111.0))])
    assert played.hopeless(todo, 9.9) == []
    over = played.hopeless(todo, 0.2)
    assert [c for c, _ in over] == [free, bound] and len(todo) == 1
    assert [lost.cause for _, lost in over] == ["lost", "lost"] and "its node died" in over[1][1].why


def test_a_call_that_runs_is_ended_with_the_round_whatever_its_own_limit(monkeypatch):
    played = Played(monkeypatch)
    (worker,), todo = played.workers, deque()
    worker.send(call(limits=None, deadline=until(105.0)))
    played.now_s = 104.9
    assert list(played.pool._overdue(todo)) == []
    played.now_s = 105.1
    ((_, lost),) = played.pool._overdue(todo)
    why = "host-0: no answer within 5.1 s{}; raise runtime.client_timeout_s if it was only slow"
    assert lost == LeftOut(why=why.format(", when the round's time was over"), cause="timeout")
    assert not worker.usable and worker.cause == "timeout"
    assert played.notes == [lost.why]


def test_a_call_that_is_over_its_own_limit_is_not_said_to_be_over_the_rounds(monkeypatch):
    played = Played(monkeypatch)
    played.workers[0].send(call(limits=Limits(setting=5.0), deadline=until(200.0)))
    played.now_s = 105.1
    ((_, lost),) = played.pool._overdue(deque())
    assert lost.why == "host-0: no answer within 5.1 s; raise runtime.client_timeout_s if it was only slow"


def test_a_host_that_was_silent_six_times_is_used_again_once_it_answers(monkeypatch):
    played = Played(monkeypatch)
    (worker,) = played.workers
    for _ in range(6):
        played.lose("timeout")
        assert worker.usable
    played.lose("timeout", seconds=60.0)
    assert worker.usable and played.notes[-1] == "host-0: answers again"
    worker.send(call())
    assert len(worker.flights) == 1


def test_a_lost_node_costs_a_host_nothing_and_a_cut_link_neither(monkeypatch):
    played = Played(monkeypatch)
    for attempt in range(6):
        played.identity = replace(played.identity, node=f"node-{attempt}")
        played.lose("lost")
        assert played.workers[0].usable
        played.identity = replace(played.identity, pid=played.identity.pid - 1)  # the same process as before
        played.lose("lost")
        assert played.workers[0].usable and played.workers[0].num_deaths == 0


def test_a_host_whose_process_dies_on_every_call_is_given_up_and_an_answer_clears_it(monkeypatch):
    played = Played(monkeypatch)
    (worker,) = played.workers
    for _ in range(4):
        played.lose("lost")
    worker.send(call())
    played.answer = EvalAnswer(identity=played.identity, counts=pack({}))
    played.pool._take(worker, worker.land(), deque())
    for _ in range(4):
        played.lose("lost")
    assert worker.usable
    played.lose("lost")
    assert worker.gone and not worker.usable
    why = "host-0: no answer; it is given up, since its process died 5 times without an answer"
    assert played.notes[-1] == why
    assert [lost.why for _, lost in played.hopeless(deque([call()]), 0.0)] == [why]


def test_a_silent_host_is_asked_less_and_less_often_and_delays_no_round_meanwhile(monkeypatch):
    played = Played(monkeypatch, lost_wait_s=60.0)
    (worker,) = played.workers
    played.pool._lose(worker, "no answer", deque(), "timeout")
    for _ in range(600):
        played.pool._probe()
        played.now_s += 0.1
    assert 12 <= played.num_asked <= 20, "within a minute"
    worker.waited_s, worker.probe_failed = 61.0, False
    worker.probe_at_s = played.now_s + 3.0
    assert len(played.hopeless(deque([call()]), 0.0)) == 1, "asked a moment ago: a new round waits for no new question"


def test_an_answer_shortens_the_time_of_calls_that_are_under_way(monkeypatch):
    """Sent in the first round of a process, when nobody knows how long a client takes."""
    played, limits = Played(monkeypatch, number=2), Limits(setting="auto")
    deadline = Deadline(limits=limits, began_s=played.now_s)
    for worker in played.workers:
        worker.send(call(limits=limits, deadline=deadline))
    waiting = deque([call(limits=limits, deadline=deadline)])
    played.now_s += 59.0
    limits.note(0.5, 0.5)
    played.workers[0].land()
    assert list(played.pool._overdue(deque())) == [] == played.hopeless(waiting, 0.0)
    played.now_s += 2.0
    ((_, lost),) = played.pool._overdue(deque())
    assert lost.why.startswith("host-1: no answer within 61 s")
    assert [lost.cause for _, lost in played.hopeless(waiting, 0.0)] == ["timeout"]


# Real processes ----------------------------------------------------------------------------------------------------


def round_of(executor, job, round_, tasks=None):
    """The outcome of a round and its seconds."""
    began_s = time.monotonic()
    trained = executor.train(round_, start_models(job), tasks or make_tasks(job), make_states(job))
    return trained, time.monotonic() - began_s


@pytest.mark.slow
@pytest.mark.ray
def test_a_silent_host_costs_one_limit_and_is_used_again_once_it_answers(on_ray, tmp_path):
    """Ray ends the frozen process within seconds and starts it anew."""
    job, notes = make_job(tmp_path, 3), []
    executor = on_ray(job, federation.TYPES, mode="actors", client_timeout_s=3.0)
    executor.pool.on_note = notes.append
    expected = SerialExecutor(job).train(2, start_models(job), make_tasks(job), make_states(job))
    assert same_round(round_of(executor, job, 2)[0], expected)
    os.kill(executor.pool.workers[2].identity.pid, signal.SIGSTOP)
    trained, seconds = round_of(executor, job, 2)
    assert seconds < 5.0 and list(trained.rejected) == [2] and trained.rejected[2].cause == "timeout"
    others = make_tasks(job)[:2]
    alone = SerialExecutor(job).train(2, start_models(job), others, make_states(job))
    assert [r.sq_norm for r in trained.reduced.receipts] == [r.sq_norm for r in alone.reduced.receipts]
    assert "no answer within 3" in notes[0] and executor.facts()["num_lost_calls"] == 1
    until_s = time.monotonic() + 60.0
    while (trained := round_of(executor, job, 2)[0]).rejected and time.monotonic() < until_s:
        pass
    assert same_round(trained, expected) and any("answers again" in note for note in notes)


@pytest.mark.slow
@pytest.mark.ray
def test_a_host_that_hangs_in_the_first_round_costs_the_least_limit_as_soon_as_another_has_answered(
    on_ray, tmp_path, monkeypatch
):
    monkeypatch.setattr("actors.runtime.limits.LEAST_S", 4.0)
    job = make_job(tmp_path, 3)
    executor = on_ray(job, mode="actors", placement="virtual")
    os.kill(executor.pool.workers[2].identity.pid, signal.SIGSTOP)
    trained, seconds = round_of(executor, job, 2)
    assert list(trained.rejected) == [2] and trained.rejected[2].cause == "timeout"
    assert seconds < 60.0, "600 s are for a round in which nobody answers"


@pytest.mark.slow
@pytest.mark.ray
def test_a_host_that_hangs_in_a_test_costs_one_limit_and_its_round_is_tried_again(on_ray, tmp_path):
    job = make_job(tmp_path, 3)
    executor = on_ray(job, num_hosts=2, client_timeout_s=3.0)
    arguments = start_models(job), make_targets(job), make_states(job), "test"
    expected = SerialExecutor(job).evaluate(*arguments)
    os.kill(executor.pool.workers[1].identity.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    with pytest.raises(EvaluationFailed, match=r"evaluation on 'test': .*: no answer within 3"):
        executor.evaluate(*arguments)
    assert time.monotonic() - began_s < 6.0, "no second limit, and no wait for the host"
    executor.pool.recover()
    counts = executor.evaluate(*arguments)
    assert all(torch.equal(counts[label], expected[label]) for label in expected)


@pytest.mark.ci
@pytest.mark.ray
def test_a_share_of_a_test_that_is_lost_twice_makes_the_round_void(on_warm_hosts, tmp_path, monkeypatch):
    job = make_job(tmp_path, 3)
    executor, tries = on_warm_hosts(job, num_hosts=1), []
    arguments = start_models(job), make_targets(job), make_states(job), "test"

    def lose(pool, todo):
        while todo:
            tries.append(todo.popleft())
            yield tries[-1], LeftOut(why="host-0: its process died", cause="lost")

    monkeypatch.setattr(WorkerPool, "run", lose)
    with pytest.raises(EvaluationFailed, match="evaluation on 'test': host-0: its process died") as caught:
        executor.evaluate(*arguments)
    assert isinstance(caught.value, RoundVoid) and [call.attempt for call in tries] == [0, 1]
    assert tries[0].until_s == tries[1].until_s < time.monotonic() + FIRST_S, "one limit for both"


@pytest.mark.ci
@pytest.mark.ray
def test_on_timeout_drop_sends_nothing_twice(on_ray, tmp_path):
    """A host for all: with `retry` the client would be sent again, and would answer the second time."""
    from functools import partial

    from tests.actors.runtime.test_executor import with_refine

    job = make_job(tmp_path, 4)
    hanging = with_refine(job, partial(federation.hangs_once, tmp_path))
    executor = on_ray(hanging, num_hosts=1, client_timeout_s=3.0, on_timeout="drop")
    trained, _ = round_of(executor, hanging, 2)
    assert list(trained.rejected) == [2] and trained.rejected[2].cause == "timeout"
    assert [r.assignment.client for r in trained.reduced.receipts] == [0, 1, 3] and executor.pool.num_lost == 1
