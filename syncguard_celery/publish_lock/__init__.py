"""Locks that are taken when a task is published: ``at="publish"``. Private."""
