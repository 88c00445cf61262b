"""The ledger is scanned by its seals; rounds are parsed when they are used, and nothing of them is kept."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from relief_ray.core.messages import ClientCost, Power, RoundCost, StageTimes
from relief_ray.records import checkpoint
from relief_ray.records.cells import look
from relief_ray.records.checkpoint import Checkpoint, Tally
from relief_ray.records.facts import LeftOutLog, left_out_of
from relief_ray.records.ledger import LedgerEnd, LineFormat, scan
from relief_ray.records.run_folder import RunFolder, read_rounds, read_run, restore
from relief_ray.records.schema import (
    FedAvgRecord,
    LeftOutFacts,
    Metrics,
    PhysicalRecord,
    ProbeRecord,
    RoundRecord,
    Totals,
)
from relief_ray.report.runs import load_runs, take_inventory
from relief_ray.support.errors import UserError
from tests.records.scenario import make_run
from tests.sealed import change_run, line_of, page, put_page, put_rounds

LINES = LineFormat.of(make_run())


def end_of(*lines: bytes) -> LedgerEnd:
    """The end of a ledger of these lines."""
    end = LINES.begin
    for line in lines:
        end = LINES.after(line, end)
    return end


@pytest.fixture
def path(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def parsed(monkeypatch) -> list[int]:
    """Numbers of the rounds that were parsed, in order."""
    seen, parse = [], LineFormat.read

    def counted(line_format: LineFormat, *args: object) -> RoundRecord:
        record = parse(line_format, *args)
        seen.append(record.round)
        return record

    monkeypatch.setattr(LineFormat, "read", counted)
    return seen


def test_it_is_a_sequence_that_parses_what_is_used(path, parsed):
    rounds = read_rounds(path)
    assert (len(rounds), rounds.numbers, parsed) == (4, (1, 2, 3, 4), [])
    assert rounds[-1].round == 4 and next(reversed(rounds)).round == 4 and parsed == [4, 4]
    assert rounds.where(lambda number: number % 2 == 0).numbers == (2, 4) and rounds[1:3].numbers == (2, 3)
    assert [record.round for record in rounds[1:3]] == [2, 3] and parsed == [4, 4, 2, 3]
    assert rounds == tuple(rounds) and rounds != tuple(rounds)[1:] and hash(rounds) == hash(read_rounds(path))
    with pytest.raises(IndexError):
        rounds[4]


def test_a_resume_parses_the_last_round_alone(path, scenario, parsed):
    with RunFolder.resume(path) as folder:
        restored = restore(folder, scenario.BINDING)
    assert parsed == [4] and restored.last.round == 4 and restored.rounds.numbers == (1, 2, 3, 4)


def test_a_ledger_that_changes_while_it_is_read_says_so(path):
    rounds, data = read_rounds(path), (path / "rounds.jsonl").read_bytes()
    (path / "rounds.jsonl").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"rounds\.jsonl: line 4 changed while it was read .*; read it again"):
        rounds[3]
    (path / "rounds.jsonl").write_bytes(data.replace(b'"wall_s":', b'"wall_S":', 1))
    with pytest.raises(UserError, match="line 1 changed while it was read"):
        rounds[0]
    assert rounds[1].round == 2
    (path / "rounds.jsonl").unlink()
    with pytest.raises(UserError, match=r"rounds\.jsonl: No such file .* expected the ledger that was scanned"):
        rounds[1]


def test_a_line_of_another_program_is_named_when_it_is_read(path):
    ledger = path / "rounds.jsonl"
    first, *rest = ledger.read_bytes().splitlines(keepends=True)
    put_rounds(path, [read_rounds(path)[0], {"round": 2, "mood": "good"}])
    rounds = read_rounds(path)
    assert rounds[0].round == 1
    with pytest.raises(UserError, match=r"line 2 is damaged \(.*\), expected a round's JSON"):
        rounds[1]
    ledger.write_bytes(b"".join([first, line_of({"mood": "good"}), *rest[1:]]))
    with pytest.raises(UserError, match=r"line 2 is damaged .*does not begin with its run, the line before"):
        read_rounds(path)


def test_the_line_of_damage_counts_from_the_beginning_wherever_reading_began(path):
    ledger = path / "rounds.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([*lines[:2], b"{}\n", lines[3]]))
    with pytest.raises(UserError, match="line 3 is damaged"):
        scan(ledger, LINES, end_of(*lines[:2]))
    ledger.write_bytes(b"".join([*lines[:3], lines[3][:40]]))
    assert scan(ledger, LINES, end_of(lines[0])).torn == "line 4 was torn after 40 bytes"


def test_what_was_counted_over_rounds_comes_back_with_the_checkpoint(path, scenario):
    """So that a resumed run tells the same as one that was never interrupted."""
    change_run(path, status="running")
    left = LeftOutFacts(device="C", cause="timeout", since=3)
    records = [
        r.model_copy(update={"left_out": {1: left}, "rejected": {1: "no"}}) for r in tuple(read_rounds(path))[2:]
    ]
    log = LeftOutLog()
    for record in records:
        log.add(record)
    put_rounds(path, [*read_rounds(path)[:2], *records])
    point = checkpoint.load(path, scenario.BINDING)
    tally = Tally(untrained={"fusion.B": 4}, left_out=log.summary())
    again = Checkpoint(round=4, state=point.state, clients=point.clients, tally=tally)
    checkpoint.save(path, again, scenario.BINDING)
    with RunFolder.resume(path) as folder:
        restored = restore(folder, scenario.BINDING)
    entries = {(entry.client, entry.cause): entry for entry in restored.checkpoint.tally.left_out}
    resumed = LeftOutLog(entries=entries, last=restored.last.left_out)
    assert restored.checkpoint.tally == tally
    assert (resumed.entries, resumed.last, resumed.summary()) == (log.entries, log.last, left_out_of(records))


def _swapped(lines, i, j):
    lines = list(lines)
    lines[i], lines[j] = lines[j], lines[i]
    return lines


def _changed(lines, i, **fields):
    """The lines with other fields in one of them, which is sealed anew."""
    content = {**json.loads(lines[i]), **fields}
    content.pop("sha256")
    return [*lines[:i], line_of(content), *lines[i + 1 :]]


# What makes a ledger of whole, sealed lines another one; ``a`` are the run's lines, ``b`` those of the same cell by
# another run, ``c`` those of this run computed again from round 2 on; the line that is refused, and the words.
CHAINS = {
    "all lines of another run": (lambda a, b, c: b, 1, "is of another run"),
    "the first line of another run": (lambda a, b, c: [b[0], *a[1:]], 1, "is of another run"),
    "a middle line of another run": (lambda a, b, c: [*a[:2], b[2], a[3]], 3, "is of another run"),
    "the last line of another run": (lambda a, b, c: [*a[:3], b[3]], 4, "is of another run"),
    "another run's lines after these": (lambda a, b, c: [*a, *b], 5, "is of another run"),
    "the first line twice": (lambda a, b, c: [a[0], *a], 2, "is round 1 again, expected round 2"),
    "a middle line twice": (lambda a, b, c: [*a[:2], *a[1:]], 3, "is round 2 again, expected round 3"),
    "the last line twice": (lambda a, b, c: [*a, a[3]], 5, "is round 4 again, expected round 5"),
    "all lines twice": (lambda a, b, c: [*a, *a], 5, "is round 1 again, expected round 5"),
    "a line repeated at the end": (lambda a, b, c: [*a, a[1]], 5, "is round 2 again, expected round 5"),
    "the first two lines swapped": (lambda a, b, c: _swapped(a, 0, 1), 1, "is round 2, expected round 1"),
    "two middle lines swapped": (lambda a, b, c: _swapped(a, 1, 2), 2, "is round 3, expected round 2"),
    "the last two lines swapped": (lambda a, b, c: _swapped(a, 2, 3), 3, "is round 4, expected round 3"),
    "all lines the other way round": (lambda a, b, c: a[::-1], 1, "is round 4, expected round 1"),
    "the first line missing": (lambda a, b, c: a[1:], 1, "is round 2, expected round 1: a line is missing"),
    "a middle line missing": (lambda a, b, c: [*a[:2], a[3]], 3, "is round 4, expected round 3: a line is missing"),
    "the first half missing": (lambda a, b, c: a[2:], 1, "is round 3, expected round 1: a line is missing"),
    "a middle line computed again": (lambda a, b, c: [*a[:2], c[2], a[3]], 3, "is round 3 but does not follow"),
    "a line from before a rewind": (lambda a, b, c: [*c[:3], a[3]], 4, "is round 4 but does not follow"),
    "a first line that is round 0": (lambda a, b, c: _changed(a, 0, round=0), 1, "is round 0 again, expected round 1"),
    "a line renumbered": (lambda a, b, c: _changed(a, 2, round=7), 3, "is round 7, expected round 3"),
    "a line whose run was changed": (lambda a, b, c: _changed(a, 1, run="feed"), 2, r"is of another run \(feed\)"),
    "a changed line, sealed anew": (lambda a, b, c: _changed(a, 1, wall_s=9.0), 3, "is round 3 but does not follow"),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "number", "words"), CHAINS.values(), ids=CHAINS)
def test_a_line_that_is_not_the_next_one_of_this_run_is_refused_by_its_number(path, tmp_path, lines, number, words):
    ledger, other = path / "rounds.jsonl", tmp_path / "other"
    mine = ledger.read_bytes().splitlines(keepends=True)
    records = tuple(read_rounds(path))
    shutil.copytree(path, other)
    put_rounds(other, [r.model_copy(update={"wall_s": 7.5}) if r.round > 1 else r for r in records])
    again = (other / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    change_run(other, id="beef")
    put_rounds(other, records)
    foreign = (other / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines(mine, foreign, again)))
    said = rf"rounds\.jsonl: line {number} {words}.*; restore the file or run the cell again"
    for read in (read_rounds, lambda folder: RunFolder.resume(folder)):
        with pytest.raises(UserError, match=said):
            read(path)
    assert look(path).status == "failed" and re.search(said, look(path).why)
    shown = take_inventory([path]).items[0]
    assert shown.status == "failed" and re.search(said, shown.why), "of a report"


def test_a_copy_of_the_first_lines_is_a_ledger_that_a_run_goes_on_from(path, finished, scenario):
    """So is the copy of a mirror, and so is what a rewind leaves."""
    change_run(path, status="interrupted")
    lines = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(5):
        (path / "rounds.jsonl").write_bytes(b"".join(lines[:number]))
        assert read_rounds(path).numbers == tuple(range(1, number + 1))
    shutil.rmtree(path / "checkpoints")
    scenario.drive(path)
    assert scenario.outcome(path) == scenario.outcome(finished)


def test_a_finished_run_whose_checkpoint_holds_another_model_is_refused_and_no_tensor_is_read(path, monkeypatch):
    change_run(path, config=read_run(path).config | {"rounds": 4})
    for name in ("_read_state", "load"):
        monkeypatch.setattr(checkpoint, name, None)
    assert look(path).status == "done" and len(load_runs([path])) == 1
    (newest, older) = checkpoint.generations(path)
    for generation in (newest, older):
        saved = page(generation / "manifest.json")
        put_page(generation / "manifest.json", {**saved, "model_sha256": "0" * 64})
        said = rf"the checkpoint of round {saved['round']} holds the model 0000.*, the ledger names .*; restore both"
        assert look(path).status == "failed" and re.search(said, look(path).why)
        assert re.search(said, take_inventory([path]).items[0].why), "of a report"
        with pytest.raises(UserError, match=said):
            load_runs([path])
        (generation / "manifest.json").write_text("{")
    assert look(path).status == "done", "no checkpoint can be read: the ledger alone says it"


def full_record(record: RoundRecord) -> RoundRecord:
    """A record in which every field has a value, and names that ``run.json`` does not have."""
    client, other = record.clients
    trained = ("fusion.B", "expert.0", "fusion.A.acc[lora_a,lora_b;r4]", "head[;;o0.75]")
    probe = ProbeRecord(trained=trained[:2], num_windows=3, step_flops=1.5, taps=("a",), output="x", omit_absent=True)
    full = replace(
        client, trained=trained, uploaded=trained[1:3], view="cluster.1", phase="x", epochs=3, taps=("a", "b"),
        sq_norm={"expert.0": 1 / 3, "fusion.A.acc": 0.1 + 0.2}, output="exit.1", extra_flops=5.0, omit_absent=True,
        probes=(probe, probe), loss=1e-7, args={"mu": 0.5}, measured_stages=StageTimes(forward_s=0.1, down_s=1e-9),
    )  # fmt: skip
    norms = replace(other, sq_norm={"fusion.B": 2.0, "head": 3.0}, probes=(probe,))
    times = StageTimes(forward_s=0.1, backward_s=0.2, optimizer_s=0.3, up_s=0.4, down_s=1 / 3)

    def cost(round_s: float, *clients: tuple[int, StageTimes, float]) -> RoundCost:
        rows = [ClientCost(client=c, times=t, wait_s=wait_s, energy_j=0.1 * c) for c, t, wait_s in clients]
        return RoundCost(clients=tuple(rows), round_s=round_s, energy_j=8.0)

    links = StageTimes(up_s=0.4, down_s=1e-5)
    costs = {
        "one": cost(7.0, (0, times, 7.0 - times.busy_s), (4, links, 7.0 - links.busy_s)),
        "two": cost(1.0, (0, links, 0.5), (4, StageTimes(up_s=0.4), 0.5)),
        "again": cost(2.0, (0, links, 1.5), (4, StageTimes(up_s=0.4), 1.5)),
        "uneven": cost(2.0, (0, replace(times, backward_s=1 / 3), 0.1), (4, links, 0.2)),
        "none": cost(3.0),
        "fewer": cost(math.inf, (4, StageTimes(), math.inf)),
    }
    metrics = Metrics(
        f1=0.1 + 0.2, f1_fleet=0.5, f1_by_client={3: 1 / 3}, confusion=(((1, 2), (3, 4)),), f1_by_subject={"101": 0.5},
        f1_by_modality={"gyro": 0.25, "acc": 0.5}, scores={"kappa": -0.5},
    )  # fmt: skip
    return record.model_copy(
        update={
            "participants": (0, 1, 5), "clients": (full, norms), "costs": costs, "metrics": metrics,
            "validation": Metrics(f1=None, f1_by_modality={"acc": 0.1, "mag": 0.2}),
            "totals": {"two": Totals(time_s=1.5), "one": Totals(energy_j=1e300, bytes_up=2**60, bytes_down=3)},
            "pairwise": {"fusion.A.acc": ((0, 1, -0.25),)}, "diagnostics": {"warmth": {"0": 1.0}},
            "d_bar": {"fusion.B": 1e-300, "fusion.A.acc": 1.0}, "divergence": {"fusion.B": 0.7},
            "left_out": {2: LeftOutFacts(device="C", cause="lost", since=1)}, "rejected": {2: "gone"},
            "physical": {n: PhysicalRecord(host=f"h{n}", device="cpu", call_s=n or None,
                                           energy_by_rail={"V (2)": n} if n else {}) for n in (0, 4)},
            "fedavg": {"one": FedAvgRecord(round_s=1.0, energy_j=2.0, compute_s=0.3, link_share=0.4)},
            "deadline_s": 0.0, "speedup": 1.0, "speedup_paper": 2.0, "trained_fraction": 0.5, "moved_bytes": 7,
            "server_s": 0.25, "warnings": ("a", "b"),
        }
    )  # fmt: skip


FLEET = {"modalities": ["acc", "gyro", "mag"], "clients": [{"device": d} for d in "ABC"]}
WATTS = {"A": {"active_w": 60.0, "comm_w": 36.0, "idle_w": 12.0}, "B": {"active_w": 0.1, "comm_w": 0.2, "idle_w": 0.3}}


def clocks(*names: str) -> dict[str, object]:
    return {"clocks": {name: {} for name in names}}


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"fleet": FLEET, "calibration": clocks("one", "two")},
        {"fleet": {"clients": [{"device": "A"}] * 5}, "devices": WATTS, "calibration": clocks("two", "one")},
        {"calibration": clocks("one", "two", "again", "uneven", "none", "fewer")},
    ],
)
def test_a_line_gives_back_every_field_of_its_record_to_the_bit(finished, run):
    lines = LineFormat.of(make_run(**run))
    plain = read_rounds(finished)[0]
    bare = plain.model_copy(update={"clients": (), "costs": {}, "totals": {}, "participants": ()})
    full = full_record(plain)
    alike = full.model_copy(update={"clients": tuple(replace(full.clients[0], client=c) for c in (0, 3))})
    for record in (plain, full, alike, bare, bare.model_copy(update={"participants": (1,)})):
        line = lines.line(record, lines.begin)
        back = lines.read(line[: line.rindex(b',"sha256"')])
        for name in RoundRecord.model_fields:
            assert repr(getattr(back, name)) == repr(getattr(record, name)), name
        assert back.model_fields_set >= {"clients", "costs", "participants"}
    nowhere = lines.line(plain.model_copy(update={"wall_s": math.nan}), lines.begin)
    assert math.isnan(lines.read(nowhere[: nowhere.rindex(b',"sha256"')]).wall_s)


def test_a_reader_without_clients_has_the_figures_of_their_costs(path):
    put_rounds(path, [full_record(record) for record in read_rounds(path)])
    for whole, less in zip(read_rounds(path), read_rounds(path).light(), strict=True):
        assert less.participants == whole.participants and less.totals == whole.totals
        assert less.clients == tuple(replace(client, sq_norm={}) for client in whole.clients)
        for clock, cost in whole.costs.items():
            kept = less.costs[clock]
            assert len(kept.clients) <= 2 and (kept.round_s, kept.energy_j) == (cost.round_s, cost.energy_j)
            assert (kept.compute_s, kept.link_share) == (cost.compute_s, cost.link_share)
    first, whole = read_rounds(path).light()[0], read_rounds(path)[0]
    assert first.metrics == whole.metrics.model_copy(update={"confusion": ()})


def test_joules_follow_from_the_power_that_the_run_names(finished):
    watts = {name: Power(**values) for name, values in WATTS.items()}
    lines = LineFormat.of(make_run(fleet=FLEET, devices=watts))
    times = StageTimes(forward_s=0.1, up_s=1 / 3)
    costs = [
        ClientCost(
            client=c,
            times=times,
            wait_s=2.0 - times.busy_s,
            energy_j=watts["AB"[c]].energy_j(times, 2.0 - times.busy_s),
        )
        for c in (0, 1)
    ]
    record = read_rounds(finished)[0].model_copy(
        update={"costs": {"x": RoundCost(clients=tuple(costs), round_s=2.0, energy_j=9.0)}}
    )
    line = lines.line(record, lines.begin)
    body = line[: line.rindex(b',"sha256"')]
    assert lines.read(body).costs == record.costs and b"client_j" not in line and b"wait_s" not in line
    with pytest.raises(ValueError, match="joules of client 1"):
        LineFormat.of(make_run(fleet=FLEET, devices={"A": watts["A"]})).read(body)


def test_a_line_names_nothing_that_the_run_names_and_holds_no_column_that_follows_from_others(finished):
    """Three clocks: the first has twice the backward seconds, the third the second's stages; links are all alike."""
    lines = LineFormat.of(
        make_run(fleet=FLEET, devices={d: Power(3.0, 2.0, 1.0) for d in "ABC"}, calibration=clocks(*"abc"))
    )
    times = StageTimes(forward_s=0.1, backward_s=0.2, up_s=0.3, down_s=0.4)
    rows = {"a": times, "b": replace(times, backward_s=0.5), "c": replace(times, backward_s=0.5)}

    def cost(times: StageTimes) -> RoundCost:
        watts, wait_s = Power(3.0, 2.0, 1.0), 2.0 - times.busy_s
        clients = [
            ClientCost(client=c, times=times, wait_s=wait_s, energy_j=watts.energy_j(times, wait_s)) for c in range(3)
        ]
        return RoundCost(clients=tuple(clients), round_s=2.0, energy_j=9.0)

    plain = read_rounds(finished)[0]
    (client, _), norms = plain.clients, {"fusion.A.acc": 0.5, "fusion.B": 0.25}
    clients = replace(client, sq_norm=norms), replace(client, client=1, sq_norm={"fusion.B": 0.125})
    metrics = Metrics(f1=0.5, f1_by_client=dict.fromkeys(range(3), 0.5), f1_by_modality={"acc": 0.25})
    changes = {"clients": clients, "metrics": metrics, "totals": {n: Totals(time_s=1.0 + ord(n)) for n in rows}}
    record = plain.model_copy(update=changes | {"costs": {name: cost(times) for name, times in rows.items()}})
    line = lines.line(record, lines.begin)
    content = json.loads(line)
    assert content["costs"] == [
        {"round_s": 2.0, "energy_j": 9.0, "forward_s": [0.1], "backward_s": [], "up_s": [0.3], "down_s": [0.4]},
        {"round_s": 2.0, "energy_j": 9.0, "backward_s": [0.5]},
        {"round_s": 2.0, "energy_j": 9.0},
    ]
    assert content["totals"] == {"clock": [0, 1, 2], "time_s": [98.0, 99.0, 100.0]}
    assert content["clients"]["sq_norm"] == [[0.5, 0.25], [None, 0.125]]
    assert content["metrics"] == {"f1": 0.5, "f1_by_client": [0.5] * 3, "f1_by_modality": [0.25]}
    assert repr(lines.read(line[: line.rindex(b',"sha256"')])) == repr(record)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mood": 1}, "Extra inputs"),
        ({"wall_s": "long"}, "a valid number"),
        ({"phase": None}, "valid string"),
        ({"clients": {"client": [0, 1], "mood": [1]}}, "KeyError 'uploaded'"),
        ({"clients": {"client": [0, 1], "trained": [99], "uploaded": [99]}}, "IndexError"),
        ({"clients": {"selections": [["x"]], "client": [0, 1], "trained": [0], "uploaded": [0]}}, "Field required"),
        ({"costs": {"split": {"round_s": 1.0, "energy_j": 1.0, "mood": [1]}}}, "costs have"),
        ({"costs": {"split": {"round_s": 1.0}}}, "KeyError 'energy_j'"),
        ({"d_bar": [1.0, 2.0, 3.0]}, "IndexError"),
        ({"metrics": {"f1": 0.5, "confusion": [[1, -2]]}}, "a confusion matrix of 3 cells"),
        ({"totals": {"clock": ["a", "b"], "time_s": [1.0, 2.0, 3.0]}}, "ValueError|argument"),
    ],
)
def test_a_line_of_other_content_is_no_round(finished, change, words):
    lines = LineFormat.of(make_run())
    content = json.loads((finished / "rounds.jsonl").read_bytes().splitlines()[0])
    content.pop("sha256")
    with pytest.raises(ValueError, match=words):
        lines.read(json.dumps(content | change).encode()[:-1])
