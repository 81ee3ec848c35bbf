"""`grn top`: devices, leases, the queue and recent ends, live.

`command` reads the words; `live` waits for the broker and for keys; `screen` has the terminal; `frame`
draws what is seen, with `bars`, `panes` and `grid`, and knows neither of them; `view` is what a person
has chosen to look at, and `keys` what was pressed.
"""
