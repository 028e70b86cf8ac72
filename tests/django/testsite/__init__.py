"""A small Django site for the tests: one model, a few views, the admin."""
