"""The queue of scripts and notebooks: kept on disk, worked off by one owner, outlived by its jobs.

    database  one SQLite file, changed whole or not at all
    store     the list as people look at it and change it; `ordering` has its places and priorities
    worklist  the list as the owner and the runners work on it
    changes   how everybody hears that the list has changed, without asking again and again
    owner     the one process that starts the next job whenever there may be room
    runner    the process of one job: claims it, supervises it, writes down how it ended
    running   the runners as others see them

Design note. An acknowledged job is a committed row, so nothing that dies can lose it. A job's process is
started only after its runner has claimed the row and, with the lease in hand, has written there that
the job runs. So a row that does not say so has never run, and may be queued again whoever was killed;
one that does is never started a second time. Whether a job starts, or is called back, held or cancelled
first, is decided by that one write. A runner does not need the owner any more: it is a session of its
own, and a new owner finds it by the pid, boot and start time in its row.
"""
