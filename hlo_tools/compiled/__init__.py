"""What a compiled program says: its collectives, its schedule, and the program in an executable."""
