"""The catalogues against the code and against each other."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from babel.messages.pofile import read_po

from calculator.render import LANGUAGES, LOCALES, catalogue
from tests.render.usage import Usage, source_files, usage

FIELD = re.compile(r"\{([a-z][a-z0-9_]*)\}")
DOMAINS = sorted(path.stem for path in (LOCALES / "en" / "LC_MESSAGES").glob("*.po"))


@cache
def all_usage() -> tuple[Usage, ...]:
    return tuple(usage(path) for path in source_files())


def entries(language: str, domain: str) -> list[tuple[str, str]]:
    path = LOCALES / language / "LC_MESSAGES" / f"{domain}.po"
    with path.open("rb") as file:
        return [(str(m.id), str(m.string)) for m in read_po(file, locale=language, abort_invalid=True) if m.id]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_used_id_has_a_sentence(language: str) -> None:
    known = catalogue(language)
    missing = [
        f"{found.path}:{line}: {id_}" for found in all_usage() for id_, line in found.needed.items() if id_ not in known
    ]
    assert not missing, f"not in the {language} catalogues:\n" + "\n".join(missing)


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_sentence_is_unused(domain: str) -> None:
    literals = set().union(*(u.literals | set(u.needed) for u in all_usage()))
    patterns = [re.compile(p) for p in set().union(*(u.patterns for u in all_usage()))]

    def used(id_: str) -> bool:
        bare = id_.removesuffix(".remedy")
        return any(i in literals or any(p.fullmatch(i) for p in patterns) for i in {id_, bare})

    unused = [id_ for id_, _ in entries("en", domain) if not used(id_)]
    assert not unused, f"{domain}.po holds ids that the code never names:\n" + "\n".join(unused)


@pytest.mark.parametrize("domain", DOMAINS)
def test_both_languages_hold_the_same_ids_and_fields(domain: str) -> None:
    english, chinese = dict(entries("en", domain)), dict(entries("zh", domain))
    assert not english.keys() ^ chinese.keys(), f"{domain}: in one language only"
    wrong = {
        id_: (english[id_], chinese[id_])
        for id_ in english
        if set(FIELD.findall(english[id_])) != set(FIELD.findall(chinese[id_]))
    }
    assert not wrong, f"{domain}: fields differ"
    empty = [id_ for id_ in english if not english[id_].strip() or not chinese[id_].strip()]
    assert not empty, f"{domain}: empty sentences"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_field_of_a_sentence_gets_its_value(language: str) -> None:
    known = catalogue(language)
    missing = [
        f"{found.path}:{line}: {id_} is not given {', '.join(sorted(fields))}"
        for found in all_usage()
        for line, id_, values in found.given
        if (fields := set(FIELD.findall(known.get(id_, ""))) - values)
    ]
    assert not missing, "fields that would stay in braces:\n" + "\n".join(missing)


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_id_stands_twice(language: str) -> None:
    """Babel merges a repeated id in silence, so the files are counted as text."""
    ids: Counter[str] = Counter()
    for path in (LOCALES / language / "LC_MESSAGES").glob("*.po"):
        ids.update(re.findall(r'^msgid "(.+)"$', path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert not [id_ for id_, n in ids.items() if n > 1]


@pytest.mark.parametrize("language", LANGUAGES)
def test_braces_hold_plain_names_only(language: str) -> None:
    odd = {
        id_: sentence
        for id_, sentence in catalogue(language).items()
        if re.search(r"[{}]", re.sub(r"\{\{|\}\}", "", FIELD.sub("", sentence)))
    }
    assert not odd


def test_chinese_is_chinese() -> None:
    """A sentence of several words without one Han character was left untranslated."""
    left = {
        id_: s
        for id_, s in catalogue("zh").items()
        if s == catalogue("en").get(id_) and len(re.findall(r"[A-Za-z]{3,}", FIELD.sub("", s))) > 3
    }
    assert not left


def test_the_reader_of_the_code_sees_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above would pass in silence if it found no ids, so it is checked itself."""
    monkeypatch.setattr("tests.render.usage.ROOT", tmp_path)
    file = tmp_path / "x.py"
    file.write_text('text("a.b", n=1)\nraise PlanError("c.d", field="e")\nx = text("f.g" if y else "f.h")\nf"p.{k}"\n')
    found = usage(file)
    assert set(found.needed) == {"a.b", "c.d", "c.d.remedy", "f.g", "f.h"}
    assert found.patterns == {"p\\.[^ ]+"}
    assert found.given[:2] == [(1, "a.b", {"n"}), (2, "c.d", {"field"})]
