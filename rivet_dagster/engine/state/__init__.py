"""The state: leases, runs, units, parts, cursors. ``store.StateStore`` is its face."""
