"""What the tables and texts look like: pure functions of values, a width and an instant."""
