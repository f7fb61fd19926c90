"""A first rivet.yaml, written from what a live database has."""
