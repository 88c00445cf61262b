"""Whole nodes that freeze, in whole runs on a cluster of four: real raylets and hosts, stopped by SIGSTOP."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONFIG = {
    "strategy": "fedavg",
    "rounds": 12,
    "data": {"name": "dsa_mini", "max_windows_per_client": 12},
    "training": {"epochs": 1},
    "backbone": {"conv1": 2, "conv2": 2, "steps": 4, "fusion": 8},
    "evaluation": {"every": 100},
    "tracking": {"enabled": False},
    "runtime": {"mode": "actors", "placement": "typed", "client_timeout_s": 10.0},
}

# A driver on a cluster of its own: a head and a node per device type; that of type C, two of eight clients, freezes
# after round 3. Prints what happened as JSON.
CHILD = """
import json, os, signal, sys, time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from actors.runtime.single_run import Hooks, run_experiment
from relief_ray.config.experiment import parse
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.core.federated import RoundVoid
from relief_ray.records.run_folder import read_rounds, read_run

folder, values = Path(sys.argv[1]), json.loads(sys.argv[2])
whole_node, thaw_s = sys.argv[3] == "node", float(sys.argv[4])
memory = 80 * 2**20
cluster = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 1, "resources": {"server": 1}, "object_store_memory": memory, "include_dashboard": False})
nodes = {
    kind: cluster.add_node(num_cpus=2, resources={f"type_{kind}": 3}, object_store_memory=memory) for kind in "abc"
}
ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
raylet = nodes["c"].all_processes["raylet"][0].process.pid


def family():
    if not whole_node:
        return [raylet]
    listed = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return [*map(int, listed), raylet]


seen, notes, frozen, state = [], [], [], {}


def send(number):
    for pid in frozen:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def look():
    for record in read_rounds(folder).where(lambda number: not seen or number > seen[-1]["round"]):
        seen.append({"round": record.round, "wall_s": record.wall_s, "left_out": sorted(record.left_out),
                     "causes": sorted({left.cause for left in record.left_out.values()})})
        if record.round >= 3 and not frozen:
            frozen.extend(family())
            send(signal.SIGSTOP)
            state["frozen_s"] = time.monotonic()


def should_stop():
    look()
    if "frozen_s" in state and "thawed_s" not in state and time.monotonic() - state["frozen_s"] > thaw_s:
        send(signal.SIGCONT)
        state["thawed_s"] = time.monotonic()
    # Enough is seen three rounds after the node has come back.
    return "thawed_s" in state and len(seen) > 10 and not any(entry["left_out"] for entry in seen[-3:])


out = {}
try:
    setup, opened = create(parse(values), folder)
    opened.close()
    callbacks = Hooks(on_note=notes.append, should_stop=should_stop)
    try:
        out["status"] = run_experiment(setup, folder, callbacks).status
    except RoundVoid as error:
        out["void"] = str(error)
        out["void_s"] = time.monotonic() - state["frozen_s"]
        send(signal.SIGCONT)
        time.sleep(10.0)
        if ray.cluster_resources().get("type_c", 0) < 2:  # it was declared dead, as on a real cluster after a while
            cluster.add_node(num_cpus=2, resources={"type_c": 3}, object_store_memory=memory)
        setup, opened = reopen(folder)
        opened.close()
        out["status"] = run_experiment(setup, folder, Hooks(on_note=notes.append)).status
    rounds = read_rounds(folder)
    out |= {"seen": seen, "notes": notes, "sha256": [r.model_sha256 for r in rounds],
            "runtime": read_run(folder).runtime, "missing": [len(r.left_out) for r in rounds]}
finally:
    send(signal.SIGCONT)
    ray.shutdown()
    cluster.shutdown()
print("RESULT", json.dumps(out))
"""


def drive(folder, what, thaw_s, **changes):
    values = {**CONFIG, **changes, "runtime": {**CONFIG["runtime"], **changes.pop("runtime", {})}}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = clean | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    command = [sys.executable, "-c", CHILD, str(folder / "run"), json.dumps(values), what, str(thaw_s)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, ended.stdout[-2000:] + ended.stderr[-4000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def undisturbed(folder):
    from actors.runtime.single_run import run_experiment
    from relief_ray.config.experiment import parse
    from relief_ray.experiment.lifecycle import create
    from relief_ray.records.run_folder import read_rounds

    setup, opened = create(parse({**CONFIG, "runtime": {"mode": "inline"}}), folder)
    opened.close()
    run_experiment(setup, folder)
    return [r.model_sha256 for r in read_rounds(folder)]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("what", ["node", "raylet"])
def test_a_frozen_node_costs_one_limit_and_is_used_again(what, tmp_path):
    """Rounds of milliseconds: it takes hundreds of them until the node is back.

    Where it froze with a client's sum, the round waits 2 s for each.
    """
    out = drive(tmp_path, what, 30.0, rounds=100_000, runtime={"quorum": 0.7})
    seen = {entry["round"]: entry for entry in out["seen"]}
    late = [entry for entry in out["seen"] if entry["left_out"]]
    first = late[0]
    before_s = max(seen[n]["wall_s"] for n in (2, 3))
    # Two limits, or the long wait for a sum, would be 20 s and more.
    held_s = 5.0 if "lost" in first["causes"] else 0.0
    assert first["wall_s"] <= 18.0 + held_s and {*first["left_out"]} <= {6, 7}, "one may have answered before"
    assert set(first["causes"]) <= {"timeout", "lost"}
    following = [seen[first["round"] + n]["wall_s"] for n in (1, 2, 3, 4, 5, 6)]
    print(what, "before", before_s, "frozen", first["wall_s"], "next", following)
    # Workers of a frozen raylet answer that they are there, and keep what they trained.
    slow = [seconds for seconds in following if seconds > before_s + 5.0]
    assert len(slow) <= (what == "raylet") and max(slow, default=0.0) <= 18.0
    assert out["status"] == "interrupted" and out["missing"][-1] == 0, "used again"
    # Of a call that it took, or of sums alone where it had answered every call.
    late = any("no answer within 10" in note for note in out["notes"])
    assert late == (out["runtime"]["num_lost_calls"] >= 1)
    assert late or any("did not give out the sums that it held" in note for note in out["notes"])
    assert {note.split(":")[0] for note in out["notes"]} <= {"client-6", "client-7"}, "a healthy worker was ended"
    assert any("answers again" in note for note in out["notes"])


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("what", ["node", "raylet"])
def test_at_quorum_1_the_run_ends_void_and_resumes_with_the_same_bits(what, tmp_path):
    out = drive(tmp_path, what, 1e6, runtime={"client_timeout_s": 6.0, "lost_wait_s": 5.0})
    assert "the updates of 6 of 8 clients can be used, runtime.quorum = 1" in out["void"]
    tries = [note for note in out["notes"] if note.startswith("void, tried again")]
    held_s = 6.0 if "lost with the process or node" in tries[0] else 0.0
    assert len(tries) == 2 and out["void_s"] < 35.0 + held_s, "one limit, one wait for sums, one for the node"
    assert out["status"] == "done" and out["sha256"] == undisturbed(tmp_path / "inline")
