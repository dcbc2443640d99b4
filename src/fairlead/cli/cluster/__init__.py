"""The process behind `fairlead up`: its data directory, its life, and its parts put together."""
