"""What each command does: options -> the package's own functions -> text, JSON or files."""
