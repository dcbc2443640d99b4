"""Records and logs that outlive their objects: in memory, in SQLite files, or in PostgreSQL."""
