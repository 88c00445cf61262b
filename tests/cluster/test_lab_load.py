"""Nodes whose processor and link are full for half an hour: none is taken for dead by mistake."""

import json
import os
import time

import pytest

from tests.cluster.labs import NO_LAB, Running, is_possible, make_lab
from tests.lab.plan import GCS_PORT

pytestmark = [
    pytest.mark.lab_long,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not is_possible(), reason=NO_LAB),
]
MINUTES = float(os.environ.get("LAB_MINUTES", "30"))
NODES = ("a", "b", "c")
MBIT, QUOTA_PERCENT, PORT = 10, 40, 5999
# Two processes that compute without a break, in the control group of the node, beside its raylet.
BUSY = ["sh", "-c", "while :; do :; done & while :; do :; done"]
# Takes whatever comes and sends as much as the link takes, to each that connects.
SERVER = f"""
import socket, threading
listener = socket.create_server(("0.0.0.0", {PORT}))
def drain(other):
    while other.recv(1 << 16):
        pass
def fill(other):
    while True:
        other.sendall(bytes(1 << 16))
while True:
    other, _ = listener.accept()
    for work in (drain, fill):
        threading.Thread(target=work, args=(other,), daemon=True).start()
"""
CLIENT = f"""
import socket, threading
other = socket.create_connection(("10.77.0.1", {PORT}))
def drain():
    while other.recv(1 << 16):
        pass
threading.Thread(target=drain, daemon=True).start()
while True:
    other.sendall(bytes(1 << 16))
"""
MEMBERS = f"""
import json, ray
ray.init(address="10.77.0.1:{GCS_PORT}", logging_level="ERROR", log_to_driver=False)
print("NODES", json.dumps([[node["NodeID"], node["Alive"]] for node in ray.nodes()]))
"""


def members(lab) -> list[list[object]]:
    """Every node that the head has ever seen, and whether it takes it for alive."""
    said = lab.command("exec", "head", "--", "python", "-c", MEMBERS, timeout_s=300).stdout
    (line,) = (line for line in said.splitlines() if line.startswith("NODES "))
    return sorted(json.loads(line.removeprefix("NODES ")))


def sent_bytes(lab) -> dict[str, int]:
    """Bytes that each node has sent over its link."""
    rows = json.loads(lab.command("status", "--json").stdout)
    return {row["node"]: int(row["up_bytes"]) for row in rows if row["node"] in NODES}


def test_no_node_is_declared_dead_while_processors_and_links_are_full():
    with make_lab("o", *NODES) as lab:
        lab.start("head", "all")
        lab.command("shape", "all", "--up-mbit", MBIT, "--down-mbit", MBIT)
        lab.command("quota", "head,a,b,c", QUOTA_PERCENT)
        before = members(lab)
        assert [alive for _, alive in before] == [True] * 4
        load = [Running(lab.name, node, BUSY) for node in NODES]
        load.append(Running(lab.name, "head", ["python", "-c", SERVER]))
        time.sleep(5)
        load += [Running(lab.name, node, ["python", "-c", CLIENT]) for node in NODES]
        time.sleep(10)
        at_start, began_s = sent_bytes(lab), time.monotonic()
        time.sleep(60 * MINUTES)
        sent, seconds = sent_bytes(lab), time.monotonic() - began_s
        for process in load:
            process.kill()
        mbit = {node: (sent[node] - at_start[node]) * 8 / 1e6 / seconds for node in NODES}
        after = members(lab)
        print(f"{seconds / 60:.1f} minutes; Mbit/s sent: {mbit}; {len(after)} nodes, all alive: {after == before}")
        assert min(mbit.values()) > 0.8 * MBIT, "the links were not full"
        assert after == before
