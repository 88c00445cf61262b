"""The command line from end to end, and the page that is made from the figures."""

import json
import math
import platform
import subprocess
import sys

import pytest

from benchmarks.engine.__main__ import main
from benchmarks.engine.machine import ROOT, facts
from benchmarks.engine.page import VARIANTS, render
from benchmarks.engine.tables import TARGETS, number, targets

REQUIRED = {
    "full_n8_vs_torch2",
    "full_n100_vs_torch2",
    "full_n8_vs_flower",
    "full_n100_vs_flower",
    "noop_n8_vs_plain_ray",
    "noop_n100_vs_plain_ray",
    "type_c_reuse_vs_eager_full",
    "type_c_reuse_vs_own_full",
    "gemm_peak_fraction",
    "pss_n100_gib",
    "formats_n8_cost",
    "formats_n100_cost",
}


@pytest.mark.ci
def test_parts_without_ray(tmp_path):
    out, page = tmp_path / "figures.json", tmp_path / "page.md"
    main(["--tiny", "--parts", "local,roofline", "--json", str(out), "--markdown", str(page)])
    figures = json.loads(out.read_text())
    assert figures["type_c_reuse_vs_eager_full"] > 1.0
    assert 0.0 < figures["gemm_peak_fraction"] < 1.0
    assert figures["type_c_reuse_deviation"] < 1e-3
    assert all(not isinstance(v, (dict, list)) for v in figures.values())
    assert all(math.isfinite(v) for v in figures.values() if isinstance(v, float))
    text = page.read_text()
    assert "## One client's local round" in text and "Full training through Ray" not in text
    assert figures["type_c_prepare_s"] > 0 and "prepares once for a client and a whole run" in text
    for name, _ in VARIANTS[1:]:
        assert number(figures[f"type_c_{name}_vs_eager_full"]) in text
    again = tmp_path / "again.md"
    main(["--from", str(out), "--markdown", str(again)])
    assert again.read_text() == page.read_text()


@pytest.mark.slow
@pytest.mark.ray
def test_everything(tmp_path):
    """In a process of its own: in this one, the cluster of other tests may be up, whose cores do not suffice."""
    out, page = tmp_path / "figures.json", tmp_path / "page.md"
    command = [sys.executable, "-m", "benchmarks.engine", "--tiny", "--no-peers", "--json", out, "--markdown", page]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(out.read_text())
    assert set(figures) >= REQUIRED
    assert figures["full_n8_vs_flower"] is None and figures["full_n8_run_to_run_equal"] is True
    assert figures["full_n8_deviation"] < 1e-2 and figures["full_n8_torch2_deviation"] < 1e-3
    assert figures["full_n8_first_deviation"] < 1e-3 and "full_n8_note" not in figures
    assert (
        figures["noop_n8_vs_exact_ray"] > 0
        and figures["noop_n100_ours_s"] > 0
        and figures["noop_n100_moved_bytes"] > 4 * 1.2e6
    )
    assert figures["start_command_s"] > figures["start_n100_imports_s"] > 0 and figures["type_c_bound_ms"] > 0
    assert figures["recording_n8_run_s"] > 0 and figures["recording_n8_points_left"] == 0
    sections = [line for line in page.read_text().splitlines() if line.startswith("## ")]
    assert len(sections) - ("## Missed aims, and what is left" in sections) == 11
    for n in (8, 100):
        shares = [v for k, v in figures.items() if k.startswith(f"noop_n{n}_") and k.endswith("_share")]
        assert sum(shares) == pytest.approx(1.0)
        parts = [v for k, v in figures.items() if k.startswith(f"full_n{n}_host_") and k.endswith("_share")]
        assert len(parts) == 11 and sum(parts) == pytest.approx(figures[f"full_n{n}_hosts_share"])


def test_a_part_that_fails_leaves_the_figures_of_those_before_it(tmp_path, monkeypatch):
    out = tmp_path / "figures.json"
    monkeypatch.setattr("benchmarks.engine.roofline.measure", lambda *given: {"near_memory_gb_per_s": 0.5})
    monkeypatch.setattr("benchmarks.engine.gpu.measure", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["--tiny", "--parts", "roofline,gpu", "--json", str(out)])
    left = json.loads(out.read_text())
    assert left["near_memory_gb_per_s"] == 0.5 and left["mode"] == "tiny"
    page = tmp_path / "page.md"
    main(["--from", str(out), "--markdown", str(page)])
    assert "Mode `tiny`" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--parts", "local,everything"], "unknown"),
        (["--json", "{there}/file/figures.json"], "--json .* cannot be written"),
        (["--json", "{there}/whole.json", "--parts", "gpu"], "--json .* holds figures of noop, roofline, which would"),
        (["--from", "{there}/whole.json"], "--from .* measures nothing; expected --markdown"),
        (["--from", "{there}/whole.json", "--markdown", "{there}/x", "--parts", "gpu"], "--from .* measures nothing"),
        (["--markdown", "{there}"], "--markdown .* cannot be written"),
        (["--markdown", "{there}/x", "--from", "{there}/none.json"], "--from .* cannot be read"),
        (["--markdown", "{there}/x", "--from", "{there}/file"], "--from .* not JSON"),
        (["--markdown", "{there}/x", "--from", "{there}/other.json"], "--from .* not the figures of a run"),
    ],
)
def test_what_would_come_to_nothing_is_refused_before_anything_is_measured(tmp_path, monkeypatch, arguments, told):
    monkeypatch.setattr("benchmarks.engine.__main__.run_parts", lambda *given: pytest.fail("it was measured"))
    (tmp_path / "file").write_text("text")
    (tmp_path / "other.json").write_text("[1]")
    (tmp_path / "whole.json").write_text('{"load_before": 0.1, "parts": "roofline,noop,gpu"}')
    with pytest.raises(SystemExit, match=told):
        main([a.format(there=tmp_path) for a in arguments])


def test_every_required_figure_is_aimed_at_or_shown():
    assert REQUIRED - {"gemm_peak_fraction"} <= {key for key, _, _ in TARGETS}


def test_aims_are_judged_in_their_own_direction():
    figures = {"full_n8_vs_torch2": 1.6, "noop_n8_vs_plain_ray": 1.6, "full_n8_vs_flower": None}
    lines = targets(figures).splitlines()
    rows = {
        line.split("|")[1].strip(): line.split("|")[-2].strip()
        for line in lines
        if line.startswith("| full") or "no-op" in line
    }
    assert rows["full training, 8 clients, against PyTorch in two processes"] == "yes"
    assert rows["full training, 8 clients, against Flower"] == "not measured"
    assert rows["no-op round, 8 clients, over the minimal Ray loop"] == "**no**"


def test_what_rounding_would_lift_to_its_aim_is_shown_in_full():
    assert "| ≥ 1.5 | 1.4978 | **no** |" in targets({"full_n100_vs_torch2": 1.49784})
    assert "| ≤ 8 | 8.004 | **no** |" in targets({"start_n100_s": 8.004})


def test_numbers_keep_three_digits():
    assert [number(v) for v in (1234567.0, 12.345, 0.01234, 1e-6, 0.0, None, True)] == [
        "1,234,567",
        "12.3",
        "0.0123",
        "1.0e-06",
        "0",
        "–",
        "yes",
    ]


def test_the_committed_page_is_what_its_record_gives():
    """To the byte: a constant of the code that has changed since would show."""
    record = json.loads((ROOT / "results" / "benchmarks" / "engine.json").read_text())
    assert (ROOT / "docs" / "performance.md").read_text() == render(record)


def test_the_readme_says_how_fast_training_is():
    record = json.loads((ROOT / "results" / "benchmarks" / "engine.json").read_text())
    cases = [f"{data}{number}" for data in ("full_n", "full_dsa_n") for number in (8, 100)]
    peers, flower = (
        [record[f"{case}_vs_{peer}"] for case in cases for peer in names] for names in (("torch2", "pfl"), ("flower",))
    )
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"Training through Ray is {min(peers):.1f} to {max(peers):.1f} times as fast as PyTorch or pfl in two "
        f"processes. Beside Flower it is {min(flower):.1f} to {max(flower):.1f} times"
    ) in text


def test_nothing_measured_gives_a_page_with_a_head_alone():
    assert "## " not in render({"mode": "whole"}).replace("# Performance", "")


ENVIRONMENT = {
    "machine_cpu": "X",
    "machine_cores": 2,
    "machine_system": "Linux",
    "python": "3.11",
    "torch": "2.13",
    "torch_build": "AVX2, MKL",
    "ray": "2.60",
    "threads": 1,
    "niceness": 5,
    "commit": "abc",
    "date": "today",
    "load_before": 0.4,
    "load_after": 2.0,
    "full_n8_turns": 5,
    "full_n8_rounds": 4,
}


@pytest.mark.parametrize(("before", "warned"), [(0.5, False), (0.51, True), (None, False)])
def test_a_machine_that_was_not_quiet_is_warned_of(before, warned):
    text = render({**ENVIRONMENT, "load_before": before})
    assert ("**Warning: the machine was not quiet.**" in text) == warned


def test_the_environment_is_on_the_page():
    text = render(ENVIRONMENT)
    assert "abc, today" in text and "2 cores, X, Linux" in text and "2.13 (AVX2, MKL)" in text
    assert "1 per process" in text and "| niceness | 5 for all" in text
    assert "0.4 at the beginning, 2 at the end" in text
    assert "full training against PyTorch in two processes 5 of 4 rounds each" in text
    assert platform.node() not in facts().values()
