"""No input of a configuration ends in a traceback or takes long: seeded fuzzing, and the cases that once did."""

import sys
import time
from pathlib import Path

import pytest

from relief_ray.config.experiment import parse
from relief_ray.data import num_clients, open_dataset
from relief_ray.data.config import DataConfig
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.studies.plan import load_spec
from relief_ray.studies.spec import choose, parse_numbers
from relief_ray.support.errors import Setting, UserError
from relief_ray.support.user_yaml import MAX_BYTES, read_file, read_mapping, read_setting
from tests.fuzzing import BOMB, bounded, check, check_ready, complaint, fuzz_files, fuzz_ready, fuzz_settings
from tests.fuzzing_commands import fuzz_commands
from tests.plans import override

SHAPE = InputShape(channels=(("acc", 3), ("gyro", 3)), window=125, num_classes=8)


def refused(tally, number):
    assert not tally.wrong, "\n".join(tally.wrong)
    assert set(tally.counts) <= {"taken", "refused"} and sum(tally.counts.values()) == number
    assert min(tally.counts["taken"], tally.counts["refused"]) > 0, "both kinds of input were tried"


def test_settings_are_taken_or_refused_and_every_refusal_says_where_and_what():
    refused(fuzz_settings(0, 150), 150)


def test_files_are_taken_or_refused_and_every_refusal_says_where_and_what(tmp_path):
    refused(fuzz_files(0, 60, tmp_path), 60)


@pytest.mark.usefixtures("run_cache")
def test_settings_that_only_a_run_made_ready_can_judge_are_taken_or_refused():
    refused(fuzz_ready(0, 15), 15)


@pytest.mark.parametrize("text", ["[" * 3000, "{" * 3000])
def test_what_is_nested_too_deep_is_refused_before_all_of_it_is_scanned(text):
    began_s = time.process_time()
    with pytest.raises(UserError, match="nested more than 50 deep"):
        read_setting(text, "--set x")
    assert time.process_time() - began_s < 0.1


@pytest.mark.parametrize("depth", [300, 3000])
def test_a_path_or_values_nested_too_deep_are_refused(depth):
    values = {"x": 1}
    for _ in range(depth):
        values = {"data": values}
    for given in (values, override({}, [".".join("a" * depth) + "=1"]), {"name": values}):
        with pytest.raises(UserError, match=r"^configuration: nested too deep, expected a few levels; flatten it$"):
            parse(given)


def test_a_text_that_no_file_can_hold_is_refused():
    with pytest.raises(UserError, match=r"^configuration: a text is no Unicode, expected one that UTF-8 can hold"):
        parse({"name": "\ud800"})


@pytest.mark.ci
def test_command_lines_are_taken_or_refused(tmp_path):
    before = list(sys.path)
    refused(fuzz_commands(0, 60, tmp_path), 60)
    assert sys.path == before, "files that it made would be imported by others"


@pytest.mark.slow
def test_a_thousand_command_lines(tmp_path):
    refused(fuzz_commands(1, 1000, tmp_path), 1000)


@pytest.mark.slow
def test_two_thousand_settings_and_five_hundred_files(tmp_path):
    refused(fuzz_settings(1, 2000), 2000)
    refused(fuzz_files(1, 500, tmp_path), 500)


@pytest.mark.slow
@pytest.mark.usefixtures("run_cache")
def test_two_hundred_settings_of_runs_made_ready():
    refused(fuzz_ready(1, 200), 200)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BOMB.encode(), r"more than 100000 values, aliases counted as what they stand for; expected"),
        (b"name: &a [*a]", r"line 1: an alias inside of what it stands for; write the value out"),
        (b"[" * 5000, r"line 1: nested more than 50 deep, expected a few levels; flatten it"),
        (b"rounds: 2\nseed: 1\nrounds: 3\n", r"line 3: key 'rounds' stands in line 1 already; keep one of them"),
        (b"data: {fold: 0, fold: 1}", r"line 1: key 'fold' stands in line 1 already"),
        (b"name: \xe9t\xe9", r"byte 6 is 0xe9, expected a text in UTF-8; save it as UTF-8"),
        (b"rounds: \x00", r"cannot be read as YAML .*#x0000.*; mend it"),
        (b"x" * (MAX_BYTES + 1), r"more than 256 KiB, expected a few keys and values; name another file"),
        (b"name: !!timestamp 2026-13-45", r"cannot be read as YAML \(month must be in 1..12\)"),
        (b'name: "\\ud800"', r"holds bytes that are no UTF-8, expected a text in UTF-8; type it anew"),
        (b"name: !!int x", r"cannot be read as YAML"),
        (b"seed: 0x" + b"f" * 5000, r"a whole number of 5002 characters, expected at most 100; shorten it"),
        (b"1: 2", r"key 1, expected a text such as rounds; write the name of a key"),
        (b"- 1", r"holds list, expected a mapping of configuration keys"),
    ],
)  # fmt: skip
def test_a_file_beyond_the_limits_is_refused_at_once(tmp_path, content, said):
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with bounded(2.0), pytest.raises(UserError, match=rf"a\.yaml: .*{said}"):
        read_mapping(path)


def test_files_as_other_systems_write_them_are_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfrounds: 2\r\nname: &n \xc3\xa9t\xc3\xa9\r\nseed: 3\r\n")
    assert read_mapping(path) == {"rounds": 2, "name": "été", "seed": 3}
    path.write_bytes(b"a: &a {x: 1}\nb: {<<: *a, y: 2}\n")
    assert read_file(path) == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


def test_a_path_that_is_no_file_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "none", Path("a\0b"), Path("/dev/zero")):
        with pytest.raises(UserError, match=r"cannot be read \(.*expected a file of YAML|more than 256 KiB"):
            read_file(path)


def test_a_setting_that_is_no_yaml_is_text():
    settings = ["name=2026-13-45", "tracking.uri=!!int x", "runtime.address=[a", "data.seed=0x1F"]
    values = override({}, settings)
    assert values == {
        "name": "2026-13-45", "tracking": {"uri": "!!int x"}, "runtime": {"address": "[a"}, "data": {"seed": 31}
    }  # fmt: skip
    for wrong in ("a..b=1", "=1", ".=1", "a. =1", "a\x07=1", "rounds"):
        with pytest.raises(UserError, match=r"--set .*: expected path=value"):
            override({}, [wrong])
    with pytest.raises(UserError, match=r"--set name=\\udcff: holds bytes that are no UTF-8"):
        override({}, ["name=\udcff"])


@pytest.mark.parametrize("number", [10**4, 10**12, 10**20])
def test_a_number_of_replicates_beyond_any_study_is_refused_at_once(number):
    with bounded(1.0), pytest.raises(UserError, match=rf"replicates={number}: {number} of them, expected at most 1000"):
        choose(load_spec("demo"), [Setting("replicates", number)])


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(UserError) as caught:
        parse({"rounds": "x" * 5000, "backbone": {"name": ["a"]}})
    assert len(str(caught.value)) < 1000 and "rounds = 'xxx" in str(caught.value)
    assert "unknown backbone ['a']" in str(caught.value)


def test_a_long_import_path_of_a_method_is_cut_before_every_line():
    with pytest.raises(UserError) as caught:
        check("quick", [f"strategy={{strategy: }}, tracking.enabled: {'9' * 5000}", "fleet.preset=paper"])
    assert len(str(caught.value)) < 1000 and str(caught.value).startswith("quick ({strategy: }, tracking.enabled: 99")


def test_an_unknown_method_in_a_file_is_refused_with_the_files_name(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"strategy: a=b")
    with pytest.raises(UserError, match=r"a\.yaml: strategy: unknown strategy 'a=b'; expected one of: fedavg, "):
        check(str(path), [])


@pytest.mark.usefixtures("run_cache")
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("costs.utilisation=1e300", r"T\* needs finite times .*: change it, costs\.utilisation or fleet\.types"),
        ('costs.profile="\\ud800"', r"costs\.profile=.*: holds bytes that are no UTF-8"),
        ('costs.profile="a\\0b"', r"costs\.profile = a\\x00b: cannot be read \(.*; name a file"),
        ("fleet.types={B: {name: 0.5}}", r"fleet\.types\.B has the unknown keys \['name'\]; known are"),
        ("fleet.types={B: {tops: fast}}", r"fleet\.types\.B\.tops = fast: expected a number"),
        ("fleet.types={B: {latency_s: {a: 1}}}", r"fleet\.types\.B\.latency_s = .*a: 1.*: expected a number"),
    ],
)
def test_what_only_a_run_made_ready_can_judge_is_refused_by_its_place(setting, said):
    with pytest.raises(UserError, match=said):
        check_ready([setting])


def test_a_refusal_without_place_expectation_or_fix_is_noticed():
    assert complaint("data.num_clients=3: fewer than the 8 subjects; use at least 8", ["data"]) == ""
    assert complaint("data.num_clients=3: fewer than the 8 subjects", ["data"]) == "expectation and fix"
    assert complaint("found 3, expected 8", ["data"]) == "place"
    assert complaint(f"data: expected {'x' * 6000}", ["data"]) == "brevity"


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        (CnnConfig, {"conv1": 10**9}),
        (CnnConfig, {"fusion": 10**9}),
        (CnnConfig, {"conv2": 10**12}),
        (MomentConfig, {"rank": 10**9}),
    ],
)
def test_a_model_beyond_this_machines_memory_is_refused_before_it_is_built(kind, width):
    ((key, value),) = width.items()
    with bounded(2.0), pytest.raises(UserError, match=rf"backbone\.{key}={value}.* GiB to train; expected one") as said:
        kind(**width).build(SHAPE, 0)
    assert "seed" not in str(said.value), "what decides no size is not named"


def test_the_count_of_values_is_the_models():
    from relief_ray.models.cnn import _num_values

    config = CnnConfig(conv1=3, conv2=5, steps=4, fusion=7)
    assert _num_values(config, SHAPE) == config.build(SHAPE, 0).layout.numel


def test_a_million_clients_are_refused_at_once():
    config = DataConfig(name="dsa_mini", num_clients=1_000_000)
    dataset = open_dataset(config)
    began = time.perf_counter()
    with pytest.raises(UserError, match=r"data\.num_clients = 1000000: expected at most a client per window, dsa_mini"):
        num_clients(dataset, config)
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize("text", ["0-99999999999", "9" * 4401, "0-1000,5-2000", "٣"])
def test_a_study_has_a_number_of_runs_that_can_be_planned(text):
    with bounded(1.0), pytest.raises(UserError, match=r"--seeds .*: (found|\d+ of them, expected at most 1000)"):
        parse_numbers("--seeds", text)
