"""The queue of scripts and notebooks: kept on disk, worked off by one owner, outlived by its jobs.

    store    the list of jobs in one SQLite file; whoever adds, moves or cancels writes there itself
    changes  how everybody hears that the list has changed, without asking again and again
    owner    the one process that starts the next job whenever there may be room
    runner   the process of one job: claims it, supervises it, writes down how it ended

Design note. An acknowledged job is a committed row, so nothing that dies can lose it. A job runs only
after its runner has claimed its row in a transaction, and only a row that nobody has claimed is ever
started, so it cannot run twice, whoever is killed when. A runner does not need the owner any more:
it is a session of its own, and a new owner finds it by the pid and start time in its row.
"""
