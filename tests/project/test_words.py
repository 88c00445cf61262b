"""Test the documentation: links lead somewhere, named code and tests exist, no machine is named."""

import re
from collections import defaultdict

from tests.project.tree import ROOT, TEXT, files, name_of, sources


def markdown():
    return sorted(files({".md"}))


def prose(path):
    """The text of a Markdown file without its code blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_lead_somewhere():
    offenders = [f"{name_of(path)}: {link}" for path in markdown() for link in broken_links(path)]
    assert not offenders, "\n".join(offenders)


def broken_links(path):
    """Links of a page whose file or heading is not there."""
    links = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", prose(path))
    for link in (link for link in links if not re.match(r"[a-z]+:", link)):
        target, _, anchor = link.partition("#")
        file = (path.parent / target) if target else path
        if not file.exists():
            yield link
        elif anchor and file.suffix == ".md":
            if anchor not in [slug(h) for h in re.findall(r"^#+ (.+)$", prose(file), flags=re.M)]:
                yield link


def test_tests_that_documents_name_exist():
    offenders = []
    for page in markdown():
        for file, test in re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8")):
            path = ROOT / file
            if not path.is_file() or (test and f"def {test}(" not in path.read_text(encoding="utf-8")):
                offenders.append(f"{name_of(page)}: {file}::{test}")
    assert not offenders, "\n".join(offenders)


def test_code_that_documents_name_exists():
    """``path.py::name`` and plain paths of sources in the documentation."""
    missing = []
    for path in markdown():
        for file, name in re.findall(r"`((?:relief_ray|actors|tune_configs)/[\w/]+\.py)(?:::(\w+))?`", prose(path)):
            source = ROOT / file
            defined = rf"^(?:def |class |async def )?{name}\b"
            if not source.is_file() or (
                name and not re.search(defined, source.read_text(encoding="utf-8"), flags=re.M)
            ):
                missing.append(f"{name_of(path)}: {file} {name}")
    assert not missing


def test_paths_from_a_room_on_exist():
    """``devices/time.py`` in pages and sources, written from the folder of a room on; decision records are history."""
    places = defaultdict(set)
    for room in {room for source in sources() for room in source.parents if ROOT in room.parents}:
        places[room.name].add(room.parent)
    path_of_room = re.compile(r"(?<![\w/.-])([a-z_]+)/((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)\b")
    missing = [
        f"{name_of(path)}: {found.group()}"
        for path in [*markdown(), *sources()]
        if "adr" not in path.parts
        for found in path_of_room.finditer(path.read_text(encoding="utf-8"))
        if found[1] in places and not any((place / found.group()).is_file() for place in places[found[1]])
    ]
    assert not missing, "\n".join(missing)


def test_no_machine_is_named():
    # Folders of one machine, and hosts that a user's settings choose. Brackets: this file must not name them either.
    words = re.compile(r"/wor[k]/|/opt/(pyp[i]|wheel[s])|pyp[i]\.org|pythonhoste[d]|download\.pytorc[h]")
    texts = ((path, path.read_text(encoding="utf-8", errors="ignore")) for path in files(TEXT))
    assert not [f"{name_of(path)}: {hit.group()}" for path, text in texts for hit in words.finditer(text)]
