"""Extending locks while they are held, and noticing their loss. Private."""
