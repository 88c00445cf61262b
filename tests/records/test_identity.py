from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.groups import GroupLayout, ParamGroup, pack
from relief_ray.core.messages import ServerState
from relief_ray.records import identity
from relief_ray.records.identity import (
    cell_id,
    config_hash,
    cpu_name,
    digest_files,
    layout_digest,
    machine_facts,
    source_digest,
    state_sha256,
    tensors_sha256,
)
from relief_ray.support.errors import UserError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.ci
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_a_cell_depends_on_contents_not_on_order(config):
    turned = dict(reversed(config.items()))
    assert cell_id(turned, "d") == cell_id(config, "d")
    assert cell_id({**config, "one more": 1}, "d") != cell_id(config, "d") != cell_id(config, "e")


def test_known_cell():
    """A hash that changes orphans every finished result, so it is pinned."""
    assert cell_id({"a": 1, "b": [0.1, None, "ü"]}, "digest") == "0a5ba314d4e6a310"
    assert len(config_hash({})) == 64


def test_nan_is_refused_with_the_fix():
    with pytest.raises(UserError, match="plain JSON; replace NaN"):
        cell_id({"lr": float("nan")}, "d")


def test_source_digest_covers_names_contents_and_packages(tmp_path):
    def digest() -> str:
        return digest_files([("p", tmp_path)])

    (tmp_path / "a.py").write_text("x = 1")
    seen = {digest()}
    for name, text in [("a.py", "x = 2"), ("b.py", ""), ("sub.yaml", "k: 1"), ("c.json", "{}")]:
        (tmp_path / name).write_text(text)
        seen.add(digest())
    (tmp_path / "a.py").rename(tmp_path / "d.py")
    seen.add(digest())
    assert len(seen) == 6
    (tmp_path / "notes.txt").write_text("not a source")
    assert digest() in seen
    assert digest_files([("q", tmp_path)]) not in seen


@pytest.mark.ci
def test_source_digest_is_the_same_in_another_process_and_loads_neither_the_runtime_nor_mlflow():
    loaded = "sorted({'actors', 'ray', 'mlflow'} & set(sys.modules))"
    code = f"import sys; from relief_ray.records.identity import source_digest as f; print(f(), {loaded})"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert printed == [source_digest(), "[]"]


def test_machine_facts_name_this_machine():
    facts = machine_facts()
    assert facts.torch == torch.__version__ and facts.num_threads == torch.get_num_threads()
    assert facts.cpu and facts.python.startswith("3.")


def test_machine_facts_count_the_cores_that_the_process_may_use():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert machine_facts().num_cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_cpu_name_of_a_board_without_one(tmp_path):
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    (tmp_path / "x86").write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3: GHz\n")
    assert cpu_name(tmp_path / "x86") == "Fast CPU @ 3: GHz"
    assert cpu_name(tmp_path / "arm") == cpu_name(tmp_path / "missing") != ""


def test_tensors_sha256_sees_every_bit_name_type_and_shape():
    base = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(0.0)}
    variants = [
        base,
        {**base, "b": torch.tensor(-0.0)},
        {**base, "a": torch.tensor([1.0, 2.0]).nextafter(torch.tensor(9.0))},
        {**base, "a": base["a"].double()},
        {**base, "a": base["a"].to(torch.bfloat16)},
        {**base, "a": base["a"].view(2, 1)},
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"]},
        {**base, "e": torch.empty(0)},
    ]
    assert len({tensors_sha256(v) for v in variants}) == len(variants)
    assert tensors_sha256(dict(reversed(base.items()))) == tensors_sha256(base)
    strided = torch.tensor([[1.0, 5.0], [2.0, 6.0]])[:, 0]
    assert tensors_sha256({**base, "a": strided}) == tensors_sha256(base)


def test_state_sha256_sees_all_parts(scenario):
    state = scenario.first_state()
    others = [
        ServerState(
            models={**state.models, "client.1": state.models["global"]}, tensors=state.tensors, facts=state.facts
        ),
        ServerState(models=state.models, tensors={}, facts=state.facts),
        ServerState(models=state.models, tensors=state.tensors, facts={"clusters": [[1], [0]]}),
    ]
    assert len({state_sha256(s) for s in (state, *others)}) == 4


def test_layout_digest_sees_order_and_shapes():
    def group(name: str, *shape: int) -> ParamGroup:
        return ParamGroup(id=name, role="encoder", modality="acc", layer=0, tensors=pack([("w", shape, "weight")]))

    layouts = [
        GroupLayout(g)
        for g in ([group("a", 2, 3), group("b", 4)], [group("b", 4), group("a", 2, 3)], [group("a", 3, 2)])
    ]
    assert len({layout_digest(x) for x in layouts}) == 3
    assert layout_digest(GroupLayout([group("a", 2, 3), group("b", 4)])) == layout_digest(layouts[0])


def test_a_commit_is_that_of_the_checkout_and_of_no_repository_around_it(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    def commit_at(*folders: str) -> str | None:
        monkeypatch.setattr(identity, "__file__", str(tmp_path.joinpath(*folders, "relief_ray", "records", "f.py")))
        return identity.commit()

    assert commit_at() is None
    (tmp_path / "file").write_text("a")
    for step in (["init"], ["add", "."], ["commit", "-m", "first"]):
        git(*step)
    assert commit_at() == git("rev-parse", "--short", "HEAD").strip()
    (tmp_path / "file").write_text("b")
    assert commit_at() == git("rev-parse", "--short", "HEAD").strip() + "+changes"
    (tmp_path / "venv").mkdir()
    assert commit_at("venv") is None


def test_a_configuration_is_flat():
    values = identity.flat({"a": {"b": 1, "c": {"d": None}}, "e": [1, 2], "f": "x", "g": True})
    assert values == {"a.b": 1, "a.c.d": None, "e": [1, 2], "f": "x", "g": True}
