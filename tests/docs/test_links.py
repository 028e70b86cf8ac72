"""Every link of the documentation leads somewhere."""

from __future__ import annotations

import pytest
from pages import ROOT, anchors, links, name_of, pages

COLOUR_SCHEMES = ("only-light", "only-dark")
"""Not anchors: with these MkDocs Material chooses between two pictures."""


@pytest.mark.parametrize("page", [*pages(), ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading_of_it(page):
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.is_file(), link
        if anchor and anchor not in COLOUR_SCHEMES:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_to_other_sites_are_encrypted(page):
    assert not [link for link in links(page) if link.startswith("http://")]


def test_every_page_can_be_reached_from_the_first():
    first = ROOT / "README.md"
    seen, ahead = set(), [first]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        found = [link.partition("#")[0] for link in links(page) if "://" not in link]
        ahead += [(page.parent / path).resolve() for path in found if path]
    assert {name_of(page) for page in pages()} - {name_of(page) for page in seen} == {
        "docs/index.md"  # the first page of the built site: what the README is here
    }


def test_every_drawing_is_used():
    used = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in pages()
        for link in links(page)
        if "://" not in link
    }
    assert set((ROOT / "docs" / "images").glob("*.svg")) <= used
