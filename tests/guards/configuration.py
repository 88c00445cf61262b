"""The page ``docs/configuration.md``, made from the classes: ``python -m tests.guards.configuration [--write]``.

Without ``--write`` the page is printed.
"""

import sys
from pathlib import Path

from relief_ray.config.experiment import all_keys
from relief_ray.config.keys import Key
from relief_ray.support.errors import value_text

FILE = Path(__file__).parents[2] / "docs" / "configuration.md"
_HEAD = """# Configuration

Every key of a run, with its type, its default and its meaning. `relief-ray config` prints the same table,
`relief-ray config demo` a preset's values, `relief-ray config demo training` one section of them. A key is changed by
`--set training.epochs=2`, in a YAML file, or by `rr.run("demo", set={"training.epochs": 2})` in Python.

This page is generated: `python -m tests.guards.configuration --write` writes it from the classes.
"""


def page() -> str:
    """A table per section."""
    sections: dict[str, list[Key]] = {}
    for key in all_keys():
        head = key.key.partition(".")[0] if "." in key.key else "The run itself"
        sections.setdefault(f"{head}: {key.of}" if key.of else head, []).append(key)
    text = [_HEAD]
    for title, section in sections.items():
        text += [f"## {title}\n", "| key | type | default | meaning |", "|---|---|---|---|"]
        for key in section:
            cells = [part.replace("|", "\\|") for part in (key.type, value_text(key.default), key.meaning)]
            text.append("| `{}` | {} | `{}` | {} |".format(key.key, *cells))
        text.append("")
    return "\n".join(text)


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        FILE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
