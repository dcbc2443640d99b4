"""Records and logs that outlive their objects: in memory, in SQLite files, or in PostgreSQL."""

#: The file of the history in the data directory of `fairlead up`.
HISTORY_FILE = "history.db"
