"""The demonstration: scenes that can be played, and a journal of the events of their locks."""
