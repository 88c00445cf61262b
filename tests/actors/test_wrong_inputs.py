"""A hundred wrong inputs by hand: each message has the place, what was found or is expected, and what mends it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HELP = "--help"
WORDS = "expected"
# What is typed, and pieces of the message in their order. The fix is the last piece.
WRONG: list[tuple[str, tuple[str, ...]]] = [
    # run: what, how often, where
    ("run nosuch", ("preset 'nosuch': unknown", WORDS, "FILE.yaml")),
    ("run quik", ("preset 'quik'", "did you mean 'quick'", WORDS)),
    ("run {empty}", ("is a folder, expected a preset or a file", "relief-ray resume")),
    ("run none.yaml", ("none.yaml: no such file in", WORDS, "or a preset")),
    ("run", ("Missing argument 'PRESET|FILE.yaml'", HELP)),
    ("run quick --bogus", ("No such option: --bogus", HELP)),
    ("run quick --seeds 3", ("--seeds 3: could be 3 seeds or seed 3; expected a list", "--seeds [3]")),
    ("run quick --seeds a-b", ("--seeds a-b: found 'a-b', expected numbers", "--seeds 0-4")),
    ("run quick --seeds 4-0", ("--seeds 4-0: found '4-0', expected numbers", "--seeds 0-4")),
    ("run quick --seeds -1", ("--seeds -1: found '-1', expected numbers", "--seeds 0-4")),
    ("run quick --seeds 0-999999999", ("--seeds 0-999999999: 1000000000 of them, expected at most 1000", "several")),
    ("run quick --folds 0", ("--folds 0: the split within_subject has no folds; expected", "no --folds")),
    ("run dsa --folds 9", ("data.fold=9: dsa has folds 0..3",)),
    ("run quick --rounds 0", ("--rounds 0: expected a value greater than or equal to 1", HELP)),
    ("run quick --rounds many", ("--rounds many: expected a whole number See", HELP)),
    ("run quick --rounds 1_0", ("--rounds 1_0: expected a whole number See", HELP)),
    ("run quick --rounds=1_0", ("--rounds 1_0: expected a whole number See", HELP)),
    ("run quick --rounds \N{ARABIC-INDIC DIGIT THREE}", (": expected a whole number See", HELP)),
    ("run quick --rounds 3.0", ("--rounds 3.0: expected a whole number See", HELP)),
    ("run quick --jobs 1_0", ("--jobs 1_0: expected a whole number See", HELP)),
    ("plan-study --sd 1_0", ("--sd 1_0: expected a number See", HELP)),
    ("plan-study --claims 0_1", ("--claims 0_1: expected a whole number See", HELP)),
    (
        "run quick --strategies fedavg relief",
        ("--strategies fedavg relief: found a blank, expected one word", "write --strategies fedavg,relief"),
    ),
    ("run quick --set rounds 3", ("--set rounds 3: found a blank", "write --set rounds=3")),
    ("run quick --set rounds= 3", ("--set rounds= 3: found a blank", "write --set rounds=3")),
    ("run quick --set rounds=!!int 3", ("--set rounds=!!int 3: found a blank", "write --set 'rounds=!!int 3'")),
    ("run quick --set name=my study", ("--set name=my study: found a blank", "write --set 'name=my study'")),
    ("run quick --dry-run --set data.seed=-1", ("data.seed = -1: expected a whole number, at least 0", "e.g.")),
    ("run quick --jobs 0", ("--jobs 0: expected a value greater", HELP)),
    ("run quick --strategies ,", ("--strategies: found no name, expected", "--strategies fedavg,relief")),
    (
        "run quick --strategies relif",
        ("strategy", "unknown strategy 'relif' (did you mean 'relief'?)", "expected one of"),
    ),
    ("run quick --strategies no_file:X", ("strategy = 'no_file:X': no module 'no_file' in", "set PYTHONPATH")),
    ("run quick --strategies json:dumps", ("strategy = 'json:dumps': found a function, expected a subclass", "derive")),
    ("run quick --strategies json:loats", ("strategy = 'json:loats'", "has no 'loats'", "name what the file")),
    ("run quick --strategies a:b:c", ("strategy = 'a:b:c'", "expected an import path like my.module:MyClass")),
    ("run quick --placement best", ("runtime.placement = 'best': expected one of auto, typed, virtual", "e.g.")),
    ("run quick --rounds 2 --set rounds=3", ("--rounds", "rounds=3")),
    # run: settings
    ("run quick --set rounds", ("--set rounds: expected path=value", "e.g. --set training.epochs=2")),
    ("run quick --set =3", ("--set =3: expected path=value", "before the =")),
    ("run quick --set a..b=3", ("--set a..b=3: expected path=value", "write the key before the =")),
    ("run quick --set rouns=3", ("unknown key 'rouns' (did you mean 'rounds'?)", "rename it")),
    ("run quick --set lr=3", ("unknown key 'lr' (did you mean 'training.lr'", "rename it")),
    ("run quick --set training.lr=fast", ("training.lr = 'fast': expected a number, above 0", "training.lr=0.001")),
    ("run quick --set training.lr=0", ("training.lr = 0: expected a number, above 0", "training.lr=0.001")),
    ("run quick --set training.lr=nan", ("training.lr = ", "nan", "expected a number", "training.lr=0.001")),
    ("run quick --set training.lr=.inf", ("training.lr = inf", "expected a number", "training.lr=0.001")),
    ("run quick --set training.epochs=1.5", ("training.epochs = 1.5: expected a whole number, at least 1", "e.g.")),
    ("run quick --set training.epochs=-1", ("training.epochs = -1: expected a whole number, at least 1", "e.g.")),
    ("run quick --set training.optimizer=adamm", ("training.optimizer = 'adamm': expected one of", "e.g.")),
    ("run quick --set training.device=gpu", ("training.device = 'gpu': expected one of cpu, cuda, auto", "e.g.")),
    ("run quick --set training.batch_size=0", ("training.batch_size = 0: expected a whole number", "e.g.")),
    ("run quick --set training=3", ("training = 3: expected a section of keys", "`relief-ray config training`")),
    (
        "run quick --set fleet.types={{B:{{sensors:[acc]}}",
        ("fleet.types = '{B:{sensors:[acc]}': expected a mapping from text to mapping", "a bracket is missing"),
    ),
    ("run quick --set data=[]", ("data = []: expected a section of keys", "`relief-ray config data`")),
    ("run quick --set rounds.x=3", ("--set rounds.x=3: 'rounds' is 2, not a section", WORDS, "`relief-ray config`")),
    ("run quick --set seed=-1", ("seed = -1: expected a whole number, at least 0", "e.g. seed=0")),
    ("run quick --set participation=0", ("participation = 0: expected a number, above 0, at most 1", "e.g.")),
    ("run quick --set participation=1.1", ("participation = 1.1: expected a number, above 0, at most 1", "e.g.")),
    ("run quick --set data.name=dsaa", ("data.name = 'dsaa'", "'dsaa' is unknown", "my.module:LOADER")),
    ("run quick --set data.name=x:Y", ("data.name = 'x:Y'", "no module 'x'", "set PYTHONPATH")),
    ("run quick --set data.split=random", ("data.split = 'random': expected one of", "e.g.")),
    ("run quick --set data.subjects=[99]", ("data.subjects=[99]: [99] unknown, dsa_mini has", "1, 2")),
    ("run quick --set data.subjects=1", ("data.subjects = 1: expected a list", "write data.subjects=[1]")),
    ("run quick --set data.subjects=[one]", ("data.subjects.0 = 'one': expected a list of whole numbers", "e.g.")),
    (
        "run quick --set data.num_clients=1",
        ("data.num_clients=1: fewer than the 8 training subjects", "use at least 8"),
    ),
    ("run quick --set data.num_clients=1000000", ("data.num_clients = 1000000: expected at most", "lower")),
    (
        "run quick --set data.num_clients=1000000000",
        ("data.num_clients = 1000000000: expected a whole", "at most 1e+06"),
    ),
    (
        "grid smoke --set data.num_clients=1000000000",
        ("data.num_clients = 1000000000: expected a whole", "at most 1e+06"),
    ),
    ("run quick --set data.num_clients=300", ("have no training window", "lower data.num_clients (at most 56 have")),
    (
        "run quick --set data.window_s=500",
        ("have no training window", "the longest stretch (bout) has", "data.window_s="),
    ),
    ("grid mygrd.py", ("'mygrd.py': no such file", "expected Python with a function grid()")),
    ("run quick --set data.stride_s=0", ("data.stride_s = 0: expected a number, above 0", "e.g.")),
    ("run quick --set data.window_s=1e9", ("data.window_s = 1000000000.0: expected a number, above 0, at most 600",)),
    ("run quick --set data.dirichlet_alpha=0.3", ("data.dirichlet_alpha = 0.3", WORDS, "set data.partition=dirichlet")),
    ("run quick --set evaluation.parts=[train]", ("evaluation.parts.0 = 'train': expected", "e.g.")),
    ("run quick --set evaluation.window=3", ("window = 3 with average = 'last'", WORDS, "remove window")),
    ("run quick --set fleet.types.C.count=9", ("the counts {C: 9} are 9 together, expected 8", "a share above 0")),
    (
        "run quick --set fleet.types.C.sensors=[nose]",
        ("fleet.types.C.sensors names ['nose'], but this", "--set 'fleet"),
    ),
    ("run quick --set fleet.types.Q.sensors=[acc]", ("fleet.types.Q has no", "the types of paper are A, B and C")),
    ("run quick --set fleet.num_clients=9", ("fleet.num_clients = 9, but the data are cut for 8", "one number only")),
    ("run quick --set costs.planning_time=fast", ("costs.planning_time = 'fast'", "my.module:MyClock")),
    ("run quick --set costs.profile=none.json", ("costs.profile = none.json: cannot be read", "name a file")),
    (
        "run quick --set runtime.mode=ray",
        ("runtime.mode = 'ray': expected one of auto, inline, packed, actors", "e.g."),
    ),
    ("run quick --set runtime.client_timeout_s=soon", ("runtime.client_timeout_s", "'soon': expected", "e.g.")),
    ("run quick --set runtime.quorum=2", ("runtime.quorum = 2: expected a number, above 0, at most 1", "e.g.")),
    ("run quick --set evaluation.every=0", ("evaluation.every = 0: expected a whole number, at least 1", "e.g.")),
    ("run quick --set server.optimizer=adam", ("server.optimizer = 'adam': expected one of", "e.g.")),
    ("run quick --set strategy.gama=2", ("unknown key 'strategy.gama' (did you mean 'strategy.gamma'?)", "rename it")),
    ("run quick --set strategy.gamma=x", ("strategy.gamma = 'x': expected a number", "e.g.")),
    ("run quick --set strategy=[a]", ("strategy = ['a']: expected the name of a method", "write strategy=relief")),
    ("run quick --set backbone=resnet", ("unknown backbone 'resnet'", "known: cnn, moment_lora")),
    ("run quick --set backbone.name=[a]", ("unknown backbone ['a']", "known: cnn, moment_lora")),
    ("run quick --set backbone.conv1=0", ("backbone.conv1 = 0: expected a whole number, at least 1", "e.g.")),
    ("run quick --set backbone.conv1=1000000000", ("backbone.conv1=1000000000", "expected one that fits", "lower")),
    ("run quick --set replicate=3", ("--set replicate=3: names a run's replicate; expected", "replicates=[3]")),
    ("run quick --set replicates=x", ("--set replicates=x: expected a number of replicates or", "replicates=[0, 1]")),
    (
        "run quick --set replicates=1000000",
        ("replicates=1000000: 1000000 of them, expected at most", "several studies"),
    ),
    # files
    ("run {list}", ("list.yaml: holds list, expected a mapping of configuration keys", "e.g. rounds: 20")),
    ("run {twice}", ("twice.yaml: line 2: key 'rounds' stands in line 1 already", "keep one of them")),
    ("run {latin}", ("latin.yaml: byte 6 is 0xe9, expected a text in UTF-8", "save it as UTF-8")),
    ("run {broken}", ("broken.yaml: line 2: cannot be read as YAML", "expected keys and values; mend that line")),
    ("run {unclosed}", ("unclosed.yaml: line 2: a bracket or a quote that is opened above is not closed", "close it")),
    ("run {indented}", ("indented.yaml: line 3: its indentation fits no line above it", "indent it so")),
    ("run {wrong}", ("wrong.yaml (fedavg): unknown key 'trainig' (did you mean 'training'?)", "rename it")),
    ("run {value}", ("value.yaml (fedavg): rounds = 'few': expected a whole number", "e.g. rounds=")),
    # other commands
    ("resume {none}", ("no run.json, expected a run folder", "name one that `relief-ray run` made")),
    ("resume", ("Missing argument", HELP)),
    (
        f"compare {'x' * 300}",
        ("xxx..: a name of 300 characters, longer than a file's may be; expected a path", "shorten"),
    ),
    ("compare {none}", ("no run.json there or one folder below", "name a folder that `relief-ray run` made")),
    ("report {none}", ("none: does not exist", "name a folder of runs")),
    ("report {empty}x", ("x: does not exist (did you mean 'empty'?)", "name a folder of runs")),
    ("report {empty}", ("found no run.json and no plan.json", "name folders that")),
    ("explain {none} --round 1 --client 0", ("no such folder; expected a run folder", "e.g.")),
    ("explain {none} --round x --client 0", ("--round x: expected a whole number", HELP)),
    ("reproduce /dev/zero", ("/dev/zero: damaged", "Not a regular file", "restore it")),
    ("reproduce {none}", ("none: not there", "name a file or folder that `relief-ray report --commit` wrote")),
    ("reproduce {root}/results/smoke#nocell", ("no cell 'nocell'; expected", "e.g.")),
    ("config nothing", ("config nothing: no preset (demo", "unknown key 'nothing'")),
    ("new method 1x", ("new '1x': expected a name for a Python file", "e.g. my_method")),
    ("new thing x", ("'thing' is not one of 'method', 'dataset'", HELP)),
    ("plan-study --sd -1", ("--sd -1: expected points above 0",)),
    ("plan-study --power 2", ("--power 2: expected a value less than or equal to 0.99", HELP)),
    ("data verify nodata", ("dataset 'nodata' is unknown; known: dsa, dsa_mini", "my.module:LOADER")),
    ("data synth dsa_mini --out {none}", ("'dsa_mini': no synthetic form", "choose one of pamap2")),
    ("data synth mhealth --out {none} --scale 3", ("scale 3, expected 0 < scale <= 1",)),
    ("fleet show nothing", ("preset 'nothing': unknown", "expected demo", "FILE.yaml")),
    ("fleet whatif {none}", ("what if what? give --fleet FILE.yaml, --windows N or --epochs E",)),
    ("model describe nothing", ("preset 'nothing': unknown", "expected demo", "FILE.yaml")),
    ("model export {none} --out {none}", ("no such folder; expected a run folder", "e.g.")),
    ("conformance nothing", ("strategy = 'nothing': unknown strategy", "expected one of: fedavg")),
    ("grid nothing", ("grid 'nothing': unknown", "expected main_cnn", "FILE.py")),
    ("grid status {none}", ("no plan.json; expected a folder that `relief-ray grid` made",)),
    ("submit", ("submit: expected one of `-- COMMAND`", "e.g. submit -- grid smoke")),
    ("frobnicate", ("No such command 'frobnicate'", HELP)),
    ("methods", ("No such command 'methods'. Did you mean 'strategies'?", HELP)),
]
FILES = {
    "list": b"- 1\n", "twice": b"rounds: 2\nrounds: 3\n", "latin": b"name: \xe9t\xe9\n", "broken": b"a: [\n",
    "unclosed": b"data: {name: dsa_mini\nrounds: 2\n", "indented": b"data:\n  name: dsa_mini\n stride_s: 2\n",
    "wrong": b"trainig: {lr: 1}\n", "value": b"rounds: few\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Names that stand for paths: files that are wrong, a folder that is empty, one that is not there."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, content in FILES.items():
        (folder / f"{name}.yaml").write_bytes(content)
    (folder / "empty").mkdir()
    paths = {name: folder / f"{name}.yaml" for name in FILES}
    return {**paths, "empty": folder / "empty", "none": folder / "none", "root": ROOT}


def test_there_are_a_hundred():
    assert len(WRONG) >= 100 and len({typed for typed, _ in WRONG}) == len(WRONG)


@pytest.mark.parametrize(("typed", "pieces"), WRONG, ids=[typed for typed, _ in WRONG])
def test_a_wrong_input_is_answered_with_place_expectation_and_fix(invoke, places, tmp_path, monkeypatch, typed, pieces):
    monkeypatch.chdir(tmp_path)
    done = invoke(*typed.format(**places).split())
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 2 and shown.startswith("error: ") and "Traceback" not in shown, done.output
    position = 0
    for piece in pieces:
        assert piece in shown[position:], f"{piece!r} is missing in: {shown}"
        position = shown.index(piece, position)
    assert not list(tmp_path.rglob("run.json")), "no run was begun"
