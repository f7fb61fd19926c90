"""The sample shop: a private PostgreSQL from a wheel, its data, and the guided run over it."""
