"""The supervisor: one small process that runs jobs in their leases and ends as they end.

Everything that starts a job for a user (`grn run`, and through it the adapters) goes through here,
because being the parent of a GPU program has many traps. `batch.py` is the place to start reading.
"""
