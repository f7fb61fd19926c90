"""One folder a source engine; what an engine can do is data in its ``capabilities``."""
