"""The cost of a plan as a sum of tables over few decisions each: what exact search works on."""
