"""NVIDIA cards, asked through the unmodified `nvidia-ml-py` by processes that may hang alone.

The problem: a driver call can block for ever, in a state in which not even SIGKILL ends the caller,
and one bad card can block calls about the others. So the broker never calls NVML.

    broker ── control ──> zygote ── fork ──> worker of card 0
      │                                      worker of card 1 ...
      └── a socket to each worker: one question at a time

The zygote imports the binding once, calls nothing and has one thread; forked from it, a worker costs
a few pages and a few milliseconds, and loads the library anew (it may have been upgraded). A worker
initialises NVML, finds its card, says what it found, and answers. When a call tells that the card
or the driver is gone, it says so and ends: a fresh one in its place, after a while, is the one cure
for everything.

Broker side: `opening` finds the cards (`found`), `choice` applies the mask, `backend` asks them all in
a `round`, `link` is one card as the broker sees it, `readings` its answers, `nursery` holds the zygote
and `channel` is a socket to a worker. Worker side: `zygote`, `worker`, `binding`, `survey`, `reader`,
`memory`, `processes`, `accounting`, `events`, `health`.

Rejected: threads (a stuck one cannot be ended, and the binding holds one lock for all); one child
for all cards (a bad card would hide the good ones); `subprocess` for each worker (20 MiB and 100 ms
each); `fork` from the broker (it has an event loop and sockets of clients).
"""
