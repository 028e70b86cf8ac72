"""The form of the admin page that finds a lock by its raw key."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from syncguard_django.configured_backends import locks


class FindByKeyForm(forms.Form):
    """Which alias, and which key. With only one alias the choice is hidden."""

    using = forms.ChoiceField(label=gettext_lazy("Alias"))
    key = forms.CharField(
        label=gettext_lazy("Key"),
        strip=False,
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "size": 30}),
    )

    def __init__(self, data: Any = None, initial: dict[str, Any] | None = None) -> None:
        super().__init__(data, initial=initial, auto_id="syncguard-find-%s")
        aliases = tuple(locks)
        field = self.fields["using"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(alias, alias) for alias in aliases]
        if len(aliases) == 1:
            field.widget = forms.HiddenInput()
            field.required = False

    def clean_using(self) -> str:
        return self.cleaned_data["using"] or next(iter(locks))
