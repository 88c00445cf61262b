"""Sentences a reader needs beside a table."""

from dataclasses import replace

from relief_ray.report.compare import compare_runs
from relief_ray.report.facts import remarks


def with_loss(loaded, loss):
    rounds = tuple(
        r.model_copy(update={"clients": tuple(c.model_copy(update={"loss": loss}) for c in r.clients)})
        for r in loaded.rounds
    )
    return replace(loaded, rounds=rounds)


def test_training_that_ends_worse_than_guessing_is_named(make):
    """Two classes: guessing costs ln 2 = 0.693."""
    runs = [with_loss(make("fedavg"), 0.7), with_loss(make("v1"), 0.69), with_loss(make("v2"), float("nan"))]
    (line,) = [r for r in remarks(compare_runs(runs)) if "diverged" in r]
    assert line.endswith("ln K): fedavg and v2")


def test_runs_of_different_programs_are_named(make):
    other = make("v1")
    other = replace(other, run=other.run.model_copy(update={"source_digest": "0" * 64}))
    shown = " ".join(remarks(compare_runs([make("fedavg"), other])))
    assert "Computed by 2 different programs" in shown and "00000000" in shown and "ssssssss" in shown
    assert "different programs" not in " ".join(remarks(compare_runs([make("fedavg"), make("v1")])))


def test_a_run_that_two_programs_computed_is_named(make):
    mixed = make("v1")
    mixed = replace(mixed, run=mixed.run.model_copy(update={"warnings": ("resumed by another program: x",)}))
    shown = " ".join(remarks(compare_runs([make("fedavg"), mixed])))
    assert "Resumed by another program than began them: v1" in shown
