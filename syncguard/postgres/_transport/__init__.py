"""Connections to PostgreSQL. Private."""
