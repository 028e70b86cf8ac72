"""The cells of the admin page: one value each, as HTML.

Each begins with its label. Only a narrow screen shows the labels: there each lock is a card, and
the column headings are hidden.
"""

from __future__ import annotations

import re

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from syncguard_django.durations import Words, for_people


def cell(label: object, content: object) -> SafeString:
    return format_html(
        '<span class="syncguard-label" aria-hidden="true">{}</span>'
        '<span class="syncguard-value">{}</span>',
        label,
        content,
    )


def shown_hash(value: str) -> SafeString:
    """A hash. The style sheet may shorten it; the title has all of it."""
    return format_html('<code class="syncguard-hash" title="{}">{}</code>', value, value)


def shown_holder(label: str) -> SafeString:
    """A holder label. A long one wraps before the process and before the host."""
    parts = re.split(r"(?=[@(\[])", label)
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in parts))


def shown_fence(fence: str) -> SafeString:
    """Without leading zeros; the title has all digits."""
    return format_html(
        '<span class="syncguard-fence" title="{}">{}</span>', fence, fence.lstrip("0") or "0"
    )


def running_duration(ms: int, direction: str) -> SafeString:
    """A duration that ``locks.js`` keeps up to date."""
    return format_html(
        '<span class="syncguard-duration" data-syncguard-{}-ms="{}">{}</span>',
        direction,
        ms,
        for_people(ms, words()),
    )


def words() -> Words:
    """The words of durations in the language of the page."""
    return Words(_("under 1 s"), pgettext("unit: days", "d"))
