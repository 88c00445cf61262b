"""A user's own grid file with something wrong in it."""

import pytest

from relief_ray.support.errors import UserError
from tune_configs.registry import GRIDS, load_grid


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("from relief_ray.studies.spec import Spec\ndef grid(:\n", "SyntaxError: invalid syntax (mine.py, line 2); "),
        ("import no_such_module\n", "mine.py, line 1, in <module>: import no_such_module); expected Python"),
        ("def grid():\n    return 1 / 0\n", "mine.py, line 2, in grid: return 1 / 0); expected Python"),
        ("{}def grid():\n    return Spec(tile='x')\n", "mine.py, line 3, in grid: return Spec(tile='x')); "),
        ("{}def grid():\n    return Spec(name='g', title='', methods=(), datasets=('dsa_minni',))\n",
         "dataset 'dsa_minni': unknown (did you mean 'dsa_mini'?)"),
        ("{}def grid():\n    return Spec(name='../y', title='', methods=('v1',))\n", "name '../y': expected letters"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_user_s_file_is_the_user_s(tmp_path, text, words):
    path = tmp_path / "mine.py"
    path.write_text(text.replace("{}", "from relief_ray.studies.spec import Spec\n"))
    with pytest.raises(UserError) as error:
        load_grid(str(path))
    assert words in str(error.value)


@pytest.mark.parametrize("name", GRIDS)
def test_our_own_pass(name):
    assert load_grid(name).name == name
