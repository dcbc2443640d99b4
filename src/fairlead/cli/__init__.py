"""What people see on a terminal. Heavy modules are imported inside commands, for start-up time."""
