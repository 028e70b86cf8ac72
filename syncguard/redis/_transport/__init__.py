"""Connections to Redis: send, read, recover, name errors. Private."""
