"""Locks that are acquired when a task is published: ``at="publish"``. Private."""
