"""What people read: results as text and tables, and the progress of a search."""
