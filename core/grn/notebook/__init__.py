"""Running a notebook as a job: `grn run-notebook`, and notebooks in the queue.

Needs the extra `notebook` (nbclient, nbformat, ipykernel). The kernel is started inside the job's
lease, never before it.
"""
