"""What differs between the plans of `run` and `grid`."""

from dataclasses import replace

import pytest

from relief_ray.config.experiment import parse
from relief_ray.experiment.experiment import open_cell, run_cell
from relief_ray.records.cells import read_plan_file
from relief_ray.records.run_folder import RunFolder, read_run
from relief_ray.studies.plan import RESUME, Plan, difference, refuse_begun, refuse_other_settings
from relief_ray.studies.spec import Spec
from relief_ray.support.errors import UserError
from tests.actors.grids.tiny_plans import TINY
from tests.plans import cells_of, planned, typed

SMALL = [f"backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]


def plan_of(kind, out, name="quick", seeds=(0,), **changes):
    """A plan of one cell, of either command."""
    if kind == "run":
        return replace(planned("quick", out, *SMALL), name=name)
    grid = Spec(name=name, title="", methods=("relief",), datasets=("dsa_mini",), seeds=seeds, settings=TINY)
    return Plan(kind="grid", out=out, name=name, cells=cells_of(grid, []), **changes)


@pytest.fixture(params=RESUME)
def kind(request):
    return request.param


def test_the_file_says_which_command_planned_it_and_the_other_is_refused(kind, tmp_path):
    other = "grid" if kind == "run" else "run"
    plan_of(kind, tmp_path).write()
    assert read_plan_file(tmp_path / "plan.json").kind == kind and not (tmp_path / "grid.json").exists()
    with pytest.raises(UserError, match=rf"expected a folder that `relief-ray {other}` made.*{RESUME[kind]} "):
        Plan.read(tmp_path, kind=other)
    with pytest.raises(UserError, match=rf"holds .*quick, asked: {other} quick; choose a folder with --out DIR"):
        plan_of(other, tmp_path).write()
    assert Plan.read(tmp_path, kind=kind).resume == f"{RESUME[kind]} {tmp_path}"


def test_an_address_that_runs_in_this_process_do_not_read_is_refused(tmp_path):
    named, said = ["runtime.address=127.0.0.1:9"], r"runtime.address=127.0.0.1:9: a run with .*does not read it"
    planned("quick", tmp_path, *SMALL).write()
    begun = Plan.read(tmp_path, typed(*named))
    with pytest.raises(UserError, match=said):
        begun.refuse_unread_address(1)
    begun.refuse_unread_address(2)  # several at a time, each in a process of that cluster
    Plan.read(tmp_path, typed(*named, "runtime.mode=packed")).refuse_unread_address(1)
    Plan.read(tmp_path).refuse_unread_address(1)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("data", "nope", "data = 'nope': unknown; expected one of .*dsa_mini.*, or no data"),
        ("data", "dsa_minni", r"data = 'dsa_minni': unknown \(did you mean 'dsa_mini'\?\)"),
        ("split", "foo", "split = 'foo': unknown; expected one of within_subject, held_out_subject, random_leaky"),
        ("data", "dsa", ""),  # of another study, whose claims lie in one file
        ("split", "held_out_subject", ""),
    ],
)
def test_claims_about_no_data_set_or_split_are_refused(tmp_path, key, value, said):
    file = tmp_path / "c.yaml"
    file.write_text(f"{key}: {value}\nclaims: [{{first: relief, second: fedavg}}]\n")
    plan = replace(planned("quick", tmp_path / "x", *SMALL), claims_file=file)
    if not said:
        return plan.check_claims()
    with pytest.raises(UserError, match=f"c.yaml: {said}"):
        plan.check_claims()


def test_another_name_is_taken_over_or_refused(kind, tmp_path):
    plan_of(kind, tmp_path).write()
    if kind == "run":
        plan_of(kind, tmp_path, name="other").write()
        assert read_plan_file(tmp_path / "plan.json").name == "other"
    else:
        with pytest.raises(UserError, match="holds the grid quick, asked: other"):
            plan_of(kind, tmp_path, name="other").write()


def test_a_second_plan_adds_its_cells_to_those_of_the_first(kind, tmp_path):
    first = plan_of(kind, tmp_path).write()
    second = planned("quick", tmp_path, *SMALL, "seed=1") if kind == "run" else plan_of(kind, tmp_path, seeds=(1,))
    second.write()
    names = [cell.name for cell in (*first.cells, *second.cells)]
    assert len(set(names)) == 2 and sorted(row.folder for row in read_plan_file(tmp_path / "plan.json").cells) == names
    assert [cell.name for cell in Plan.read(tmp_path, kind=kind).cells] == names


def test_runs_of_other_settings_are_refused_in_a_folder_before_anything_is_computed(tmp_path):
    """Other methods, seeds and folds are no other settings."""
    planned("quick", tmp_path, *SMALL).write()
    refuse_other_settings(planned("quick", tmp_path, *SMALL, "seed=1", strategies="fedavg"))
    with pytest.raises(
        UserError,
        match=r"holds runs of other settings \(rounds is 2 there, asked: 3\), with .* choose another folder with --out",
    ):
        refuse_other_settings(planned("quick", tmp_path, *SMALL, "seed=1", "rounds=3"))


def test_names_say_the_hash_or_not(kind, tmp_path):
    (cell,) = plan_of(kind, tmp_path).cells
    assert cell.name.endswith(cell.hash[:8]) is (kind == "grid")


def test_who_holds_the_lock_keeps_others_out_for_the_command_or_for_the_write(kind, tmp_path):
    with plan_of(kind, tmp_path).lock():
        if kind == "grid":
            plan_of(kind, tmp_path).write()
        else:
            with pytest.raises(UserError, match=r"plan\.lock: the plan is in use by process"):
                plan_of(kind, tmp_path).write()


def test_a_begun_run_is_gone_on_with_or_refused(kind, tmp_path, run_cache):
    plan = plan_of(kind, tmp_path).write()
    (state,) = plan.look()
    stops = iter((False, True))
    run_cell(state.cell.config, state.folder, should_stop=lambda: next(stops))
    (begun,) = Plan.read(tmp_path, kind=kind).look()
    assert (begun.status, begun.is_open, begun.is_finished) == ("interrupted", True, False)
    if kind == "run":
        with pytest.raises(UserError, match=r"was begun and is not finished; go on with: relief-ray resume"):
            refuse_begun(plan)


@pytest.mark.parametrize("status", ["interrupted", "running", "done", "failed"])
def test_a_killed_drivers_run_is_opened_as_interrupted_and_others_as_they_are(status, tmp_path, run_cache):
    (cell,) = plan_of("run", tmp_path).cells
    folder = tmp_path / cell.name
    open_cell(cell.config, folder)
    with RunFolder.resume(folder) as opened:
        opened.update(status=status)
    open_cell(cell.config, folder)
    assert read_run(folder).status == ("interrupted" if status == "running" else status)


def test_a_long_value_is_compared_to_its_end():
    one, other = (
        parse({"fleet": {"types": {"A": {"sensors": [*map(str, range(200)), end]}}}}) for end in ("last", "other")
    )
    assert difference(one.model_dump(mode="json"), one) == ""
    assert difference(one.model_dump(mode="json"), other).endswith(", other]")
