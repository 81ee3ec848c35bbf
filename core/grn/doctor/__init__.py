"""What `grn doctor` knows: facts are gathered at the edges, findings are drawn from them by rules.

`gathering` fills a `Facts` record from `driverlook`, `devicelook`, `brokerlook`, `holders`,
`pythonlook` and `machinelook`: each asks something outside, within a bounded time, and changes
nothing. `diagnosis` turns the record into findings through the pure modules `on_driver`,
`on_devices`, `on_shell`, `on_broker`, `on_python` and `on_machine`.
"""
