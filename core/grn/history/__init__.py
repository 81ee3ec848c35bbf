"""What ran on this machine: one record for each lease, kept in SQLite, and what reads it."""
