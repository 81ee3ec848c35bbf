"""The broker: the one process per machine that keeps the books, and the files it keeps them in."""
