"""What people see: progress on a terminal."""
