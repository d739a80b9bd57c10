"""Programs that show how automap is used; `make demo` runs them."""
