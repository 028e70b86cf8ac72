"""The tables of this application."""

# ruff: noqa: RUF012 - as Django generates it

import django.db.models.deletion
from django.db import migrations, models

import example_project.story.models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Scene",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=20)),
                ("key", models.CharField(max_length=100)),
                ("started_ms", models.BigIntegerField(default=example_project.story.models.now_ms)),
                ("ended_ms", models.BigIntegerField(null=True)),
                ("ok", models.BooleanField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=20)),
                ("fence", models.CharField(blank=True, max_length=15)),
                ("pid", models.PositiveIntegerField()),
                ("task_id", models.CharField(blank=True, max_length=50)),
                ("detail", models.CharField(blank=True, max_length=200)),
                ("at_ms", models.BigIntegerField(default=example_project.story.models.now_ms)),
                ("until_ms", models.BigIntegerField(null=True)),
                (
                    "scene",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="story.scene",
                    ),
                ),
            ],
            options={
                "ordering": ("at_ms", "pk"),
            },
        ),
        migrations.CreateModel(
            name="Step",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("text", models.CharField(max_length=300)),
                ("ok", models.BooleanField(null=True)),
                ("at_ms", models.BigIntegerField(default=example_project.story.models.now_ms)),
                (
                    "scene",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="steps",
                        to="story.scene",
                    ),
                ),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
    ]
