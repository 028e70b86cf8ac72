"""Extend locks while they are held, and detect lost ones. Private."""
