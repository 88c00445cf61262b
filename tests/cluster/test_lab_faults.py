"""Links that are cut and nodes that join while a run or a grid goes on, in a lab of private disks."""

import signal
import time

import pytest

from relief_ray.records.run_folder import read_run
from relief_ray.studies.plan import Plan
from tests.cluster.labs import ADDRESS, NO_LAB, TINY, Lab, Running, digests, is_possible, make_lab
from tests.lab.lab import cut
from tests.lab.state import Place

pytestmark = [
    pytest.mark.lab_long,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not is_possible(), reason=NO_LAB),
]
# About a second a round: 2 of 8 clients, those of type C, are on the node that is cut.
RUN = ["run", "quick", "--json", "--placement=typed", ADDRESS, "--set=training.epochs=4", "--set=evaluation.every=1000"]
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def lab():
    """A head and a node for each device type, their raylets under a supervisor."""
    with make_lab("f", "a:3", "b:3", "c:2") as lab:
        lab.start("head", "all")
        yield lab


def rounds_of(running: Running) -> dict[int, dict[str, object]]:
    return {event["round"]: event for event in running.events()}


def cut_at_round_4(lab: Lab, running: Running) -> float:
    """Cut the link of node c as soon as round 3 is reported; the moment."""
    running.until(lambda: 3 in rounds_of(running), 240)
    # Not as a command, whose start takes as long as a round.
    cut(Place(lab.name), "c")
    return time.monotonic()


@pytest.mark.parametrize("cut_s", [20, 100])
def test_a_cut_link_costs_one_limit_and_the_node_is_used_again(lab, cut_s):
    settings = ["--set=rounds=100000", "--set=runtime.quorum=0.7", f"--set=runtime.client_timeout_s={LIMIT_S}"]
    running = lab.go("head", *RUN, *settings, f"--out=cut-{cut_s}")
    since_s = cut_at_round_4(lab, running)
    time.sleep(max(0.0, cut_s - (time.monotonic() - since_s)))
    lab.command("heal", "c")
    healed_s = time.monotonic()

    def is_used_again() -> bool:
        events = [e for e in running.events() if e["at_s"] > healed_s]
        return len(events) > 3 and not any(e["left_out"] for e in events[-3:])

    running.until(is_used_again, 200)
    again_s = running.events()[-3]["at_s"] - healed_s
    assert running.end(number=signal.SIGINT) == 130
    events = running.events()
    late = [e for e in events if e["left_out"]]
    before_s = max(e["wall_s"] for e in events if e["round"] in (2, 3))
    # Back on a busy machine, the node may need a whole limit once more for its first answer.
    following_s = [e["wall_s"] for e in late[1:] if e["at_s"] < healed_s]
    longest_s = max(e["wall_s"] for e in events if e["at_s"] > healed_s)
    print(
        f"cut {cut_s} s: before {before_s:.2f} s, round {late[0]['round']} {late[0]['wall_s']:.2f} s, then "
        f"{max(following_s):.2f} s at most in {len(following_s)} rounds until it was healed, "
        f"{longest_s:.2f} s since; used again {again_s:.1f} s after it was healed"
    )
    assert late[0]["round"] in (4, 5) and late[0]["wall_s"] <= LIMIT_S + 2
    # Ray declares the node dead at about the same moment.
    assert {left["cause"] for e in late[:1] for left in e["left_out"]} <= {"timeout", "lost"}
    assert {left["device"] for e in late for left in e["left_out"]} == {"C"}
    assert max(following_s) <= 2 * before_s + 1 and longest_s <= LIMIT_S + 2
    assert read_run(lab.files("head") / f"cut-{cut_s}" / "relief-s0").status == "interrupted"
    lab.wait_ready()


def test_at_quorum_1_the_run_ends_and_its_resume_has_the_serial_bits(lab):
    rounds = ["--set=rounds=8", "--set=training.epochs=4", "--set=evaluation.every=1000"]
    running = lab.go("head", *RUN, "--set=rounds=8", f"--set=runtime.client_timeout_s={LIMIT_S}", "--out=whole")
    cut_at_round_4(lab, running)
    assert running.end(within_s=240) == 3, running.text()
    assert "6 of 8 clients" in running.text() and "runtime.quorum = 1" in running.text()
    lab.command("heal", "c")
    lab.wait_ready()
    lab.run("head", "resume", "whole")
    lab.run("head", "run", "quick", *rounds, "--out=serial")
    files = lab.files("head")
    print(f"exit code 3; resumed: {digests(files / 'whole' / 'relief-s0')[-1]}")
    assert digests(files / "whole" / "relief-s0") == digests(files / "serial" / "relief-s0")
    assert len(digests(files / "serial" / "relief-s0")) == 8


def clients_on(lab: Lab, node: str) -> set[str]:
    """Titles of the processes on a node that hold clients now, as ``ps`` has them."""
    listed = lab.command("exec", node, "--", "ps", "axo", "args").stdout
    return {line for line in listed.splitlines() if line.startswith("ray::ClientWorker")}


def test_a_node_that_joins_during_a_grid_gets_cells():
    with make_lab("j", "a", "b") as lab:
        lab.start("head", "a")
        long = [*TINY, "--set=rounds=200", "--set=tracking.enabled=false", "--set=evaluation.every=200"]
        grid = lab.go("head", "grid", "smoke", "--json", ADDRESS, "--out=grid", *long)
        grid.until(lambda: bool(grid.events("cell")), 240)
        num_before = len(grid.events("cell"))
        lab.start("b")
        print(f"joined after {num_before} to {len(grid.events('cell'))} of 12 cells")
        seen = set[str]()

        def has_cells() -> bool:
            seen.update(clients_on(lab, "b"))
            return bool(seen)

        grid.until(has_cells, 240)
        assert grid.end(within_s=300) == 0, grid.text()
        print("on the node that joined:", sorted(seen))
        assert {entry.status for entry in Plan.read(lab.files("head") / "grid", kind="grid").look()} == {"done"}
