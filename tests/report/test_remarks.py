"""Sentences a reader needs beside a table."""

import hashlib
from dataclasses import replace

from relief_ray.conformance.rules import RULES, Verdict
from relief_ray.conformance.trial import Conformance, concluded
from relief_ray.plugins.load import digests
from relief_ray.report.comparison import compare_runs
from relief_ray.report.remarks import STAND_IN, caption, remarks, stand_ins
from relief_ray.strategies import PRESETS


def with_losses(loaded, *losses, phases=("train", "train")):
    """Two rounds, every client's loss in them, and what they are called."""
    rounds = tuple(
        r.model_copy(update={"phase": phase, "clients": tuple(replace(c, loss=loss) for c in r.clients)})
        for r, loss, phase in zip(loaded.rounds, losses, phases, strict=True)
    )
    return replace(loaded, rounds=rounds)


def lines(word, *runs):
    return [r for r in remarks(compare_runs(runs)) if word in r]


def test_a_loss_that_rose_above_guessing_or_is_no_number_is_named(make):
    """Two classes: guessing costs ln 2 = 0.693."""
    runs = [
        with_losses(make("fedavg"), 0.5, 0.7),
        with_losses(make("fedprox"), 0.5, 0.69),
        with_losses(make("local"), 0.5, float("nan")),
        with_losses(make("central"), 0.5, float("inf")),
    ]
    (line,) = lines("diverged", *runs)
    assert line.endswith("training.clip_norm): fedavg, local and central")


def test_a_sum_of_losses_that_falls_or_changes_with_the_phase_is_no_divergence(make):
    """DarkDistill adds up exits, Harmony sensors, Pilot starts a second phase with more terms."""
    summed = with_losses(make("darkdistill"), 5.0, 2.0)
    second = with_losses(make("pilot"), 0.1, 2.0, phases=("stage1", "train"))
    assert not lines("diverged", summed, second) and not lines("Nothing was learned", summed, second)
    assert lines("diverged", with_losses(make("pilot"), 0.1, 2.0))


def test_a_loss_that_stays_above_guessing_needs_an_f1_to_match(make):
    stuck, better = with_losses(make("fedavg", scores=(0.4, 0.5)), 0.71, 0.7), with_losses(make("fedprox"), 0.71, 0.7)
    (line,) = lines("Nothing was learned", stuck, better)
    assert line.endswith("guessing; more rounds or a lower training.lr may help): fedavg") and not lines(
        "diverged", stuck, better
    )


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


CNN, LORA = ({"backbone": {"name": name}} for name in ("cnn", "moment_lora"))


def test_methods_for_lora_are_named_as_stand_ins_where_the_backbone_has_none(make):
    """What stands for LoRA is what the method itself states; FedProx and Harmony need no LoRA."""
    names = ("fedavg", "fedprox", "harmony", "fedsa_lora", "helora", "fedlease", "pilot", "fedicu")
    runs = [make(name, extra=CNN) for name in names]
    (line,) = lines("stand-ins", *runs)
    assert line.startswith(STAND_IN)
    for label in ("fedsa_lora", "helora", "fedlease", "pilot", "FedICU (reconstructed)"):
        assert f"{label}: " in line
    assert PRESETS["helora"].dense_stand_in in line
    assert set(stand_ins(runs)) == {"fedsa_lora", "helora", "fedlease", "pilot", "FedICU (reconstructed)"}
    assert not lines("stand-ins", *(make(name, extra=LORA) for name in names))
    assert not lines("stand-ins", make("fedavg", extra=CNN), make("harmony", extra=CNN))


def test_a_users_own_backbone_or_method_is_not_judged(make):
    own = {"backbone": {"name": "my.lab:Backbone"}}
    assert stand_ins([make("helora", extra=own), make("my.lab:Method", extra=CNN)]) == {}


def test_at_100_percent_the_data_are_named_and_not_the_methods(make):
    def easy(method, *scores):
        return [make(method, seed=i, scores=(0.4, f1), model=method) for i, f1 in enumerate(scores)]

    whole = [*easy("fedavg", 1.0, 1.0), *easy("relief", 1.0, 1.0)]
    (line,) = lines("too easy", *whole, *easy("v1", 1.0, 0.9))
    assert line == "fedavg and relief are at 100 % F1 in every run: these data are too easy to tell them apart"
    assert not lines("too easy", *easy("fedavg", 1.0), *easy("relief", 0.9999))


def test_methods_whose_own_file_has_changed_are_named(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "trim_k.py"
    file.write_text("trim = 0.2\n")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()

    def own(**files):
        loaded = make("trimmed")
        config = {**loaded.run.config, "strategy": {"name": "trim_k:Trimmed"}}
        return replace(loaded, run=loaded.run.model_copy(update={"own_sources": files, "config": config}))

    run = own(**{"trim_k.py": digest, "gone_k.py": "0" * 64})
    assert not lines("has changed", make("fedavg"), run), "a file that is not here is not judged"
    file.write_text("trim = 0.3\n")
    (line,) = lines("has changed", make("fedavg"), run)
    assert line.startswith("trim_k.py has changed since trimmed was computed") and "--rerun-stale" in line


def test_conformances_last_verdict_is_told_of_the_very_file_that_a_run_was_computed_with(
    make, tmp_path, monkeypatch, write
):
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))
    name = write("class Mine: ...\n")
    words = {"name": f"{name}:Mine (fedavg)", "heading": "", "about": {}, "verdicts": (), "rules": RULES}

    def judged(status):
        concluded(Conformance(**words), [Verdict(rule="purity", status=status)])

    def told():
        loaded = make("mine")
        config = {**loaded.run.config, "strategy": {"name": f"{name}:Mine"}}
        run = loaded.run.model_copy(update={"own_sources": began, "config": config})
        return lines("relief-ray conformance", make("fedavg"), replace(loaded, run=run))

    began = digests([name])
    assert told() == [], "never judged"
    judged("kept")
    judged("broken")
    (line,) = told()
    assert line.endswith(f"on the same file: {name}:Mine (fedavg): breaks purity; 0 kept, 0 not judged")
    words["name"] = f"{name}.py:Mine ({name}:Mine)"
    judged("kept")
    assert told()[0].endswith("keeps 1 rule"), "by the file's path too"
    began = {**began, "helper.py": "0" * 64}
    assert told(), "a run may rest on more code than was judged"
    began = {f"{name}.py": began[f"{name}.py"][::-1]}
    assert told() == [], "and on no other"
    began = digests([name])
    write("class Mine: v = 2\n", name)
    assert told(), "of the file as it was"
    began = digests([name])
    assert told() == [], "another file"


def test_the_head_line_says_how_often_runs_were_tested(make, put_on):
    def head(*every):
        runs = [put_on(make("fedavg", seed=i, planned=2), evaluation={"every": n}) for i, n in enumerate(every)]
        return caption(compare_runs(runs))

    assert "tested every" not in head(1) and "(tested after the last), E = 2" in head(2, 5)
    assert "2 rounds (tested every 1 or 2 rounds and after the last), E = 2" in head(1, 2)
