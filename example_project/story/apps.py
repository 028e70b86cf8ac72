"""The application's name; it connects the journal to the signals of the locks."""

from __future__ import annotations

from django.apps import AppConfig


class StoryConfig(AppConfig):
    name = "example_project.story"

    def ready(self) -> None:
        from example_project.story import journal

        journal.listen()
