"""Every command and code block of README and docs, run as written, or listed here with the reason why it is not.

By default each command is parsed with all its options and keys; `-m slow` runs them, .ci/run those of the front pages.
docs/extending.md has tests of its own (`tests/test_extending.py`), which run its blocks and look at what they print.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import pytest
import typer

from actors.cli.main import app
from relief_ray.config.experiment import parse
from relief_ray.studies.presets import PRESETS, make_preset
from relief_ray.support.user_yaml import read_mapping
from tests.pages import PAGES, ROOT, Block, Session, all_blocks, blocks, commands, copy_runs, environment, make_place
from tune_configs.registry import GRIDS

_INSTALLS = "installs packages: .ci/run has it, from nothing"
_CLUSTER = "needs several machines, or a Ray cluster that is up"
_DATA = "needs the full Daily and Sports Activities data, 160 MB that are not ours to ship"
_HOURS = "trains for hours"
_LOOPBACK = "keeps a terminal, or needs one that does: test_the_blocks_for_a_cluster_on_one_machine_run_together"
_MEASURE = (
    "relief-ray device profile --backbone moment_lora --set backbone.size=tiny --set data.name=dsa_mini --set data.str"
)
# Page, beginning of the command, reason. What is not named here is run.
NOT_RUN = (
    ("README.md", "sh bootstrap.sh", _INSTALLS),
    ("CONTRIBUTING.md", "sh bootstrap.sh", _INSTALLS),
    ("CONTRIBUTING.md", "pre-commit install", "would write into the checkout's git folder"),
    ("docs/costs.md", _MEASURE, "measures for half an hour on an idle machine"),
    ("docs/costs.md", "python -m benchmarks.prediction", "measures for half an hour on an idle machine"),
    ("docs/costs.md", "relief-ray device profile --set training.device=cuda", "needs a GPU"),
    ("docs/data.md", "python -c \"from relief_ray.data import load_dataset; import resource", _DATA),
    ("docs/gpu.md", "pytest -m gpu", "needs a GPU"),
    ("docs/gpu.md", "relief-ray run quick", "needs a GPU"),
    ("docs/gpu.md", "relief-ray conformance --address", _CLUSTER),
    ("docs/grids.md", "relief-ray grid main_cnn --set", _HOURS),
    ("docs/grids.md", "relief-ray grid resume runs/dsa-main", _HOURS),
    ("docs/grids.md", "relief-ray grid status runs/dsa-main", _HOURS),
    ("docs/grids.md", "relief-ray compare runs/dsa-main", _HOURS),
    ("docs/grids.md", "relief-ray submit", _CLUSTER),
    ("docs/index.md", "sh bootstrap.sh", _INSTALLS),
    ("docs/metrics.md", "relief-ray grid main_cnn --set datasets=dsa --claims", _DATA),
    ("docs/moment.md", "sh bootstrap.sh", _INSTALLS),
    ("docs/moment.md", "relief-ray run dsa", _DATA),
    ("docs/results.md", "relief-ray run dsa --strategies relief_plus", _DATA),
    ("docs/moment.md", "relief-ray grid main_lora", "trains for an hour"),
    ("docs/moment.md", "relief-ray report runs/lora", "trains for an hour"),
    ("docs/cluster.md", "relief-ray cluster head  ", _CLUSTER),
    ("docs/cluster.md", "relief-ray cluster head --bind", _LOOPBACK),
    ("docs/cluster.md", "relief-ray cluster join HEAD", _CLUSTER),
    ("docs/cluster.md", "relief-ray cluster join 127", _LOOPBACK),
    ("docs/cluster.md", "relief-ray cluster check demo --address HEAD", _CLUSTER),
    ("docs/cluster.md", "relief-ray cluster check --address 127", _LOOPBACK),
    ("docs/cluster.md", "relief-ray submit -- ", _CLUSTER),
    ("docs/cluster.md", "relief-ray submit --token", _LOOPBACK),
    ("docs/cluster.md", "ray job submit", _LOOPBACK),
    ("docs/cluster.md", "export RAY_AUTH_MODE", _CLUSTER),
    ("docs/cluster.md", "prometheus --config", "keeps a terminal: tests/actors/cluster/test_monitor.py runs it"),
    ("docs/cluster.md", "sudo ", "needs root: `tests/cluster` has the same commands"),
    ("docs/jetson.md", "sh bootstrap.sh", _INSTALLS),
    ("docs/jetson.md", "relief-ray cluster join", _CLUSTER),
    ("docs/jetson.md", "relief-ray doctor --address", _CLUSTER),
    ("docs/jetson.md", "relief-ray conformance --address", _CLUSTER),
    ("docs/jetson.md", "relief-ray device monitor --idle", "needs a GPU"),
    ("docs/jetson.md", "relief-ray run dsa --address", _CLUSTER),
    ("docs/jetson.md", "relief-ray report runs/dsa", _CLUSTER),
    ("docs/records.md", "relief-ray grid smoke --out runs/smoke --mirror", "needs an object store"),
    ("docs/records.md", "relief-ray grid resume s3:", "needs an object store"),
    ("docs/report.md", "relief-ray report runs/quick runs/quick-2", "needs two runs that the page does not make"),
    ("docs/report.md", "relief-ray report runs/main_cnn", _HOURS),
    ("docs/results.md", "relief-ray grid", _HOURS),
    ("docs/results.md", "python -m benchmarks.frontier", _HOURS),
    ("docs/results_methods.md", "relief-ray grid", _HOURS),
    ("docs/results_methods.md", "relief-ray report runs/methods", _HOURS),
    ("docs/results_settings.md", "relief-ray grid", _HOURS),
    ("docs/results_settings.md", "relief-ray report runs/", _HOURS),
    ("docs/results_settings.md", "python -m benchmarks.tuned runs/search", _HOURS),
    ("docs/results.md", "relief-ray report runs/", _HOURS),
)  # fmt: skip
TESTED_ELSEWHERE = "docs/extending.md"
DEMO = "runs/demo"


def reason(page: str, command: str) -> str | None:
    """Why a command of a page is not run; None where it is."""
    return next((why for at, begin, why in NOT_RUN if at == page and command.startswith(begin)), None)


def shell_commands() -> list[tuple[Block, str]]:
    return [(block, command) for block in all_blocks() if block.language == "sh" for command in commands(block.text)]


def test_every_exception_is_about_a_command_that_is_there():
    listed = [(page, begin) for page, begin, _ in NOT_RUN]
    found = {(block.page, begin) for block, c in shell_commands() for page, begin in listed
             if block.page == page and c.startswith(begin)}  # fmt: skip
    assert set(listed) == found, f"remove from NOT_RUN: {set(listed) - found}"


@pytest.fixture(scope="module")
def parser():
    """The command line with every command's work taken out: arguments, options and keys are still judged."""
    root = typer.main.get_command(app)
    stack = [root]
    while stack:
        command = stack.pop()
        below = getattr(command, "commands", None)
        stack += list(below.values()) if below else []
        if below is None:
            command.callback = lambda **_: None
    return root


NAMES = frozenset(  # of commands and of commands below them
    name
    for command in typer.main.get_command(app).commands.items()
    for name in (command[0], *getattr(command[1], "commands", ()))
)
OURS = [(block, c) for block, c in shell_commands() if c.split()[0].endswith("relief-ray")]


@pytest.mark.parametrize(("block", "command"), OURS, ids=[f"{b}-{i}" for i, (b, _) in enumerate(OURS)])
def test_the_command_line_takes_what_a_page_says(parser, capsys, block, command):
    words = shlex.split(command.replace("\\\n", " "), comments=True)[1:]
    with pytest.raises(SystemExit) as end:
        parser.main(words, prog_name="relief-ray")
    assert end.value.code == 0, f"{block}: {command}\n{capsys.readouterr().err}"
    if words[0] in ("run", "grid") and not words[1].endswith((".py", ".yaml")):
        known = {"run": PRESETS, "grid": {*GRIDS, "resume", "status", "freeze"}}[words[0]]
        assert words[1] in known, f"{block}: {words[1]}"


def sentences() -> Iterator[tuple[str, str]]:
    """Texts of pages and notebooks without their blocks."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts[path.name] = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    for page, text in texts.items():
        yield page, re.sub(r"^( *)```.*?^\1```", "", text, flags=re.M | re.S)


def inline_commands() -> Iterator[tuple[str, str]]:
    """Commands in sentences. COMMAND and a|b stand for several, a letter for a number."""
    for page, text in sentences():
        for span in re.findall(r"`(relief-ray [^`]+)`", text):
            if "COMMAND" not in span and "|" not in span:
                yield page, re.sub(r"=S\b", "=0", " ".join(span.split()))


INLINE = sorted(set(inline_commands()))
PROGRAMS = sorted(
    {
        (page, " ".join(span.split()))
        for page, text in sentences()
        for span in re.findall(r"`((?:python|pytest|sh bootstrap\.sh) [^`]+)`", text)
        if "..." not in span and "|" not in span
    }
)


@pytest.mark.parametrize(("page", "command"), INLINE, ids=[f"{page}-{i}" for i, (page, _) in enumerate(INLINE)])
def test_the_command_line_takes_what_a_sentence_says(parser, capsys, page, command):
    """A command that is only named (`relief-ray explain`, `relief-ray run --jobs 4`) is there, with its options."""
    words = shlex.split(command)[1:]
    is_named = all(word in NAMES for word in words if not word.startswith("-") and not word.isdecimal())
    with pytest.raises(SystemExit) as end:
        parser.main([*words, "--help"] if is_named else words, prog_name="relief-ray")
    assert end.value.code == 0, f"{page}: {command}\n{capsys.readouterr().err}"


def faults_of(command: str) -> list[str]:
    """What a program, a test or an option in a command is not there; pytest's own options are not looked at."""
    first, *words = shlex.split(command)
    if first == "sh":
        part = (ROOT / "bootstrap.sh").read_text(encoding="utf-8")
        return [] if re.search(rf"^\s*(.*\|\s*)?{re.escape(words[1])}(\s*\|.*)?\)", part, flags=re.M) else words[1:]
    if first == "python" and words[:2] == ["-m", "pytest"]:
        first, words = "pytest", words[2:]
    if first == "pytest":
        return [word for word in words if word.startswith("tests/") and not (ROOT / word.partition("::")[0]).exists()]
    name, rest = (
        (words[1].replace(".", "/"), words[2:]) if words[0] == "-m" else (words[0].removesuffix(".py"), words[1:])
    )
    files = [ROOT / f"{name}.py", *sorted((ROOT / name).glob("*.py"))]
    text = "".join(path.read_text(encoding="utf-8") for path in files if path.is_file())
    options = [word.partition("=")[0] for word in rest if word.startswith("--")]
    return ([] if text else [name]) + [option for option in options if f'"{option}"' not in text]


@pytest.mark.parametrize(("page", "command"), PROGRAMS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(PROGRAMS)])
def test_programs_that_a_sentence_names_are_there_with_their_options(page, command):
    assert not faults_of(command), f"{page}: {command}"


def test_a_program_or_an_option_that_is_gone_would_show():
    assert len(PROGRAMS) > 15
    assert faults_of("python -m benchmarks.nothing --x") == ["benchmarks/nothing", "--x"]
    assert faults_of("python -m benchmarks.memory --bogus") == ["--bogus"]
    assert faults_of("pytest -m slow tests/none.py") == ["tests/none.py"] and faults_of("sh bootstrap.sh no") == ["no"]


def test_a_wrong_option_of_a_page_would_show(parser, capsys):
    with pytest.raises(SystemExit) as end:
        parser.main(["run", "demo", "--bogus"], prog_name="relief-ray")
    assert end.value.code == 2 and capsys.readouterr().err.startswith("error: ")


def test_python_blocks_are_python():
    for block in all_blocks():
        if block.language == "python":
            compile(block.text, str(block), "exec")


def test_configurations_are_valid(tmp_path):
    block, = (b for b in blocks("docs/cli.md") if b.language == "yaml")  # fmt: skip
    (tmp_path / "a.yaml").write_text(block.text)
    assert parse(read_mapping(tmp_path / "a.yaml")).rounds == 20


def test_the_table_of_presets_is_that_of_the_code():
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (\d+ x \d+) \|$", page, re.MULTILINE))
    assert rows.keys() == PRESETS.keys()
    for name, length in rows.items():
        values = make_preset(name).settings
        assert length == f"{values['rounds']} x {values['training']['epochs']}", name


def test_shells_of_the_front_pages_have_no_environment():
    front = environment(Path("/place"), is_activated=False)
    assert "/place" not in front["PATH"] and "VIRTUAL_ENV" not in front
    assert environment(Path("/place"), is_activated=True)["PATH"].startswith("/place/.venv/bin:")


def test_commands_are_cut_where_the_shell_ends_them():
    text = "a 'b\nc'  # note\n# alone\n\nd \\\n  e\nf\n"
    assert commands(text) == ["a 'b\nc'  # note", "d \\\n  e", "f"]


def test_blocks_of_a_page_share_names_and_a_failing_one_is_named(tmp_path):
    def block(line, language, text):
        return Block(page="docs/a.md", line=line, language=language, text=text, before="")

    with closing(Session(make_place(tmp_path))) as session:
        session.run(block(1, "python", "# file: mine.py\nvalue = 3\n"), lambda _: True)
        session.run(block(2, "python", "import mine\nseen = mine.value\n"), lambda _: True)
        session.run(block(3, "sh", "echo $PATH > path\nfalse\n"), lambda command: command != "false")
        assert (tmp_path / "path").read_text().startswith(f"{tmp_path}/.venv/bin:")
        with pytest.raises(AssertionError, match=r"docs/a.md:4: exit code 1"):
            session.run(block(4, "sh", "true\nfalse\n"), lambda _: True)
        with pytest.raises(AssertionError, match=r"docs/a.md:5: Python ended\n(.|\n)*assert seen == 4"):
            session.run(block(5, "python", "print(seen)\nassert seen == 4, 'assert seen == 4'\n"), lambda _: True)


# Run -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The runs of the demo: those of DEMO_RUNS (.ci/run has made them), else made here."""
    if "DEMO_RUNS" in os.environ:
        return Path(os.environ["DEMO_RUNS"])
    place = make_place(tmp_path_factory.mktemp("demo"))
    env = environment(place, is_activated=True)
    subprocess.run(["relief-ray", "run", "demo"], cwd=place, env=env, check=True, capture_output=True, timeout=560)
    return place / DEMO


RUN = [page for page in PAGES if page != TESTED_ELSEWHERE and any(
    b.file or b.language == "python" or (b.language == "sh" and any(not reason(page, c) for c in commands(b.text)))
    for b in blocks(page)
)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run_as_written(page, tmp_path, request):
    place = make_place(tmp_path)
    if any(DEMO in block.text for block in blocks(page)):
        copy_runs(request.getfixturevalue("demo"), place)
    with closing(Session(place)) as session:
        for block in blocks(page):
            session.run(block, lambda command: reason(page, command) is None)
    shutil.rmtree(place)  # a page may leave a gigabyte of synthetic recordings


@pytest.mark.slow
def test_the_output_in_the_readme_is_that_of_the_demo(demo, tmp_path):
    """All words in their order, where the block is not cut (``...``); other processors may change a number."""
    (shown,) = re.findall(r"^```text\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    place = make_place(tmp_path)
    copy_runs(demo, place)
    env = environment(place, is_activated=True) | {"COLUMNS": "80"}
    done = subprocess.run(["relief-ray", "run", "demo"], env=env, cwd=place, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    printed = without_numbers(done.stdout)
    assert not [part for part in shown.split("...") if without_numbers(part) not in printed], done.stdout


def without_numbers(text: str) -> str:
    return " ".join(re.sub(r"[-+]?\d+(\.\d+)?", "0", text).split())


@pytest.mark.slow
@pytest.mark.ray
def test_the_blocks_for_a_cluster_on_one_machine_run_together(tmp_path):
    """docs/cluster.md: head and node keep their terminals, the check and the job work, Ctrl-C ends both."""
    (block,) = (b for b in blocks("docs/cluster.md") if "cluster head --bind 127" in b.text)
    head, join, check, job = commands(block.text)
    (by_hand,) = (c for b in blocks("docs/cluster.md") for c in commands(b.text) if c.startswith("ray job submit"))
    token = "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/tmp/relief-token/token"
    with socket.socket() as door:
        if door.connect_ex(("127.0.0.1", 6379)) == 0:
            pytest.skip("another Ray has port 6379 here")
    place = make_place(tmp_path)
    env = environment(place, is_activated=True)

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-ec", command], cwd=place, env=env, text=True, capture_output=True, timeout=500)

    with contextlib.ExitStack() as stack:
        for folder in re.findall(r"/tmp/(?:rr-c|relief-token|relief-by-hand)", block.text + by_hand):
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        terminals = []
        for command in (head, join):
            log = stack.enter_context((tmp_path / f"{len(terminals)}.log").open("wb"))
            terminals.append(stack.enter_context(terminal(f"exec {command}", place, env, log)))
            while (seen := num_nodes(run(f"{check} --json").stdout)) < len(terminals):
                assert terminals[-1].poll() is None, f"{command}: ended, {seen} nodes"
        for command, end in ((check, "nodes"), (job, "12 done"), (f"{token}; {by_hand}", "succeeded")):
            done = run(command)
            assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            assert end in done.stdout
        assert Path("/tmp/relief-by-hand/relief-s0/run.json").is_file()
        for process in reversed(terminals):
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)  # its code is Ray's own


@contextlib.contextmanager
def terminal(command: str, place: Path, env: dict[str, str], log: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    """A command that keeps its terminal, in a process group of its own; what is left of it is killed with the block."""
    process = subprocess.Popen(
        ["sh", "-c", command], cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def num_nodes(printed: str) -> int:
    """Nodes in the JSON of `cluster check`; 0 while the head does not answer."""
    return len(json.loads(printed)["nodes"]) if printed else 0
