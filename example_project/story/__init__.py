"""The demonstration: scenes that can be played, and a journal of what the locks did meanwhile."""
