"""The texts of the admin page: complete in German, Spanish and French."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from gettext import GNUTranslations
from pathlib import Path

import pytest
from django.utils import translation
from django.utils.translation.template import templatize
from testsite.visits import RELEASE, holder_of, page, visitor

import syncguard_django
from syncguard_django import locks
from syncguard_django.admin_cells import words

PACKAGE = Path(syncguard_django.__file__).parent
LANGUAGES = ("de", "es", "fr")
MARKERS = {"_": 0, "gettext": 0, "gettext_lazy": 0, "pgettext": 1}
"""The functions that mark a string, and the position of the string in their arguments."""

CALL = re.compile(r"""p?gettext\((?:u?(?:'[^']*'|"[^"]*"),?\s*)+\)""")


def marked_in(source):
    """The strings that Python code marks, with their contexts as catalogues write them."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) in MARKERS:
            texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
            position = MARKERS[call.func.id]
            assert len(texts) > position, ast.dump(call)
            yield "\x04".join(texts[: position + 1])


def marked_strings():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        found |= set(marked_in(path.read_text()))
    for path in (PACKAGE / "templates").rglob("*.html"):
        # Django turns a template into text for xgettext: calls, with other text between them.
        found |= {
            text
            for call in CALL.finditer(templatize(path.read_text()))
            for text in marked_in(call[0])
        }
    return found


def compiled(language):
    return PACKAGE / "locale" / language / "LC_MESSAGES" / "django.mo"


def catalogue(path):
    with path.open("rb") as file:
        entries = GNUTranslations(file)._catalog
    return {text: translated for text, translated in entries.items() if text}


def test_the_marked_strings_are_found():
    found = marked_strings()
    assert {"Find by key", "key hash", "unit: days\x04d", "Yes, release it"} <= found
    assert any("<strong>%(alias)s</strong>" in text for text in found)
    assert len(found) > 50


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_string_is_missing_and_none_is_left_over(language):
    assert set(catalogue(compiled(language))) == marked_strings()


@pytest.mark.parametrize("language", LANGUAGES)
def test_placeholders_are_in_the_translation_too(language):
    holes = re.compile(r"%\(\w+\)s|\{\w+\}|<[^>]+>")
    for text, translated in catalogue(compiled(language)).items():
        assert translated.strip(), text
        assert sorted(holes.findall(translated)) == sorted(holes.findall(text)), text


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalogue_matches_its_source(language, tmp_path):
    if shutil.which("msgfmt") is None:
        pytest.skip("needs msgfmt; on Debian: apt install gettext")
    source, anew = compiled(language).with_suffix(".po"), tmp_path / "django.mo"
    subprocess.run(["msgfmt", "--output-file", str(anew), str(source)], check=True)
    assert catalogue(anew) == catalogue(compiled(language))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "title", "button"),
    [
        ("de", "Sperren", "Ja, freigeben"),
        ("es", "Bloqueos", "Sí, liberarlo"),
        ("fr", "Verrous", "Oui, le libérer"),
    ],
)
def test_the_pages_are_in_the_selected_language(backend, settings, language, title, button):
    settings.LANGUAGE_CODE = language
    backend.acquire("a", ttl_ms=60_000)
    client = visitor("view_lock", "release_lock")
    assert f"<h1>{title}</h1>" in page(client)
    asked = client.get(RELEASE, holder_of(locks["default"].lookup(key="a")))
    assert button in asked.content.decode()


def test_durations_are_in_the_language_too():
    with translation.override("de"):
        assert words() == ("unter 1 s", "T")
