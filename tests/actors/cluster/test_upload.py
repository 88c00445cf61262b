"""Files of a job: what a folder ignores stays, what the command names travels, too much is refused."""

import os
from pathlib import Path

import pytest

from actors.cluster import jobs as upload
from actors.cluster.jobs import entrypoint, files_to_upload, headline, stage, summary
from relief_ray.support.errors import UserError


@pytest.fixture
def study(tmp_path):
    """A user's folder: a method with a helper, a search's choices in an ignored folder, credentials, results."""
    for name in (
        "my_method.py", "lab/helpers.py", "results/tuned.json", "results/big.bin", "runs/demo/run.json", ".env",
        "data/raw.csv", ".git/config", "lab/__pycache__/x.pyc",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 10)
    (tmp_path / ".rayignore").write_text("results/\n")
    (tmp_path / ".gitignore").write_text("/data/\n*.csv\n")
    return tmp_path


def names(files):
    return [file.path.as_posix() for file in files]


def test_own_modules_travel_and_ignored_files_stay(study):
    assert names(files_to_upload(study, ["grid", "smoke"])) == ["lab/helpers.py", "my_method.py"]


def test_a_file_that_the_command_names_travels_although_it_is_ignored(study):
    files = files_to_upload(study, ["grid", "smoke", "--set", "tuned=results/tuned.json"])
    assert names(files) == ["lab/helpers.py", "my_method.py", "results/tuned.json"]
    assert [file.path.as_posix() for file in files if file.is_named] == ["results/tuned.json"]
    assert any("named" in line and "results/tuned.json" in line for line in summary(files))


def test_the_token_and_what_looks_like_one_stay_here(study):
    """`submit --token ray_token` is typed in the folder where the copy of the token lies."""
    secrets = {"cluster.key": "a" * 64, "lab/old_token": "b" * 64 + "\n"}
    harmless = {"tokens.py": "def split(text): ...", "tokens.json": "{}", "open_token": "c" * 64}
    for name, text in (secrets | harmless).items():
        (study / name).write_text(text)
        (study / name).chmod(0o644 if name == "open_token" else 0o600)
    travelling = names(files_to_upload(study, ["grid", "smoke"], study / "cluster.key"))
    assert travelling == sorted(["lab/helpers.py", "my_method.py", *harmless])
    with pytest.raises(UserError, match="the cluster's token, which no job needs"):
        files_to_upload(study, ["grid", "smoke", "--set=tuned=cluster.key"], study / "cluster.key")


def test_submit_leaves_its_own_token_out(study, monkeypatch, invoke):
    (study / "ray_key").write_text("a" * 64)
    monkeypatch.chdir(study)
    shown = invoke("submit", "--dry-run", "--token", "ray_key", "--", "grid", "smoke").stdout
    assert "my_method.py" in shown and "ray_key" not in shown


def test_ray_sends_what_was_staged(study, tmp_path_factory):
    """The folder that Ray packs holds no ignore files: they would drop what the command names."""
    from ray._private.runtime_env.packaging import create_package

    files, place = files_to_upload(study, ["--set=tuned=results/tuned.json"]), tmp_path_factory.mktemp("staged")
    stage(study, files, place)
    package = tmp_path_factory.mktemp("packed") / "job.zip"
    create_package(str(place), package, include_gitignore=True, excludes=[])
    import zipfile

    packed = [name for name in zipfile.ZipFile(package).namelist() if not name.endswith("/")]
    assert sorted(packed) == names(files)


def test_a_named_file_elsewhere_is_refused(study, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "tuned.json"
    other.write_text("{}")
    with pytest.raises(UserError, match="outside of"):
        files_to_upload(study, ["grid", "smoke", "--set", f"tuned={other}"])


def test_too_much_is_refused_before_anything_is_sent_and_the_largest_parts_are_named(study, monkeypatch):
    monkeypatch.setattr(upload, "LIMIT_BYTES", 2 * upload.MIB)
    (study / "weights").mkdir()
    (study / "weights/model.bin").write_bytes(bytes(3 * upload.MIB))
    with pytest.raises(
        UserError, match=r"3\.0 MiB to upload, a head takes at most 2\.0 MiB.*\.rayignore(.|\n)*weights/"
    ):
        files_to_upload(study, ["grid", "smoke"])


def test_what_cannot_be_read_or_vanishes_is_named(study, monkeypatch, tmp_path_factory):
    def refuse(self):
        if self.name == "lab":
            raise PermissionError(13, "Permission denied", str(self))
        return (self / name for name in os.listdir(self))

    files = files_to_upload(study, [])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", refuse)
        with pytest.raises(UserError, match=r"--working-dir .*/lab cannot be read \(Permission denied\)"):
            files_to_upload(study, [])
    (study / "my_method.py").unlink()
    with pytest.raises(UserError, match=r"/my_method\.py cannot be read \(No such file"):
        stage(study, files, tmp_path_factory.mktemp("staged"))
    with monkeypatch.context() as patch:
        patch.setattr(upload, "_walk", lambda root, ignores: [root / "gone.py"])
        with pytest.raises(UserError, match=r"/gone\.py cannot be read \(No such file"):
            files_to_upload(study, [])


def test_an_argument_longer_than_a_file_name_names_no_file(study):
    assert names(files_to_upload(study, ["--set", f"methods=[{'fedavg, ' * 100}]"])) == [
        "lab/helpers.py",
        "my_method.py",
    ]


def test_a_home_folder_is_refused(study, monkeypatch):
    monkeypatch.setattr(upload, "_MAX_FILES", 1)
    with pytest.raises(UserError, match="more than 1 files"):
        files_to_upload(study, [])


def test_the_headline_has_number_and_size(study):
    files = files_to_upload(study, [])
    assert headline(study, files) == f"upload: 2 files, 0.0 MiB of {study.resolve()} (limit 100.0 MiB)"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["grid", "smoke"], 'exec relief-ray grid smoke --out "$HOME"/relief-ray/j'),
        (["grid", "smoke", "--out", "/data/x"], "exec relief-ray grid smoke --out /data/x"),
        (["grid", "resume", "/data/x"], "exec relief-ray grid resume /data/x"),
        (["grid", "resume", "s3://b/x"], 'exec relief-ray grid resume s3://b/x --out "$HOME"/relief-ray/j'),
        (
            ["grid", "resume", "--budget", "1h", "s3://b/x", "--out", "/x"],
            "exec relief-ray grid resume --budget 1h s3://b/x --out /x",
        ),
        (
            ["resume", "file:///m/x"],
            'exec relief-ray resume file:///m/x --out "$HOME"/relief-ray/j --set runtime.address=auto',
        ),
        (
            ["resume", "/data/x", "--set", "runtime.mirror=s3://b/x"],
            "exec relief-ray resume /data/x --set runtime.mirror=s3://b/x --set runtime.address=auto",
        ),
        (["grid", "status", "s3://b/x"], "exec relief-ray grid status s3://b/x"),
        (["grid", "resume", "~/relief-ray/grid-1"], 'exec relief-ray grid resume "$HOME"/relief-ray/grid-1'),
        (["grid", "smoke", "--out=~/my runs"], "exec relief-ray grid smoke --out=\"$HOME\"'/my runs'"),
        (["results", "~", "~you/x"], "exec relief-ray results \"$HOME\" '~you/x'"),
        (["grid", "smoke", "--dry-run"], "exec relief-ray grid smoke --dry-run"),
        (["run", "demo"], 'exec relief-ray run demo --out "$HOME"/relief-ray/j --address auto'),
        (["run", "demo", "--out=/x", "--address=h:1"], "exec relief-ray run demo --out=/x --address=h:1"),
        (["resume", "/data/x"], "exec relief-ray resume /data/x --set runtime.address=auto"),
        (["data", "list"], "exec relief-ray data list"),
        (
            ["grid", "smoke", "--set", "methods=[fedavg, m:M]", "--out", "/x"],
            "exec relief-ray grid smoke --set 'methods=[fedavg, m:M]' --out /x",
        ),
    ],
)
def test_records_go_where_ray_does_not_remove_them_and_runs_use_the_cluster(arguments, expected):
    assert entrypoint(arguments, "j") == expected
