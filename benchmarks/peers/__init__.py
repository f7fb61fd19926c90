"""Other ways to read a table into Parquet, each a program of its own so that it can be metered."""
