"""Scripts that make the tables of the docs and reproduce the results of papers."""
