"""Alembic's folder: the history of ``schema.py``. Run by ``state.migrate``, never by hand."""
