"""Runs a round's clients on Ray workers (an ``Executor``), with the bits of the plain loop.

Packed: blocks go to the worker that is free first, or a share of a short round to each. Actors: every client has a
worker of its own. The sums are the same.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, permutations

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from torch import Tensor

from actors.runtime.errors import EvaluationFailed, raise_cause
from actors.runtime.limits import Deadline, Limits
from actors.runtime.physical import ModelBox, RoundLog
from actors.runtime.placement import Resources, WorkerGroup, open_workers, slots_per_node
from actors.runtime.scheduling import Scheduler, one_by_one
from actors.runtime.serialization import EncodedModel, Packed, pack, unpack
from actors.runtime.worker import (
    FETCH_S,
    Answer,
    EvalAnswer,
    EvalRequest,
    NeedsRows,
    SumAnswer,
    SumsRef,
    TrainAnswer,
    TrainRequest,
    added_up,
    decoded,
    identify,
)
from actors.runtime.worker_data import JobBox, NodeData, refusal
from actors.runtime.worker_pool import Call, Piece, RemoteWorker, WorkerPool, await_workers
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.core.codec import decode
from relief_ray.core.groups import GroupLayout
from relief_ray.core.messages import Assignment, ClientId, EvalTarget, Json, Models, States, Trained, WeightedSum
from relief_ray.data.window_set import WindowSet
from relief_ray.experiment.experiment import ignore, never
from relief_ray.server.reduction import Accumulator, Node, Sums, Tree, blocks, evenly
from relief_ray.support.errors import LeftOut, UserError
from relief_ray.training.executor import CALIBRATION, Worker, client_windows, part_windows
from relief_ray.training.job import BlockResult, Job, combine
from relief_ray.training.local_step import NOTHING

# The executor's side of a job's data: asks every node what it has, and sends rows to workers that ask for them.

# A board may take minutes to parse a dataset for the first time.
_PARSE_S = 1800.0


class JobData:
    """A job's data by node, and the rows that were sent."""

    def __init__(
        self,
        job: Job,
        ref: ray.ObjectRef[Job],
        options: RuntimeConfig,
        workers: Sequence[RemoteWorker],
    ) -> None:
        """Ask one worker of every other node for its data; it parses the dataset if necessary.

        Raises:
            UserError: a node has other data than the driver, or has none and ``runtime.data`` is ``node``.
        """
        self.box = JobBox(job=ref, data=options.data, home=identify().node, encoded=options.mode == "actors")
        self._sent: dict[str, ray.ObjectRef[WindowSet]] = {}
        self._workers, self._num_sent_bytes = workers, 0
        self._nodes = {} if job.data is None or options.data == "ship" else _survey(workers, self.box)
        if options.data == "node" and (absent := [data for data in self._nodes.values() if data.kind == "none"]):
            raise UserError("\n".join(refusal(job, data) for data in absent))

    @property
    def testers(self) -> list[int]:
        """Indices of the workers that may test: all, or those on the driver's node.

        Test windows stay there with ``runtime.data=node``, and where a node holds a shard.
        """
        stays = self.box.data == "node" or any(data.kind == "shard" for data in self._nodes.values())
        return [worker.index for worker in self._workers if not stays or worker.identity.node == self.box.home]

    def rows(self, names: Iterable[str]) -> dict[str, ray.ObjectRef[WindowSet]]:
        """Return those of the windows that a worker has asked for before."""
        return {name: self._sent[name] for name in names if name in self._sent}

    def send(self, lack: NeedsRows) -> dict[str, ray.ObjectRef[WindowSet]]:
        """Put the rows that a worker asked for into the object store, each client's once."""
        for name, (windows, modalities) in lack.wanted.items():
            if name not in self._sent:
                cut = windows.cut(modalities)
                assert cut.rows is not None
                self._num_sent_bytes += cut.rows.nbytes
                self._sent[name] = ray.put(cut)
        return self.rows(lack.wanted)

    def by_shards(self, worker_of: Mapping[ClientId, int], alike: Callable[[int, int], bool]) -> dict[ClientId, int]:
        """Swap clients between ``alike`` workers so that each is trained where its shard is; worker by client."""
        placed = dict(worker_of)
        for client, other in permutations(worker_of, 2):
            mine, theirs = placed[client], placed[other]
            is_wrong = self._holds(theirs, client) and not (self._holds(mine, client) or self._holds(theirs, other))
            if is_wrong and alike(mine, theirs):
                placed[client], placed[other] = theirs, mine
                here, there = self._workers[mine], self._workers[theirs]
                here.name, there.name = there.name, here.name
        return placed

    def _holds(self, index: int, client: ClientId) -> bool:
        """True where the worker's node has that client's shard."""
        data = self._nodes.get(self._workers[index].identity.node)
        return data is not None and client in data.shards

    def facts(self) -> dict[str, Json]:
        """Source of the data by kind of node, for the run's record."""
        kinds = Counter(data.kind for data in self._nodes.values())
        return {
            "data": self.box.data,
            "data_nodes": {kind: kinds[kind] for kind in sorted(kinds)},
            "data_sent_bytes": self._num_sent_bytes,
        }


def _survey(workers: Sequence[RemoteWorker], box: JobBox) -> dict[str, NodeData]:
    """Ask every node but the driver's for its part of the data; a worker that is lost meanwhile says it later."""
    first = {worker.identity.node: worker for worker in reversed(workers) if worker.identity.node != box.home}
    refs = {node: worker.handle.node_data.remote(box) for node, worker in first.items()}
    answers: dict[str, NodeData] = {}
    for node, ref in refs.items():
        try:
            answers[node] = ray.get(ref, timeout=_PARSE_S)
        except RayTaskError as error:
            raise_cause(error, f"{first[node].name}, looking for the data")
        except GetTimeoutError as error:
            raise UserError(
                f"{first[node].name}: its node did not find or parse the dataset within {_PARSE_S:g} s; parse it there "
                "beforehand (`relief-ray data describe NAME`), or send rows: runtime.data=ship"
            ) from error
        except RayError:
            continue
    return answers


# How long a sum is waited for that a worker has waited for in vain, and how long it takes to ask which sums are here.
_AGAIN_S, _LOOK_S = 2.0, 0.25

# Reduces a round as its pieces arrive; sums are taken in client order, whatever order they arrive in.


def lost(clients: Iterable[ClientId], why: LeftOut) -> BlockResult:
    """The result of clients that never answered."""
    return BlockResult(sums={}, receipts=(), states={}, rejected=dict.fromkeys(clients, why))


class Gather:
    """Collects the pieces of every block; a piece is added as soon as all before it are, so few wait in memory."""

    def __init__(self, blocks: Sequence[tuple[Assignment, ...]]) -> None:
        """``blocks`` in client order, as ``reduction.blocks`` cuts them."""
        self._awaited = [[t.client for t in block] for block in blocks]
        self._waiting: list[dict[ClientId, tuple[int, BlockResult]]] = [{} for _ in blocks]
        self._rest: list[list[BlockResult]] = [[] for _ in blocks]
        self._sums = [Accumulator() for _ in blocks]
        self._tree = Tree(len(blocks))

    def add(self, block: int, clients: Sequence[ClientId], result: BlockResult) -> None:
        """Take the answer of consecutive ``clients`` of a block; an answer that is no longer awaited is ignored."""
        first, waiting = min(clients), self._waiting[block]
        if not set(clients) <= set(self._awaited[block]) or first in waiting:
            return
        waiting[first] = (len(clients), result)
        awaited = self._awaited[block]
        while awaited and awaited[0] in waiting:
            number, piece = waiting.pop(awaited[0])
            self._sums[block].add(piece.sums)
            self._rest[block].append(replace(piece, sums={}))
            del awaited[:number]
        if not awaited:
            self._tree.add(Node(level=0, index=block), self._sums[block])
            self._sums[block] = Accumulator()

    def add_whole(self, results: Mapping[int, BlockResult], nodes: Mapping[Node, Sums]) -> None:
        """Take whole blocks whose sums a worker has merged into ``nodes`` already."""
        for block, result in results.items():
            self._rest[block].append(result)
            self._awaited[block].clear()
        for node, sums in nodes.items():
            self._tree.add(node, Accumulator(sums))

    def finish(self, moved_bytes: int) -> Trained:
        """Result of the round, once every piece is in."""
        assert not any(self._awaited), f"clients {self._awaited} are missing"
        return combine(chain.from_iterable(self._rest), moved_bytes, self._tree.settled())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """An answer of clients of one block, whose sums lie on ``node`` until they are added up; empty: it has none."""

    clients: Sequence[ClientId]
    rest: BlockResult
    sums: SumsRef | None
    node: str


@dataclass(kw_only=True, slots=True)
class _Block:
    """A block of a round whose sums stay on nodes."""

    tasks: Mapping[ClientId, Assignment]
    awaited: set[ClientId]
    parts: dict[ClientId, _Part] = field(default_factory=dict)
    """By their first client."""
    total: SumsRef | None = None
    total_node: str = ""
    """Where that lies; empty for this process's own."""
    is_sent: bool = False
    """Whether a worker was asked to add up the parts."""
    repeated: set[ClientId] = field(default_factory=set)
    """Clients that were trained once more because sums were lost."""
    num_losses: int = 0
    """How often its sum could not be made."""


class NodeSums:
    """Collects a round on several nodes: workers add up the blocks, and one worker merges the sums.

    One sum reaches the driver, however many clients and workers there are. It has the bits of ``Gather``: blocks are
    added up in client order and merged along the same tree.
    """

    def __init__(
        self, blocks: Sequence[tuple[Assignment, ...]], deadline: Deadline, layout: GroupLayout, pool: WorkerPool
    ) -> None:
        """``blocks`` in client order, as ``reduction.blocks`` cuts them; ``pool``: the workers that hold sums."""
        self._layout, self._pool = layout, pool
        tasks = [{t.client: t for t in block} for block in blocks]
        self._blocks = [_Block(tasks=by_client, awaited=set(by_client)) for by_client in tasks]
        self._deadline, self._is_sent = deadline, False
        self._sums: Sums | None = None
        # One long wait a round: a node that is lost has mostly held several sums.
        self._wait_s = FETCH_S

    def add(
        self, block: int, clients: Sequence[ClientId], rest: BlockResult, sums: SumsRef | None = None, node: str = ""
    ) -> None:
        """Take the answer of consecutive ``clients`` of a block; an answer that is no longer awaited is ignored."""
        into = self._blocks[block]
        if set(clients) <= into.awaited:
            into.awaited -= set(clients)
            into.parts[min(clients)] = _Part(clients=clients, rest=rest, sums=sums, node=node)

    def calls(self) -> Iterator[Call]:
        """What can be added up now: every block whose clients are in, and the tree once all blocks are."""
        for number, block in enumerate(self._blocks):
            if not block.awaited and not block.is_sent:
                block.is_sent = True
                parts = [part for _, part in sorted(block.parts.items()) if part.sums is not None]
                if parts:
                    ((node, _),) = Counter(part.node for part in parts).most_common(1)
                    yield self._call([part.sums for part in parts], ((number, ()),), node)
                else:
                    # Of no client: a worker's would be one more sum that can be lost with its node.
                    block.total, block.total_node = ray.put(pack((Accumulator().sums(),))), ""
        totals = [block.total for block in self._blocks]
        if None not in totals and not self._is_sent:
            self._is_sent = True
            yield self._call(totals, (), "")

    def _call(self, addends: Sequence[SumsRef | None], pieces: tuple[Piece, ...], node: str) -> Call:
        """A call for a block's sum, without a piece for that of all blocks."""
        # A worker that waited for a lost node until the round's time is over would be ended as one that hangs.
        # Two such waits may follow each other on one worker.
        wait_s = max(0.0, min(FETCH_S, (self._deadline.at_s - time.monotonic()) / 4))
        args = (addends, not pieces, self._layout, wait_s)
        return Call(method="add_up", args=args, clients=(), deadline=self._deadline, pieces=pieces, node=node)

    def take(self, call: Call, answer: SumAnswer | None) -> list[tuple[int, Assignment]]:
        """Take the answer to one of ``calls``; if it has no sum, add up in this process.

        Returns the tasks to be trained once more, with their blocks, since their sums were lost.
        """
        addends, is_tree, _, waited_s = call.args
        assert isinstance(addends, list) and isinstance(waited_s, float)
        hit = range(len(self._blocks)) if is_tree else [number for number, _ in call.pieces]
        sums = None if answer is None else answer.sums
        if sums is None:
            has_waited = answer is not None and waited_s >= _AGAIN_S
            nodes = {node for number in hit for node in self._holders(number)}
            wait_s = _AGAIN_S if has_waited or self._pool.is_doubtful(nodes) else self._wait_s
            sums, answer = added_up(addends, bool(is_tree), self._layout, wait_s), None
        if sums is None:
            self._is_sent, self._wait_s = False, _AGAIN_S
            hit = self._unreadable(addends) if is_tree else hit
            return [again for number in hit for again in self._repeat(number)]
        if is_tree:
            assert isinstance(sums, Packed)
            self._sums = decoded(unpack(sums, copy=True)[0], self._layout)
        else:
            block = self._blocks[hit[0]]
            block.total = ray.put(sums) if isinstance(sums, Packed) else sums
            block.total_node = answer.identity.node if answer else ""
            block.parts = {first: replace(part, sums=None) for first, part in block.parts.items()}
        return []

    def _holders(self, number: int) -> set[str]:
        """Nodes that hold the sums of a block."""
        block = self._blocks[number]
        nodes = {part.node for part in block.parts.values() if part.sums is not None}
        return {block.total_node} if block.total is not None else nodes

    def _unreadable(self, sums: Sequence[SumsRef]) -> list[int]:
        """Indices of sums that are lost or late."""
        there, _ = ray.wait(list(sums), num_returns=len(sums), timeout=_LOOK_S)
        read = (ref in there and added_up([ref], False, self._layout, _AGAIN_S) is not None for ref in sums)
        return [i for i, is_here in enumerate(read) if not is_here]

    def _repeat(self, number: int) -> list[tuple[int, Assignment]]:
        """Await clients of a block whose sums were lost once more; the second time, or too late, leave them out.

        Where the block's total is lost, these are all its clients: their own sums were dropped when it was made.
        """
        block = self._blocks[number]
        block.num_losses += 1
        gone, nodes = [first for first, part in block.parts.items() if part.node], self._holders(number)
        if block.total is None and block.num_losses <= len(block.tasks) + 1:
            held = {first: part for first, part in block.parts.items() if part.sums is not None}
            missing = self._unreadable([part.sums for part in held.values() if part.sums is not None])
            gone = [first for i, first in enumerate(held) if i in missing]
            nodes = {held[first].node for first in gone}
        clients = [client for first in sorted(gone) for client in block.parts.pop(first).clients]
        block.awaited, block.total, block.is_sent = set(clients), None, False
        is_over = time.monotonic() > self._deadline.at_s
        self._pool.doubt(nodes, is_over)
        given_up = [client for client in clients if is_over or client in block.repeated]
        if given_up:  # none where what was late has come meanwhile
            why = LeftOut(cause="lost", why="its update was lost with the process or node that held it")
            self.add(number, given_up, lost(given_up, why))
        again = [client for client in clients if client not in given_up]
        block.repeated |= set(again)
        return [(number, block.tasks[client]) for client in again]

    def finish(self, moved_bytes: int) -> Trained:
        """Result of the round, once all is added up."""
        assert self._sums is not None, "the round is not added up"
        parts = (part for block in self._blocks for _, part in sorted(block.parts.items()))
        return combine((part.rest for part in parts), moved_bytes, self._sums)


# A client's task -> what a call brings its worker: the models, the client's own, or a box with that.
Supply = Callable[[Assignment], "ray.ObjectRef[Packed[Models]] | ray.ObjectRef[Packed[EncodedModel]] | ModelBox"]


def add_answer(gather: Gather | NodeSums, call: Call, answer: TrainAnswer, layout: GroupLayout) -> float:
    """Add a worker's answer to the round; return the compute seconds of its slowest client.

    Sums are views of the received arrays, all else gets memory of its own.
    """
    rest: tuple[BlockResult, ...] = tuple(_with_values(each, layout) for each in unpack(answer.rest, copy=True))
    if isinstance(gather, NodeSums):
        assert not isinstance(answer.sums, Packed)
        ((block, part),), (result,) = call.pieces, rest
        gather.add(block, [t.client for t in part], result, answer.sums, answer.identity.node)
    else:
        assert isinstance(answer.sums, Packed)
        sums = tuple(decoded(each, layout) for each in unpack(answer.sums))
        if answer.nodes is not None:
            numbers = (block for block, _ in call.pieces)
            gather.add_whole(dict(zip(numbers, rest, strict=True)), dict(zip(answer.nodes, sums, strict=True)))
        else:
            for (block, part), result, summed in zip(call.pieces, rest, sums, strict=True):
                gather.add(block, [t.client for t in part], replace(result, sums=summed))
    receipts = (r for result in rest for r in (*result.receipts, *result.refused))
    return max((r.work.measured.compute_s for r in receipts), default=0.0)


def _with_values(result: BlockResult, layout: GroupLayout) -> BlockResult:
    """A result whose single updates have the values of their payloads."""
    updates = (replace(u, delta=decode(layout, u.payload)[1], payload=b"") if u.payload else u for u in result.updates)
    return replace(result, updates=tuple(updates))


_START_S, _START_PER_WORKER_S = 60.0, 10.0

_MAX_ATTEMPTS = 2


def _may_try_again(call: Call) -> bool:
    """Whether a lost call has an attempt and time left."""
    return call.attempt + 1 < _MAX_ATTEMPTS and time.monotonic() < call.until_s


def open_executor(
    job: Job,
    options: RuntimeConfig,
    types: Mapping[str, Resources] | None = None,
) -> RayExecutor:
    """Start workers and an executor on them; its ``close`` ends the workers."""
    group = open_workers(job, options, types)
    try:
        return RayExecutor(job, group, options, owns_workers=True)
    except BaseException:
        group.close()
        raise


class RayExecutor:
    """Sends tasks to the workers of a group and merges their answers; ``pool`` has the workers and their costs."""

    def __init__(
        self,
        job: Job,
        group: WorkerGroup,
        options: RuntimeConfig,
        should_stop: Callable[[], bool] = never,
        owns_workers: bool = False,
        on_note: Callable[[str], None] = ignore,
    ) -> None:
        """Wait for the workers. With ``owns_workers`` they end with the executor. ``on_note`` is told of lost workers.

        Raises:
            UserError: a worker did not start in time or runs other code.
        """
        self._job, self._group, self._options, self._owns_workers = job, group, options, owns_workers
        specs = group.placement.workers
        workers = await_workers(group.handles, [s.name for s in specs], _START_S + _START_PER_WORKER_S * len(specs))
        shared = options.mode != "actors" and bool(options.num_hosts)
        self.pool = WorkerPool(
            workers=workers,
            per_node=slots_per_node([worker.identity.node for worker in workers], shared),
            should_stop=should_stop,
            lost_wait_s=options.lost_wait_s,
            boxed=options.physical,
            on_note=on_note,
        )
        self._data = JobData(job, group.job, options, workers)
        worker_of = {s.client: i for i, s in enumerate(specs) if s.client is not None}
        self._worker_of = self._data.by_shards(worker_of, lambda i, j: specs[i].bundle == specs[j].bundle)
        self._limits, self._test_limits = (Limits(setting=options.client_timeout_s) for _ in range(2))
        self._scheduler = Scheduler(job, self.pool, by_client=bool(self._worker_of))
        self._sent: tuple[Models, ray.ObjectRef[Packed[Models]], int] | None = None

    def train(
        self,
        round_: int,
        models: Models,
        tasks: Sequence[Assignment],
        states: States,
    ) -> Trained:
        """Train one round; a block whose worker is lost is sent once more, client by client, from committed state.

        What has not come back when the round's time is over is left out.

        Raises:
            ClientFailed: code of a client raised; it is named.
        """
        cut, log = blocks(tasks), RoundLog()
        moved_before, busy_before_s = self.pool.moved_bytes, self.pool.busy_s
        deadline = Deadline(limits=self._limits, began_s=time.monotonic(), num_turns=self._turns(tasks))
        self._limits.due_work = max((self._scheduler.work(task) for task in tasks), default=0.0)
        self._limits.due_types = frozenset(self._types(task.client for task in tasks))
        calls = self._scheduler.calls(cut)
        keeps = self._keeps_sums(cut, calls)
        gather = NodeSums(cut, deadline, self._job.layout, self.pool) if keeps else Gather(cut)
        near = self._near(tasks) if isinstance(gather, NodeSums) else None
        call_for = partial(self._train_call, round_, self._supply(models), states, deadline, near, len(cut))
        todo = deque(map(call_for, calls))
        for call, outcome in self._outcomes(todo):
            if isinstance(outcome, TrainAnswer):
                log.add(call.clients[0], outcome.on_device, self.pool.up_s, call.nbytes, outcome.nbytes)
                self._note_seconds(call, outcome.busy_s, add_answer(gather, call, outcome, self._job.layout))
            elif isinstance(gather, NodeSums) and call.method == "add_up":
                again = gather.take(call, outcome if isinstance(outcome, SumAnswer) else None)
                # Anywhere but on the node that may have lost them.
                todo.extend(replace(call_for(((block, (task,)),), attempt=1), node="") for block, task in again)
            elif isinstance(outcome, LeftOut):
                if _may_try_again(call) and (outcome.cause == "lost" or self._options.on_timeout == "retry"):
                    todo.extend(call_for(again, attempt=call.attempt + 1) for again in one_by_one(call.pieces))
                else:
                    self._leave_out(gather, call, outcome)
            if isinstance(gather, NodeSums):
                todo.extend(gather.calls())
        trained = replace(gather.finish(self.pool.moved_bytes - moved_before), measured=log.finish())
        # What the next round's limits and order are made of.
        self._limits.end_round()
        if news := self._limits.news():
            self.pool.on_note(news)
        self._scheduler.note(trained.worked, self.pool.busy_s - busy_before_s)
        return trained

    def _keeps_sums(self, cut: Sequence[tuple[Assignment, ...]], calls: Sequence[Sequence[Piece]]) -> bool:
        """Whether sums stay on nodes until they are added up there: where each call would bring one of many.

        On one node whole blocks are few sums, which the driver reads from shared memory.
        """
        if self._options.physical or not isinstance(self._job.reduction, WeightedSum):
            return False
        is_split = any(len(part) < len(cut[block]) for pieces in calls for block, part in pieces)
        is_far = bool(self.pool.nodes - {self._data.box.home})
        return all(len(pieces) == 1 for pieces in calls) and (is_split or is_far) and bool(cut)

    def _near(self, tasks: Sequence[Assignment]) -> dict[ClientId, str]:
        """The node that each client had better train on: of a block's clients as many as possible on one node."""
        places = [node for node, number in self.pool.per_node.items() for _ in range(number)]
        ordered = sorted(task.client for task in tasks)
        runs = evenly(ordered, len(places)) if len(self.pool.nodes) > 1 and not self._worker_of else []
        return {client: node for node, run in zip(places, runs, strict=False) for client in run}

    def _leave_out(self, gather: Gather | NodeSums, call: Call, why: LeftOut) -> None:
        is_over = why.cause == "timeout" or time.monotonic() > call.until_s
        if call.worker is not None and is_over:
            self.pool.pass_over(call.worker)
        for block, part in call.pieces:
            clients = [t.client for t in part]
            gather.add(block, clients, lost(clients, why))

    def _note_seconds(self, call: Call, busy_s: float, slowest_s: float) -> None:
        """Learn how long an answer took: that of its slowest client, and what is not training, such as a start."""
        beside_s = max(0.0, self.pool.took_s - busy_s)
        number, work = len(call.clients), max(self._scheduler.work(task) for _, part in call.pieces for task in part)
        seconds, types = beside_s + max(slowest_s, busy_s / number), self._types(call.clients)
        self._limits.note(seconds, self.pool.took_s, number, work, types)

    def _types(self, clients: Iterable[ClientId]) -> set[str]:
        """Device types of clients that have machines of their types; none where seconds do not depend on the type."""
        differ = self._options.physical or self._group.placement.mode == "typed"
        return {self._job.fleet[client].device for client in clients} if differ else set()

    def _turns(self, tasks: Sequence[Assignment]) -> int:
        """The most clients that one core, or one worker, trains in turn in this round."""
        if not self._worker_of:
            return -(-len(tasks) // self.pool.num_places)
        return self._turns_on(self.pool.workers[self._worker_of[t.client]] for t in tasks)

    def _turns_on(self, workers: Iterable[RemoteWorker]) -> int:
        """The most calls that a core has in turn, where each of these workers has one."""
        nodes = Counter(worker.identity.node for worker in workers)
        return max((-(-number // self.pool.per_node.get(node, 1)) for node, number in nodes.items()), default=1)

    def _train_call(
        self,
        round_: int,
        supply: Supply,
        states: States,
        deadline: Deadline,
        near: Mapping[ClientId, str] | None,
        num_blocks: int,
        pieces: tuple[Piece, ...],
        attempt: int = 0,
    ) -> Call:
        parts = tuple(tasks for _, tasks in pieces)
        clients = tuple(t.client for tasks in parts for t in tasks)
        request = pack(
            TrainRequest(
                round=round_,
                parts=parts,
                states={c: states[c] for c in clients if c in states},
                # Several blocks in one call are whole: the worker merges their sums as far as it can.
                whole_blocks=(tuple(block for block, _ in pieces), num_blocks) if len(pieces) > 1 else None,
                least_s=self._limits.least_s,
                keeps_sums=near is not None,
            )
        )
        model = supply(parts[0][0])
        self.pool.moved_bytes += request.nbytes
        return Call(
            method="train",
            args=(self._data.box, model, request, self._data.rows([client_windows(c) for c in clients])),
            clients=clients,
            nbytes=request.nbytes + (model.nbytes if isinstance(model, ModelBox) else 0),
            limits=self._limits,
            deadline=deadline,
            pieces=pieces,
            worker=self._worker_of.get(clients[0]),
            node=(near or {}).get(clients[0], ""),
            attempt=attempt,
            work=sum(self._scheduler.work(task) for tasks in parts for task in tasks),
        )

    def evaluate(
        self,
        models: Models,
        targets: Sequence[EvalTarget],
        states: States,
        part: str,
    ) -> Mapping[str, Tensor]:
        """Confusion matrix of every target: windows are shared out over the workers, and counts add up exactly.

        Where test windows stay on the driver's node, over its workers, or none but this process.

        Raises:
            EvaluationFailed: a share was lost twice, or did not come within the limit of one answer, retries included.
        """
        workers = self._data.testers
        if not workers:
            return self._here.evaluate(models, targets, states, part)
        model = self._put(models)
        number = max(1, min(len(workers), self.pool.num_places, len(self._job.parts[part])))
        bound = workers[:number] if len(workers) < len(self.pool.workers) else []
        turns = self._turns_on(self.pool.workers[i] for i in bound)
        deadline = Deadline(limits=self._test_limits, began_s=time.monotonic(), num_turns=turns)
        todo: deque[Call] = deque()
        for index in range(number):
            share = index, number
            request = pack(EvalRequest(targets=tuple(targets), states=dict(states), part=part, share=share))
            self.pool.moved_bytes += request.nbytes
            rows = self._data.rows([part_windows(part, share), CALIBRATION])
            todo.append(
                Call(
                    method="evaluate",
                    args=(self._data.box, model, request, rows),
                    clients=(),
                    limits=self._test_limits,
                    deadline=deadline,
                    worker=bound[index] if bound else None,
                )
            )
        total: dict[str, Tensor] = {}
        for call, outcome in self._outcomes(todo):
            if isinstance(outcome, EvalAnswer):
                self._test_limits.note(self.pool.took_s, self.pool.took_s)
                answer = unpack(outcome.counts)
                total = {label: counts + total[label] if total else counts.clone() for label, counts in answer.items()}
            elif _may_try_again(call):
                todo.append(replace(call, attempt=call.attempt + 1))
            elif isinstance(outcome, LeftOut):
                raise EvaluationFailed(f"evaluation on {part!r}: {outcome.why}")
        return total

    def _outcomes(self, todo: deque[Call]) -> Iterator[tuple[Call, Answer | LeftOut]]:
        """Yield outcomes as ``WorkerPool.run``; a worker that cannot read its rows gets its call again, with them."""
        for call, outcome in self.pool.run(todo):
            if isinstance(outcome, NeedsRows):
                *rest, rows = call.args
                assert isinstance(rows, dict)
                todo.append(replace(call, args=(*rest, rows | self._data.send(outcome))))
            else:
                yield call, outcome

    def _put(self, models: Models) -> ray.ObjectRef[Packed[Models]]:
        """Put a model version into the object store: fetched once per node, read by all its workers without a copy."""
        if self._sent is None or self._sent[0] is not models:
            wire: Models = {name: dict(params) for name, params in models.items()}
            packed = pack(wire)
            self._sent = (models, ray.put(packed), packed.nbytes)
        self.pool.moved_bytes += self._sent[2] * len(self.pool.nodes)
        return self._sent[1]

    def _supply(self, models: Models) -> Supply:
        """The models of a round for its calls: one object for all, or each client's own as the codec writes it."""
        if not self._data.box.encoded:
            shared = self._put(models)
            return lambda task: shared
        contents: dict[object, tuple[Packed[EncodedModel], ray.ObjectRef[Packed[EncodedModel]]]] = {}

        def own(task: Assignment) -> ray.ObjectRef[Packed[EncodedModel]] | ModelBox:
            held = frozenset(filter(task.holds, models[task.view]))
            present = self._job.fleet[task.client].modalities
            outputs = task.output, task.taps
            key = task.view, frozenset(task.down.items()), held, present, task.omit_absent, outputs
            if key not in contents:
                packed = pack(self._encoded(models, task, is_whole=len(held) == len(models[task.view])))
                contents[key] = packed, ray.put(packed)
            packed, ref = contents[key]
            self.pool.moved_bytes += packed.nbytes
            # An object of its own comes from the server; a common one might come from another device that has it.
            return ModelBox(ref=ray.put(packed), nbytes=packed.nbytes) if self._options.physical else ref

        return own

    def _encoded(self, models: Models, task: Assignment, is_whole: bool) -> EncodedModel:
        """What the client of a task receives; the networks that it does not are computed with here."""
        if is_whole:
            return EncodedModel.of(self._job, task, models[task.view], NOTHING, ())
        runs = self._here.runs
        return EncodedModel.of(self._job, task, *runs.received(models, task), runs.charged(task))

    @cached_property
    def _here(self) -> Worker:
        """A worker in this process."""
        return Worker(self._job)

    def facts(self) -> dict[str, Json]:
        """Layout of the run on the cluster, for its record."""
        workers = self.pool.workers
        return {
            "mode": self._options.mode,
            "num_hosts": len(workers),
            "num_nodes": len(self.pool.nodes),
            "placement": self._group.placement.mode,
            "placement_why": self._group.placement.why,
            "ray": ray.__version__,
            "pythons": list[Json](sorted({worker.identity.python for worker in workers})),
            "torches": list[Json](sorted({worker.identity.torch for worker in workers})),
            "num_lost_calls": self.pool.num_lost,
            "physical": self._options.physical,
            **self._data.facts(),
            "client_timeout_s": self._limits.one_s,
        }

    def close(self) -> None:
        """End the workers, where the executor owns them."""
        if self._owns_workers:
            self._group.close()
