"""The Python interface: `plan`, `parallelize`, `simulate`, and the plan that users hold."""
