"""Measurements of the whole product against other extraction tools; see docs/performance.md."""
