"""One module a revision, in the order of ``state.migrate.REVISIONS``."""
