"""Connections to Redis: send, read, reconnect, map errors. Private."""
