"""Where the library comes from, and what is said where there is none."""

import multiprocessing
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from relief_ray.experiment.setup import choose_engine, prepare
from relief_ray.kernels import library
from relief_ray.kernels.library import squares
from relief_ray.support.errors import UserError
from tests.conformance.cases import config_of


def _forget():
    library.library.cache_clear()
    library.why_missing.cache_clear()


@pytest.fixture(autouse=True)
def _not_loaded_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))
    _forget()
    yield
    _forget()


@pytest.mark.ci
def test_it_is_compiled_once_and_named_by_what_it_is(tmp_path):
    path = library.library()._name
    (only,) = (tmp_path / "cache" / "kernels").iterdir()
    assert str(only) == path
    written = only.stat().st_mtime_ns
    _forget()
    assert library.library()._name == path and only.stat().st_mtime_ns == written
    assert library.library(torch.float64)._name != path


@pytest.mark.ci
def test_a_damaged_file_and_one_that_others_may_write_are_compiled_anew(tmp_path):
    path = Path(library.library()._name)
    whole = path.read_bytes()
    for damage in (b"not a library", whole):
        _forget()
        path.unlink()
        path.write_bytes(damage)
        path.chmod(0o666)
        assert library.why_missing() == "" and path.read_bytes() == whole
        assert path.stat().st_mode & 0o022 == 0


@pytest.mark.ci
def test_words_of_the_compiler_are_part_of_the_name_and_may_not_change_sums(monkeypatch):
    plain = library.library()._name
    _forget()
    monkeypatch.setenv("CC", "gcc -ffast-math")
    assert library.library()._name != plain
    values = torch.full((8,), 1e-40)
    assert squares(values) == pytest.approx(8e-80, rel=1e-4) and float(torch.tensor(1e-38) * 0.1) != 0.0


@pytest.mark.ci
def test_a_compiler_that_chooses_sums_of_its_own_is_refused(tmp_path, monkeypatch):
    compiler = tmp_path / "own-cc"
    compiler.write_text('#!/bin/sh\nexec gcc "$@" -ffp-contract=fast\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert re.match(
        rf"{tmp_path}/cache/kernels/\S+ computes other numbers than every other machine's \(check \w+, expected "
        rf"{library._KNOWN}\): remove it and name another compiler",
        library.why_missing(),
    )
    assert choose_engine(config_of("relief")) == "gemm"


def _name(_):
    _forget()
    return library.library()._name


@pytest.mark.ci
def test_processes_at_once_get_one_whole_library(tmp_path):
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        names = set(pool.map(_name, range(4)))
    (only,) = (tmp_path / "cache" / "kernels").iterdir()
    assert names == {str(only)}


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"PATH": ""}, r"no C compiler \(looked for \$CC, cc, gcc, clang, the package ziglang\)"),
        ({"CC": "false"}, r"`false` could not compile them: it ended with 1"),
        ({"CC": "gcc '"}, r"\$CC is \"gcc '\": No closing quotation"),
        ({"CC": "not-there-cc"}, r"`not-there-cc` could not compile them: No such file"),
    ],
)
def test_why_there_is_none(environment, why, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=why):
        library.library()
    assert library.why_missing()
    assert choose_engine(config_of("relief")) == "gemm"
    assert any(
        "training.engine=auto is gemm here, which takes longer: " in line
        for line in prepare(config_of("relief")).warnings
    )
    with pytest.raises(UserError, match=r"training.engine = 'fused': .*take 'auto'"):
        choose_engine(config_of("relief", training={"engine": "fused"}))


@pytest.mark.parametrize(("machine", "system"), [("riscv64", "linux"), ("arm64", "darwin"), ("AMD64", "win32")])
def test_other_machines_are_told(machine, system, monkeypatch):
    monkeypatch.setattr(library.platform, "machine", lambda: machine)
    monkeypatch.setattr(library.sys, "platform", system)
    assert library.why_missing() == (f"{system} on {machine}: kernels are for Linux on x86_64 with AVX2 and aarch64")


def test_a_processor_without_fused_multiply_add(monkeypatch):
    monkeypatch.setattr(library, "_cpu_flags", lambda: {"sse2", "avx2"})
    monkeypatch.setattr(library.platform, "machine", lambda: "x86_64")
    assert library.why_missing() == "this processor lacks fma"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_home(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert library.why_missing() == ""


def test_a_cache_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "file" / "cache"))
    assert library.why_missing() == ""


@pytest.mark.ci
def test_the_command_says_where_it_is(tmp_path):
    said = subprocess.run(
        [sys.executable, "-m", "relief_ray.kernels"], capture_output=True, text=True, check=True, timeout=200
    ).stdout.strip()
    assert said.startswith(str(tmp_path / "cache"))
