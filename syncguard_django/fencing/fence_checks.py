"""System checks of fenced models. They query no database.

``docs/reference/django-checks.md`` lists the ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import models

from syncguard_django.fencing.fence_constraint import FenceNeverDecreases, fence_field_of
from syncguard_django.fencing.fenced_model import FencedModel
from syncguard_django.fencing.fenced_queries import FencedQuerySet


def check_fenced_models(
    app_configs: Sequence[AppConfig] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """For every ``manage.py check``: are the fences of all models protected?"""
    chosen = apps.get_app_configs() if app_configs is None else app_configs
    return [
        message
        for app in chosen
        for model in app.get_models()
        for message in (*_misplaced_constraints(model), *_unfenced_managers(model))
    ]


def _misplaced_constraints(model: type[models.Model]) -> Iterator[CheckMessage]:
    for constraint in model._meta.constraints:
        if isinstance(constraint, FenceNeverDecreases) and fence_field_of(model) is None:
            yield Error(
                f"'{constraint.name}' is a FenceNeverDecreases, but the table of this model has"
                " no fence.",
                hint="Move it to the model that inherits from FencedModel: with multi-table"
                " inheritance, that is the parent.",
                obj=model,
                id="syncguard.E020",
            )


def _unfenced_managers(model: type[models.Model]) -> Iterator[CheckMessage]:
    if not issubclass(model, FencedModel):
        return
    for manager in model._meta.managers:
        # Check the class: get_queryset() would run the user's code.
        if not issubclass(getattr(manager, "_queryset_class", type), FencedQuerySet):
            yield Warning(
                f"The manager '{manager.name}' returns no FencedQuerySet: it has no fenced(), and"
                " its bulk_create(update_conflicts=True) can lower a fence.",
                hint="Use FencedQuerySet.as_manager(), or Manager.from_queryset(FencedQuerySet).",
                obj=model,
                id="syncguard.W020",
            )
