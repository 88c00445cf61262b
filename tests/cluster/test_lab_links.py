"""Seconds that a physical run measures on slow links, against bytes over rate."""

import pytest

from relief_ray.records.run_folder import read_rounds
from tests.cluster.labs import ADDRESS, NO_LAB, digests, is_possible, make_lab

pytest.importorskip("relief_ray.records.schema", reason="runs do not measure their links")
pytestmark = [
    pytest.mark.lab_long,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not is_possible(), reason=NO_LAB),
]
RUN = [
    "run",
    "quick",
    "--strategies=fedavg",
    "--set=rounds=3",
    "--set=evaluation.every=1000",
    "--set=training.epochs=2",
]


@pytest.fixture(scope="module")
def lab():
    with make_lab("l", "a:3", "b:3", "c:2") as lab:
        lab.start("head", "all")
        lab.run("head", *RUN, "--out=serial")
        yield lab


@pytest.mark.parametrize(("up_mbit", "down_mbit"), [(5, 10), (20, 20)])
def test_measured_seconds_of_a_link_are_bytes_over_rate(lab, up_mbit, down_mbit):
    lab.command("shape", "c", "--up-mbit", up_mbit, "--down-mbit", down_mbit)
    out = f"at-{up_mbit}-{down_mbit}"
    lab.run(
        "head", *RUN, ADDRESS, "--set=runtime.physical=true", "--set=runtime.mode=auto", f"--out={out}"
    )  # fmt: skip
    rounds, ratios = read_rounds(lab.files("head") / out / "fedavg-s0"), []
    for record in rounds[1:]:  # the first one also starts the hosts
        for client in (6, 7):
            seen = record.physical[client]
            for name, seconds, num_bytes, mbit in (
                ("down", seen.down_s, seen.bytes_down, down_mbit),
                ("up", seen.up_s, seen.bytes_up, up_mbit),
            ):
                expected_s = num_bytes * 8 / (mbit * 1e6)
                ratios.append((name, round(seconds / expected_s, 3)))
                print(f"{mbit} Mbit/s {name}: {seconds:.2f} s for {num_bytes} bytes, by rate {expected_s:.2f} s")
    assert len(ratios) == 8 and all(0.85 <= ratio <= 1.15 for _, ratio in ratios), ratios
    assert digests(lab.files("head") / out / "fedavg-s0") == digests(lab.files("head") / "serial" / "fedavg-s0")
